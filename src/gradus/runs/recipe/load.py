"""Loads a recipe: the layers of an environment or a file, a model and a command line, merged and checked once.

The layers, of which a later one wins:

1. ``recipe``: the environment's own, or the file that was given
2. ``model``: with a given model the ``[lm]`` table, whose ``sft`` and ``grpo`` replace those for a nano model; settings by its size
3. ``quick``: the ``[quick]`` table, if asked for
4. ``command line``: ``--model``, ``--seed``, ``--grader``, rewards and every ``--set key=value``, with what follows from them
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.naming import did_you_mean
from gradus.core.printing import beginning
from gradus.core.values import Json, JsonDict, as_mapping, is_table
from gradus.policies.local.folders import find_model, is_hub_name, is_nano
from gradus.policies.local.sampling import SamplingConfig
from gradus.rewards import RewardChoice, RewardConfig
from gradus.runs.recipe.record import Recipe
from gradus.runs.recipe.starter import by_size, packaged_table, reads_of
from gradus.runs.recipe.tables import Layer, changes_of, merge, own_table, parse_changes, raw_recipe
from gradus.runs.shapes import read_shape
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import SftConfig
from gradus.training.trainer_config import OWNED_SETTINGS

_ADDED = ("teach.", "eval.", "audit.")  # the sections of [lm] that change single keys; others replace the recipe's
# What recipes set for a nano model in this process, and no Tinker server has.
_NOT_SERVED = ("sft.optimizer", "sft.muon_lr", "grpo.optimizer", "grpo.muon_lr", "grpo.sampling.grammar")


def load_recipe(
    environment: str | EnvironmentSpec | None,
    *,
    path: Path | None = None,
    changes: Json | Sequence[str] = (),
    rewards: RewardChoice | None = None,
    quick: bool = False,
    online: bool = False,
) -> Recipe:
    """The recipe of an environment or of a file, with changes. An environment that is an object stands in the recipe by its name.

    ``changes``: dotted keys to values (None unsets a key), or ``key=value`` as typed (``key=`` unsets it). ``rewards`` take the
    place of the grader and of all that the environment's own recipe says of it. ``online``: the hub may be asked for the size of a
    model that is not on this disk.
    """
    if environment is None and path is None:
        raise ConfigError("name an environment (gradus envs lists them) or give --recipe FILE")
    edits = parse_changes(changes)
    rewards = rewards or RewardChoice()
    table, source, shipped = raw_recipe(environment, path, reads_of(rewards, edits.get("grader")))
    lm = table.pop("lm", None)
    quick_table: Any = table.pop("quick", {})
    # In the recipe that a run stored all is chosen: its key quick says which form it is, and there is no smaller one.
    stored = isinstance(quick_table, bool)
    settings = changes_of(table)
    if stored:
        settings["quick"], quick_table = quick_table, {}
    if not (lm is None or is_table(lm)) or not is_table(quick_table):
        raise ConfigError(f"{source} cannot be used: lm and quick are tables, [lm] and [quick]")
    layers, choice = [Layer("recipe", settings)], ""
    typed = edits
    if environment is not None:
        name = environment.name if isinstance(environment, EnvironmentSpec) else environment
        typed = {"environment": name, **edits}
    named = settings | typed
    model_name = named.get("model.path")
    if isinstance(model_name, str) and not stored:
        served = named.get("trainer", "local") != "local"
        changes_by_model, choice = _for_model(model_name, settings, lm, online=online, served=served)
        layers.append(Layer("model", changes_by_model))
    if quick:
        layers.append(Layer("quick", {**quick_table, "quick": True}))
    replaced = _for_rewards(rewards.entries, from_file=path is not None)
    layers.append(Layer("command line", replaced | typed))
    # What a person typed can leave settings of the recipe without effect, and those would be refused.
    layers.append(Layer("command line", _idle_settings(merge(layers)[0], edits)))
    merged, origins = merge(layers)
    recipe = _validated(merged, source)
    return recipe.with_origin(origins, choice, str(path) if shipped and environment is None else None)


def _for_model(model: str, settings: Json, lm: Json | None, *, online: bool, served: bool) -> tuple[JsonDict, str]:
    """The layer of a given model, and a line that says which settings it chose, if there was a choice.

    Without the table ``[lm]`` the recipe holds for any model; what it leaves out follows the model's size.
    """
    changes: JsonDict = {"promises": None}  # they are about the nano model that the recipe makes
    is_complete = lm is None and any(key.startswith(("sft.", "grpo.")) for key in settings)
    if is_nano(model) and is_complete:
        return {}, ""
    if is_nano(model) and lm is not None:
        changes |= dict.fromkeys(_NOT_SERVED if served else ())
        return changes, f"settings: the recipe's for a nano model, which {model} is"
    parameters = _parameters(model, online=online)
    # A server trains adapters alone, so the size of its model changes nothing here.
    sized = changes_of(by_size(None if served else parameters))
    if lm is None:
        source = "the recipe's" if is_complete else "those for a language model"
        changes |= {key: value for key, value in sized.items() if key not in settings}
    else:
        source = "the recipe's for a language model ([lm])"
        # Of a section for a nano model no key stays: its rates and lengths spoil a language model.
        replaced = [name for name in lm if f"{name}." not in _ADDED]
        changes |= {**dict.fromkeys(("sft", "distill", "grpo", *replaced)), **sized, **changes_of(lm)}
    size = "its size, which is not known"
    if parameters is not None:
        size = f"its {parameters / 1e6:,.3g} million parameters"
    return changes, f"settings: {source}, with rates and adapters by {size}"


def _parameters(model: str, *, online: bool) -> int | None:
    """Returns a model's number of parameters, by its config; None if that is not at hand.

    A run asks the hub: it would else have other settings when it is resumed, for its model is on this disk by then. Raises ConfigError
    if the hub does not have the model, or cannot be reached.
    """
    ask_hub = online and is_hub_name(model)
    try:
        return read_shape(find_model(model) or model, online=ask_hub).parameters
    except ConfigError as error:
        if ask_hub and isinstance(error.__context__, OSError):
            raise
    return None


def _for_rewards(rewards: Sequence[RewardConfig], *, from_file: bool) -> JsonDict:
    """Rewards replace the grader, and what an environment's own recipe says of it, but for a recipe that a person wrote."""
    if not rewards:
        return {}
    replaced = ["grader"] if from_file else ["grader", "stage", "adaptive", "promises", "eval.graders"]
    return {**dict.fromkeys(replaced), "rewards": [reward.model_dump() for reward in rewards]}


