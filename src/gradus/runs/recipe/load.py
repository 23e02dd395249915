"""From a TOML file, an environment or a name to a recipe, with changes.

A recipe is made in layers, and a later one wins:

1. the environment's own recipe, or the file that was given
2. with a model that is no nano model: the ``[lm]`` table, whose ``sft`` and ``grpo`` replace those for a nano model; settings by the
   model's size
3. the ``[quick]`` table, if asked for
4. the preset of a machine
5. the command line: ``--seed``, ``--grader`` and every ``--set key=value``
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.naming import did_you_mean
from gradus.policies.local.folders import find_model, is_hub_name, is_nano
from gradus.policies.local.sampling import SamplingConfig
from gradus.runs.planning.defaults import by_size
from gradus.runs.planning.hardware import PRESETS
from gradus.runs.planning.shapes import read_shape
from gradus.runs.recipe.record import Origin, Recipe
from gradus.runs.recipe.tables import own_table, raw_recipe
from gradus.runs.recipe.trl_names import trl_hint
from gradus.training.config import GrpoConfig
from gradus.training.sft_config import SftConfig
from gradus.training.trainer_config import OWNED_SETTINGS

_SECTIONS = [
    name
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
]
# as a name in a policy's or a pair's: sft, sft-greedy, grpo-sft, grpo - sft
_SFT = re.compile(r"(?<![^\s-])sft(?![^\s-])")


def load_recipe(
    environment: str | None,
    *,
    path: Path | None = None,
    model: str | None = None,
    changes: Mapping[str, Any] | Sequence[str] = (),
    rewards: Sequence[Mapping[str, Any]] = (),
    quick: bool = False,
    seed: int | None = None,
    grader: str | None = None,
    trackers: Sequence[str] = (),
    preset: str | None = None,
    online: bool = False,
) -> Recipe:
    """The recipe of an environment or of a file, with changes.

    ``changes``: dotted keys to values (None unsets a key), or ``key=value`` as typed (``key=`` unsets it). ``rewards`` take the
    place of the grader and of all that the environment's own recipe says of it. ``online``: the hub may be asked for the size of a
    model that is not on this disk.
    """
    if environment is None and path is None:
        raise ConfigError("name an environment (gradus envs lists them) or give --recipe FILE")
    table, source, shipped = raw_recipe(environment, path)
    edits = parse_changes(changes)
    _refuse_language_model_keys(edits)
    _check_tables(table, source)
    small = table.pop("quick", {})
    stored = isinstance(small, bool)  # a run's recipe says what it is: all is chosen, and it has no smaller form
    if stored:
        table["quick"], small = small, {}
    chosen = _for_given_model(table, None if stored else _named_model(model, edits, table), online=online)
    if rewards:
        _with_rewards(table, small, rewards, whole=path is None)
    if quick:
        _set_all(table, small)
        table["quick"] = True
    if preset is not None:
        _for_machine(table, preset)
    named = {"model.path": model, "seed": seed, "grader": grader, "environment": environment}
    named["trackers"] = list(trackers) or None
    _set_all(table, {key: value for key, value in named.items() if value is not None})
    _set_all(table, edits)
    _leave_out_what_belongs_to_others(table, edits)
    _compare_with_sft(table, edits)
    recipe = _compared_with_base(_validated(table, source), edits)
    name = str(path) if shipped and environment is None else None
    return recipe.with_origin(Origin(edited=frozenset(edits), chosen=chosen, shipped=name))


def _check_tables(table: Mapping[str, Any], source: str) -> None:
    """Layers are merged before the recipe is validated, so a section that is no table is refused before."""
    given = {name: value for name, value in table.items() if name == "lm" or name in _SECTIONS}
    lm = table.get("lm")
    if isinstance(lm, Mapping):
        given |= {f"lm.{name}": value for name, value in lm.items() if name in _SECTIONS}
    if not isinstance(table.get("quick"), bool | None):
        given["quick"] = table["quick"]
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{source} cannot be used:\n  {name}: expected a table, [{name}], got {_short(value)}")


def _refuse_language_model_keys(edits: Mapping[str, Any]) -> None:
    """The table ``[lm]`` is in force, or left out, before anything is changed, so a change of it would have no effect."""
    for key in edits:
        if key.startswith("lm."):
            plain = key.removeprefix("lm.")
            raise ConfigError(
                f"{key}: a changed setting holds for the model of the run, whichever it is; name it {plain}"
            )


def _leave_out_what_belongs_to_others(table: dict[str, Any], edits: Mapping[str, Any]) -> None:
    """If an edit chooses another optimizer or schedule, the recipe's settings of its own go; what an edit names stays, and is refused."""
    for stage, config in {"sft": SftConfig, "grpo": GrpoConfig}.items():
        for key, owners, owned in OWNED_SETTINGS:
            section = table.get(stage)
            if f"{stage}.{key}" not in edits or not isinstance(section, dict):
                continue
            if section.get(key, config.model_fields[key].default) not in owners:
                for name in owned:
                    if f"{stage}.{name}" not in edits:
                        section.pop(name, None)


