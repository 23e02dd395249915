"""A recipe: everything a run is told, in one TOML file, with nothing it does not know.

Later layers win: the environment's own recipe or the file that was given; with a model, its ``[lm]`` table, whose ``sft`` and
``grpo`` take the place of those for a nano model, and settings by the model's size where nothing else is said; its ``[quick]`` table
if asked for; a preset of a machine; then the command line's ``--seed``, ``--grader`` and every ``--set key=value``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, Grader
from gradus.core.naming import did_you_mean
from gradus.pipeline.policies import find_model
from gradus.pipeline.promises import Promise
from gradus.pipeline.starter import beside, starter
from gradus.planning.defaults import by_size
from gradus.planning.forecast import read_shape
from gradus.planning.hardware import PRESETS
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig
from gradus.rewards import AdaptiveConfig, RewardConfig, RewardSchedule, StageConfig, grader_of, load_rewards
from gradus.training.config import GrpoConfig
from gradus.training.sft import SftConfig

__all__ = [
    "AuditSection",
    "EvalSection",
    "ModelSection",
    "Recipe",
    "TeachSection",
    "load_recipe",
    "own_grader",
    "own_recipes",
    "sampling_of",
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Section):
    """Which model: ``path`` is a folder or a hub name; without one a nano model is made from the environment's text.

    ``keep_history``: keep earlier answers as they were sampled where the chat template would rewrite them (many drop earlier
    reasoning). Where episodes have one turn nothing is ever rewritten, and it is not needed. ``template_options``: passed to the
    template, as in ``{ enable_thinking = false }``.
    """

    path: str | None = None
    keep_history: bool = False
    template_options: dict[str, Any] = Field(default_factory=dict)
    nano: NanoConfig = NanoConfig()


class AuditSection(_Section):
    """The grader's audit. ``budget`` is the number of episodes that the search for a hack may roll out, 0 for no search."""

    enabled: bool = True
    episodes: int = Field(default=40, ge=2)
    budget: int = Field(default=4000, ge=0)


class TeachSection(_Section):
    """Whose episodes warm-start the model. ``enabled`` false leaves the teacher and SFT out: GRPO begins with the model as it is.

    ``policy`` None is the environment's own teacher. ``workers``: processes that roll out, for an environment's own teachers;
    they change no episode.
    """

    enabled: bool = True
    policy: str | None = None
    episodes: int = Field(default=200, ge=1)
    workers: int = Field(default=1, ge=1)


class EvalSection(_Section):
    """Who is compared with whom on what. ``grpo``, ``grpo-greedy``, ``sft`` and ``sft-greedy`` are the run's checkpoints."""

    policies: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()
    episodes: int | None = None
    samples: int = Field(default=1, ge=1, description="episodes of each task")
    pass_k: tuple[int, ...] = Field(default=(), description="for each k, the chance that one of k samples passes")
    pairs: tuple[str, ...] = ()
    shown: int = Field(default=3, ge=0, description="episodes of each policy and condition that the report can open")


_OWN_GRADER = "rewards"