def _idle_settings(table: Json, edits: Json) -> JsonDict:
    """Unsets what another optimizer, schedule or sampler, that ``edits`` name, leaves without effect; keys that they name themselves stay."""
    idle: list[str] = []
    for stage, config in {"sft": SftConfig, "grpo": GrpoConfig}.items():
        section = as_mapping(table.get(stage))
        for key, owners, settings in OWNED_SETTINGS:
            field = config.model_fields.get(key)
            if field and f"{stage}.{key}" in edits and section.get(key, field.default) not in owners:
                idle += [f"{stage}.{name}" for name in settings if name in section]
    return dict.fromkeys(key for key in idle if key not in edits)


def sampling_of(spec: EnvironmentSpec) -> SamplingConfig:
    """Returns the sampling of the environment's own recipe for a language model."""
    table = own_table(spec)
    layer = table.get("lm", table)
    return SamplingConfig.model_validate(layer.get("grpo", {}).get("sampling", {}))


def _validated(table: Json, source: str) -> Recipe:
    """The recipe of a table. Raises ConfigError with a line for each fault."""
    try:
        # JSON has lists alone, which pydantic takes for tuples; a date or a path is refused or taken by its text.
        return Recipe.model_validate(json.loads(json.dumps(table, default=str)))
    except ValidationError as error:
        lines = [_complaint(problem) for problem in error.errors()]
        raise ConfigError(f"{source} cannot be used:\n  " + "\n  ".join(lines)) from error


def _complaint(error: Any) -> str:
    """One error of pydantic in a line."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        *section, name = error["loc"]
        keys = _keys_of(section)
        ours = trl_names().get(str(name))
        hint = f"; it is TRL's name, and {ours} here" if ours else did_you_mean(str(name), keys)
        place = ".".join(map(str, section)) or "a recipe"
        listing = f"; {place} knows {', '.join(keys)} (docs/reference/trl.md has TRL's names)"
        return f"{path}: unknown key{hint or listing}"
    message = error["msg"].removeprefix("Value error, ")
    value = error.get("input")
    if not isinstance(value, Mapping):  # a section would hide the message
        message += f", got {beginning(repr(value), 80)}"
    return f"{path}: {message}" if path else message


@cache
def trl_names() -> dict[str, str]:
    """TRL's settings and the recipe keys in their place."""
    return packaged_table("trl_names.toml")


def _keys_of(section: Sequence[Any]) -> list[str]:
    """The keys of a section."""
    kind: Any = Recipe
    for part in section:
        fields = getattr(kind, "model_fields", {})
        if part in fields:  # a place in a list has no field
            kind = fields[part].annotation
        # Of SftConfig | None, or tuple[RewardConfig, ...], the model.
        kinds = [kind, *get_args(kind)]
        kind = next((model for model in kinds if isinstance(model, type) and issubclass(model, BaseModel)), kind)
    return list(getattr(kind, "model_fields", {}))