def _compare_with_sft(table: dict[str, Any], edits: Mapping[str, Any]) -> None:
    """If an edit switches a teacher on that the recipe does without, its student is in the tables too."""
    if edits.get("teach.enabled") is not True or edits.keys() & {"eval.policies", "eval.pairs"}:
        return
    section = table.get("eval", {})
    policies, pairs = list(section.get("policies", ())), list(section.get("pairs", ()))
    if "grpo" in policies and "sft" not in policies:
        policies.insert(policies.index("grpo"), "sft")
        table["eval"] = {**section, "policies": policies, "pairs": [*pairs, "grpo-sft"] if pairs else []}


def _named_model(model: str | None, edits: Mapping[str, Any], table: Mapping[str, Any]) -> str | None:
    """The model that is asked for; anything but a text is left to the recipe's own check."""
    named = edits.get("model.path", model or table.get("model", {}).get("path"))
    return named if isinstance(named, str) else None


def _compared_with_base(recipe: Recipe, edits: Mapping[str, Any]) -> Recipe:
    """If an edit switches SFT off, the model before GRPO takes the place of SFT's student, and promises about that student go."""
    if edits.get("teach.enabled") is not False:
        return recipe
    section = recipe.eval
    named = {
        key: tuple(dict.fromkeys(_SFT.sub("base", name) for name in getattr(section, key)))
        for key in ("policies", "pairs")
        if getattr(section, key) and f"eval.{key}" not in edits
    }
    promises = tuple(each for each in recipe.promises if not _SFT.search(f"{each.policy} {each.pair}"))
    kept = {"promises": promises} if recipe.promises else {}
    return recipe.model_copy(update={"eval": section.model_copy(update=named), **kept})


def _for_given_model(table: dict[str, Any], model: str | None, *, online: bool) -> str:
    """Put the ``[lm]`` table in force if there is a model that is no nano model; returns which settings were chosen, if there was a choice.

    Without the table what the recipe says holds for any model, and what it leaves out follows the model's size.
    """
    layer = table.pop("lm", None)
    own = layer is None and bool(table.keys() & {"sft", "grpo"})
    if model is None or (own and is_nano(model)):
        return ""
    table.pop("promises", None)  # they are about the nano model that the recipe makes
    if layer is not None:
        if is_nano(model):
            return f"settings: the recipe's for a nano model, which {model} is"
        table.update(sft={}, grpo={})  # the own ones are for a nano model
        for key, value in layer.items():
            table[key] = {**table.get(key, {}), **value} if key in ("teach", "eval", "audit") else value
    parameters = _parameters(model, online=online)
    for stage, settings in by_size(parameters).items():
        table[stage] = {**settings, **table.get(stage, {})}
    size = "its size, which is not known" if parameters is None else f"its {parameters / 1e6:,.3g} million parameters"
    whose = (
        "the recipe's for a language model ([lm])" if layer else "the recipe's" if own else "those for a language model"
    )
    return f"settings: {whose}, with rates and adapters by {size}"


def _parameters(model: str, *, online: bool) -> int | None:
    """How many parameters a model has, by its config; None if that is not at hand.

    A run asks the hub: it would else have other settings when it is resumed, for its model is on this disk by then. Raises ConfigError
    if the hub does not have the model, or cannot be reached.
    """
    for asked in (False, True) if online and is_hub_name(model) else (False,):
        try:
            return read_shape(find_model(model) or model, online=asked).parameters
        except ConfigError as error:
            if asked and isinstance(error.__cause__, OSError):
                raise
    return None