class Recipe(_Section):
    """A whole run.

    ``rewards`` compose a grader of one's own, called ``rewards``, in place of ``grader``.
    ``reward_messages``: the functions get prompts and completions as chat messages, as TRL gives them for chat data.
    ``stage`` and ``adaptive`` change the grader's weights in the course of GRPO; stages set its length. ``trackers``: where
    metrics go besides metrics.jsonl (``tensorboard``, ``wandb``); it changes no stage.
    """

    _edited: frozenset[str] = PrivateAttr(default=frozenset())  # dotted keys that were set on the command line

    environment: str
    grader: str | None = None
    seed: int = 0
    quick: bool = False
    trackers: tuple[str, ...] = ()
    model: ModelSection = ModelSection()
    audit: AuditSection = AuditSection()
    teach: TeachSection = TeachSection()
    sft: SftConfig = SftConfig()
    grpo: GrpoConfig = GrpoConfig()
    rewards: tuple[RewardConfig, ...] = ()
    reward_messages: bool = False
    stage: tuple[StageConfig, ...] = ()
    adaptive: AdaptiveConfig | None = None
    eval: EvalSection = EvalSection()
    promises: tuple[Promise, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _as_long_as_its_stages(cls, table: Any) -> Any:
        """Stages that all say how long they are set ``grpo.max_steps``; where both are given they must agree."""
        stages = table.get("stage") or () if isinstance(table, Mapping) else ()
        lengths = [each["steps"] for each in stages if isinstance(each, Mapping) and isinstance(each.get("steps"), int)]
        grpo: Any = table.get("grpo", {}) if stages else None
        if not isinstance(grpo, Mapping) or len(lengths) < len(stages):
            return table
        if (given := grpo.get("max_steps", sum(lengths))) != sum(lengths):
            raise ValueError(
                f"the stages have {' + '.join(map(str, lengths))} = {sum(lengths)} steps and grpo.max_steps is {given}; "
                "leave max_steps out, or leave out the steps of the last stage, which then lasts to the end"
            )
        return {**table, "grpo": {**grpo, "max_steps": sum(lengths)}}

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.reward_messages and not self.rewards:
            raise ValueError("reward_messages has no effect without rewards; leave it out")
        if self.rewards and self.grader not in (None, _OWN_GRADER):
            raise ValueError(f"a recipe has rewards or a grader, got both; leave out grader = {self.grader!r}")
        begun = sum(stage.steps or 0 for stage in self.stage[:-1])
        if begun >= self.grpo.max_steps:
            raise ValueError(
                f"the stages before the last take {begun} steps, which leaves none of grpo.max_steps = "
                f"{self.grpo.max_steps} for {self.stage[-1].name!r}; raise max_steps"
            )
        return self

    def grpo_sources(self) -> dict[str, str]:
        """GRPO's settings that were given -> where they came from."""
        edited = {key.split(".")[1] for key in self._edited if key.startswith("grpo.")}
        return {name: "command line" if name in edited else "recipe" for name in self.grpo.model_fields_set}

    def spec(self) -> EnvironmentSpec:
        """The environment that this recipe is about, with the recipe's own rewards as its grader if there are any."""
        spec = environments.load(self.environment)
        if not self.rewards:
            return spec
        own = own_grader(spec, self.rewards, steps=self.grpo.max_steps, messages=self.reward_messages)
        return replace(spec, graders={**spec.graders, _OWN_GRADER: own}, default_grader=_OWN_GRADER)

    def template(self) -> dict[str, Any]:
        """How the chat template is used, for ``load_model``. Episodes of one turn have no earlier answers to rewrite."""
        keep = self.model.keep_history or (self.model.path is not None and self.spec().max_turns == 1)
        return {"keep_history": keep or None, "template_options": self.model.template_options or None}

    def schedule(self, grader: Grader) -> RewardSchedule | None:
        """What changes from step to step in the weights; None if nothing does. Raises ConfigError.

        Rewards of one's own have a schedule even where weights stay: their functions may look at the step.
        """
        if not self.stage and self.adaptive is None and not self.rewards:
            return None
        return RewardSchedule(grader.weights, stages=self.stage, adaptive=self.adaptive)


def own_grader(spec: EnvironmentSpec, rewards: Sequence[Any], *, steps: int = 0, messages: bool = False) -> Grader:
    """Reward functions as a grader of the environment; with several turns the reward stands at the last one."""
    loaded = load_rewards(rewards, messages=messages)
    loaded.trainer_state.max_steps = steps
    return grader_of(loaded, name=_OWN_GRADER, summary="rewards of one's own", per_turn=spec.max_turns == 1)


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
) -> Recipe:
    """The recipe of an environment or of a file, with changes.

    ``changes``: dotted keys to values (None unsets a key), or ``key=value`` as typed (``key=`` unsets it). ``rewards`` take the
    place of the grader and of all that the environment's own recipe says of it.
    """
    if environment is None and path is None:
        raise ConfigError("name an environment (gradus envs lists them) or give --recipe FILE")
    table, source = _table(environment, path)
    edits = _changes(changes)
    _for_language_model(table, model or edits.get("model.path") or table.get("model", {}).get("path"))
    small = table.pop("quick", {})
    if isinstance(small, bool):  # a stored recipe says what it is, and has no smaller form
        table["quick"], small = small, {}
    if rewards:
        _without_grader(table, small, whole=path is None)
        table["rewards"] = [dict(each) for each in rewards]
    if quick:
        for key, value in small.items():
            _set(table, key, value)
        table["quick"] = True
    if preset is not None:
        _for_machine(table, preset)
    named: dict[str, Any] = {"model.path": model, "seed": seed, "grader": grader, "environment": environment}
    named["trackers"] = list(trackers) or None
    for key, value in named.items():
        if value is not None:
            _set(table, key, value)
    for key, value in edits.items():
        _set(table, key, value)
    recipe = _validated(table, source)
    recipe._edited = frozenset(edits)
    return recipe


def _for_language_model(table: dict[str, Any], model: str | None) -> None:
    """Put the ``[lm]`` table in force if there is a model; without the table nothing of the recipe is for a nano model."""
    layer = table.pop("lm", None)
    if model is None or (layer is None and table.keys() & {"sft", "grpo"}):
        return
    for key, value in (layer or {}).items():
        table[key] = {**table.get(key, {}), **value} if key in ("teach", "eval", "audit") else value
    for stage, settings in by_size(_parameters(model)).items():
        table[stage] = {**settings, **(layer or {}).get(stage, {})}
    table.pop("promises", None)  # they are about the nano model


