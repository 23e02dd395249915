"""A recipe: everything a run is told, in one TOML file, with nothing it does not know.

Later layers win: the environment's own recipe or the file that was given, its ``[quick]`` table if asked for, then the
command line's ``--model``, ``--seed``, ``--grader`` and every ``--set key=value``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.pipeline.claims import Claim
from gradus.policies import NanoConfig
from gradus.training import GrpoConfig, SftConfig

__all__ = ["AuditSection", "EvalSection", "ModelSection", "Recipe", "TeachSection", "load_recipe"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Section):
    """Which model: ``path`` is a folder or a hub name; without one a nano model is made from the environment's text."""

    path: str | None = None
    nano: NanoConfig = NanoConfig()


class AuditSection(_Section):
    """The grader's audit. ``budget`` is the number of episodes that the search for a hack may play, 0 for no search."""

    enabled: bool = True
    episodes: int = Field(default=40, ge=2)
    budget: int = Field(default=4000, ge=0)


class TeachSection(_Section):
    """Whose episodes prime the model. ``policy`` None is the environment's own teacher."""

    policy: str | None = None
    episodes: int = Field(default=200, ge=1)


class EvalSection(_Section):
    """Who is compared with whom on what. ``grpo``, ``grpo-greedy``, ``sft`` and ``sft-greedy`` are the run's checkpoints."""

    policies: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()
    episodes: int | None = None
    pairs: tuple[str, ...] = ()
    shown: int = Field(default=3, ge=0, description="episodes of each policy and condition that the report can open")


class Recipe(_Section):
    """A whole run."""

    environment: str
    grader: str | None = None
    seed: int = 0
    quick: bool = False
    model: ModelSection = ModelSection()
    audit: AuditSection = AuditSection()
    teach: TeachSection = TeachSection()
    sft: SftConfig = SftConfig()
    grpo: GrpoConfig = GrpoConfig()
    eval: EvalSection = EvalSection()
    claims: tuple[Claim, ...] = ()

    def spec(self) -> EnvironmentSpec:
        """The environment that this recipe is about."""
        return environments.load(self.environment)


def load_recipe(
    environment: str | None,
    *,
    path: Path | None = None,
    model: str | None = None,
    changes: Sequence[str] = (),
    quick: bool = False,
    seed: int | None = None,
    grader: str | None = None,
) -> Recipe:
    """The recipe of an environment or of a file, with the command line's changes."""
    if environment is None and path is None:
        raise ConfigError("name an environment (gradus envs lists them) or give --recipe FILE")
    table, source = _table(environment, path)
    small = table.pop("quick", {})
    if isinstance(small, bool):  # a stored recipe says what it is, and has no smaller form
        table["quick"], small = small, {}
    if quick:
        for key, value in small.items():
            _set(table, key, value)
        table["quick"] = True
    named: dict[str, Any] = {"model.path": model, "seed": seed, "grader": grader, "environment": environment}
    for key, value in named.items():
        if value is not None:
            _set(table, key, value)
    for change in changes:
        key, found, value = change.partition("=")
        if not found:
            raise ConfigError(f"--set takes key=value, as in --set grpo.max_steps=20; got {change!r}")
        _set(table, key.strip(), _value(value.strip()))
    return _validated(table, source)


def _table(environment: str | None, path: Path | None) -> tuple[dict[str, Any], str]:
    """The raw recipe and where it came from."""
    if path is not None:
        try:
            return tomllib.loads(path.read_text(encoding="utf-8")), str(path)
        except FileNotFoundError as error:
            raise ConfigError(f"no recipe {path}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    assert environment is not None
    spec = environments.load(environment)
    if spec.recipe is None:
        return {"environment": environment}, f"the defaults for {environment}"
    text = resources.files("gradus.recipes").joinpath(spec.recipe).read_text(encoding="utf-8")
    return tomllib.loads(text), f"the recipe of {environment}"


def _set(table: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``a.b.c`` in nested tables."""
    *way, last = dotted.split(".")
    for index, part in enumerate(way):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {'.'.join(way[: index + 1])} is a value, not a table")
        table = inner
    table[last] = value


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
        known = ", ".join(_known(error["loc"][:-1]))
        return f"{where}: unknown key; {'.'.join(map(str, error['loc'][:-1])) or 'a recipe'} knows {known}"
    return f"{where}: {error['msg']}, got {error.get('input')!r}"


def _known(way: Sequence[Any]) -> list[str]:
    """The keys of the section at ``way``."""
    kind: Any = Recipe
    for part in way:
        fields = getattr(kind, "model_fields", {})
        kind = fields[part].annotation if part in fields else None
    return list(getattr(kind, "model_fields", {}))