def _for_machine(table: dict[str, Any], preset: str) -> None:
    """Put a preset's settings in force; SFT takes those that both stages have, but for the rate."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    settings = PRESETS[preset].settings
    table["grpo"] = {**table.get("grpo", {}), **settings}
    both = {key: value for key, value in settings.items() if key in SftConfig.model_fields and key != "lr"}
    table["sft"] = {**table.get("sft", {}), **both}


def parse_changes(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Dotted keys to values. Raises ConfigError for a text that is not ``key=value``."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping | Iterable):
        raise ConfigError(f"settings are a mapping, as in {{'grpo.max_steps': 20}}, got {given!r}")
    if other := [each for each in given if not isinstance(each, str)]:
        raise ConfigError(f"the key of a setting is a text, as in 'grpo.max_steps', got {other[0]!r}")
    if isinstance(given, Mapping):
        return dict(given)
    changes: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"--set takes key=value, as in --set grpo.max_steps=20, or key= to unset it; got {text!r}"
            )
        changes[key.strip()] = _value(value.strip()) if value.strip() else None
    return changes


def _with_rewards(
    table: dict[str, Any], small: dict[str, Any], rewards: Sequence[Mapping[str, Any]], *, whole: bool
) -> None:
    """Rewards replace the grader; what an environment's own recipe says of its own grader goes with it (``whole``)."""
    for key in ("grader", "rewards", *(("stage", "adaptive", "promises") if whole else ())):
        table.pop(key, None)
    if whole:
        table.get("eval", {}).pop("graders", None)
        for key in [key for key in small if key.startswith("stage.")]:
            del small[key]
    table["rewards"] = [dict(each) for each in rewards]


def sampling_of(spec: EnvironmentSpec) -> SamplingConfig:
    """How the environment's own recipe samples from a language model."""
    table = own_table(spec)
    layer = table.get("lm", table)
    return SamplingConfig.model_validate(layer.get("grpo", {}).get("sampling", {}))


def _set_all(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        _set(table, key, value)


def _set(table: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``a.b.c`` in nested tables, or unset it (None); a number is a place in a list, as in ``stage.0.steps``."""
    *way, last = dotted.split(".")
    inside: Any = table
    for index, part in enumerate(way):
        inside = inside[_place(inside, part, dotted)] if isinstance(inside, list) else inside.setdefault(part, {})
        if not isinstance(inside, dict | list):
            raise ConfigError(f"{dotted}: {'.'.join(way[: index + 1])} is a value, not a table")
    key: Any = _place(inside, last, dotted) if isinstance(inside, list) else last
    if value is not None:
        inside[key] = value
    elif isinstance(inside, list):
        del inside[key]
    else:
        inside.pop(key, None)


def _place(entries: Sequence[Any], part: str, dotted: str) -> int:
    if not part.isdecimal() or int(part) >= len(entries):
        raise ConfigError(f"{dotted}: {part} is no place in a list of {len(entries)}, counted from 0")
    return int(part)


def _value(text: str) -> Any:
    """A value as TOML understands it; what is not TOML is a string, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _validated(table: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(_json_like(table))
    except ValidationError as error:
        lines = [_complaint(each) for each in error.errors()]
        raise ConfigError(f"{source} cannot be used:\n  " + "\n  ".join(lines)) from error


def remote_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """How a teacher behind an API is asked, checked as a recipe's ``teach.remote`` is."""
    return _validated({"environment": "", "teach": {"remote": table}}, "teach.remote").teach.remote.model_dump()


def _json_like(value: Any) -> Any:
    """TOML lists become tuples where records want them; pydantic does it from JSON-like values."""
    return json.loads(json.dumps(value, default=str))  # a date or a time is no setting: pydantic refuses its text


def _complaint(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known, name = _known(error["loc"][:-1]), str(error["loc"][-1])
        hint = trl_hint(name, sft=known if error["loc"][0] == "sft" else ()) or did_you_mean(name, known)
        section = ".".join(map(str, error["loc"][:-1])) or "a recipe"
        others = "" if hint else f"; {section} knows {', '.join(known)}"  # sixty names would hide the suggestion
        return f"{where}: unknown key{hint}{others}"
    message = error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    shown = "" if isinstance(given, Mapping) else f", got {_short(given)}"  # a whole section would hide the message
    return f"{where}: {message}{shown}" if where else message


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:60]}... ({len(shown):,} characters)"


def _known(way: Sequence[Any]) -> list[str]:
    """The keys of the section at ``way``."""
    kind: Any = Recipe
    for part in way:
        fields = getattr(kind, "model_fields", {})
        kind = fields[part].annotation if part in fields else kind  # a place in a list is no field
        kind = next((each for each in get_args(kind) if isinstance(each, type) and issubclass(each, BaseModel)), kind)
    return list(getattr(kind, "model_fields", {}))