def _parameters(model: str) -> int | None:
    """How many parameters a model has, by its config; None if that is not at hand."""
    try:
        return read_shape(find_model(model) or model, online=False).parameters
    except ConfigError:
        return None


def _for_machine(table: dict[str, Any], preset: str) -> None:
    """Put a preset's settings in force; SFT takes those that both stages have, but for the rate."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    settings = PRESETS[preset].settings
    table["grpo"] = {**table.get("grpo", {}), **settings}
    both = {key: value for key, value in settings.items() if key in SftConfig.model_fields and key != "lr"}
    table["sft"] = {**table.get("sft", {}), **both}


def _changes(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Dotted keys to values. Raises ConfigError for a text that is not ``key=value``."""
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


def _without_grader(table: dict[str, Any], small: dict[str, Any], *, whole: bool) -> None:
    """Rewards replace the grader; what an environment's own recipe says of its own grader goes with it (``whole``)."""
    for key in ("grader", "rewards", *(("stage", "adaptive", "promises") if whole else ())):
        table.pop(key, None)
    if whole:
        table.get("eval", {}).pop("graders", None)
        for key in [key for key in small if key.startswith("stage.")]:
            del small[key]


def _table(environment: str | None, path: Path | None) -> tuple[dict[str, Any], str]:
    """The raw recipe and where it came from."""
    if path is not None:
        try:
            shipped = _own(path)
            table = tomllib.loads(shipped or path.read_text(encoding="utf-8"))
            return (table if shipped else beside(table, path.parent)), str(path)
        except FileNotFoundError as error:
            raise ConfigError(
                f"no recipe {path}{did_you_mean(str(path), own_recipes())}; it is a TOML file, or one of "
                f"{', '.join(own_recipes())}"
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    assert environment is not None
    spec = environments.load(environment)
    if spec.recipe is None:
        return starter(environment, spec), f"the settings for {environment}"
    text = resources.files("gradus.recipes").joinpath(spec.recipe).read_text(encoding="utf-8")
    return tomllib.loads(text), f"the recipe of {environment}"


def sampling_of(spec: EnvironmentSpec) -> SamplingConfig:
    """How the environment's own recipe samples from a language model."""
    table: dict[str, Any] = {}
    if spec.recipe is not None:
        table = tomllib.loads(resources.files("gradus.recipes").joinpath(spec.recipe).read_text(encoding="utf-8"))
    layer = table.get("lm", table)
    return SamplingConfig.model_validate(layer.get("grpo", {}).get("sampling", {}))


def own_recipes() -> list[str]:
    """Names of the recipes that come with Gradus, for ``--recipe``."""
    return sorted(
        file.name.removesuffix(".toml") for file in resources.files("gradus.recipes").iterdir() if ".toml" in file.name
    )


def _own(path: Path) -> str | None:
    """The text of a recipe that comes with Gradus, if ``path`` is the bare name of one and no file."""
    if path.exists() or str(path) not in own_recipes():
        return None
    return resources.files("gradus.recipes").joinpath(f"{path}.toml").read_text(encoding="utf-8")


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
    except tomllib.TOMLDecodeError:
        return text


def _validated(table: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(_json_like(table))
    except ValidationError as error:
        lines = [_complaint(each) for each in error.errors()]
        raise ConfigError(f"{source} cannot be used:\n  " + "\n  ".join(lines)) from error


def _json_like(value: Any) -> Any:
    """TOML lists become tuples where records want them; pydantic does it from JSON-like values."""
    return json.loads(json.dumps(value))


def _complaint(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _known(error["loc"][:-1])
        hint = did_you_mean(str(error["loc"][-1]), known)
        section = ".".join(map(str, error["loc"][:-1])) or "a recipe"
        return f"{where}: unknown key{hint}; {section} knows {', '.join(known)}"
    message = error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    shown = "" if isinstance(given, Mapping) else f", got {given!r}"  # a whole section would hide the message
    return f"{where}: {message}{shown}" if where else message


def _known(way: Sequence[Any]) -> list[str]:
    """The keys of the section at ``way``."""
    kind: Any = Recipe
    for part in way:
        fields = getattr(kind, "model_fields", {})
        kind = fields[part].annotation if part in fields else kind  # a place in a list is no field
        kind = next((each for each in get_args(kind) if isinstance(each, type) and issubclass(each, BaseModel)), kind)
    return list(getattr(kind, "model_fields", {}))
