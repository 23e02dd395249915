"""Recipes as tables, before anything is checked: layers and their merge, changes, files. Nothing here needs torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import read_toml
from gradus.core.naming import did_you_mean
from gradus.core.values import Json, JsonDict, as_mapping
from gradus.runs.recipe.starter import Reads, beside, fitted_to_data, starter


@dataclass(frozen=True)
class Layer:
    """Changes by one source. None unsets a key; a number is a place in a list, as in ``stage.0.steps``."""

    name: str
    changes: Json


def merge(layers: Sequence[Layer]) -> tuple[JsonDict, dict[str, str]]:
    """Returns the table of all layers, and the name of the layer that each key comes from (to a depth of two, as in ``grpo.lr``).

    >>> merge([Layer("recipe", {"seed": 1, "grpo.lr": 0.1}), Layer("command line", {"grpo.lr": 0.2, "seed": None})])
    ({'grpo': {'lr': 0.2}}, {'grpo.lr': 'command line'})
    """
    table: JsonDict = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.changes.items():
            _set(table, key, value)
            # A section that is replaced takes the origins of its keys with it.
            origins = {path: name for path, name in origins.items() if not f"{path}.".startswith(f"{key}.")}
            if value is not None:
                origins[".".join(key.split(".")[:2])] = layer.name
    return table, origins


def changes_of(table: Json) -> JsonDict:
    """A recipe's table as changes: each key of a section, and what stands outside of sections.

    >>> changes_of({"seed": 3, "grpo": {"lr": 0.1, "sampling": {"top_k": 5}}})
    {'seed': 3, 'grpo.lr': 0.1, 'grpo.sampling': {'top_k': 5}}
    >>> changes_of({"adaptive": {}})
    {'adaptive': {}}
    """
    changes: JsonDict = {}
    for name, value in table.items():
        section = as_mapping(value)
        changes |= {f"{name}.{key}": entry for key, entry in section.items()}
        if not section:
            changes[name] = value  # [adaptive] alone says something
    return changes


def parse_changes(settings: Json | Sequence[str]) -> JsonDict:
    """Changes as a caller gives them: a mapping, or texts as typed after ``--set``. Raises ConfigError for a text without a key.

    >>> parse_changes(["grpo.max_steps=20", "stage="])
    {'grpo.max_steps': 20, 'stage': None}
    """
    if isinstance(settings, str):
        settings = [settings]
    if isinstance(settings, Mapping):
        return dict(settings)
    changes: JsonDict = {}
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"--set takes key=value, as in --set grpo.max_steps=20, or key= to unset it; got {text!r}"
            )
        changes[key.strip()] = _value(value.strip()) if value.strip() else None
    return changes


def _set(table: JsonDict, dotted: str, value: Any) -> None:
    """Sets a value in a table, or unsets it if it is None; sections that are missing are made."""
    section: Any = table
    *sections, last = dotted.split(".")
    for index, part in enumerate(sections):
        key = _key(section, part, dotted)
        if isinstance(section, dict):
            cast(JsonDict, section).setdefault(key, {})
        section = cast(Any, section)[key]
        if not isinstance(section, dict | list):
            raise ConfigError(f"{dotted}: {'.'.join(sections[: index + 1])} is a value, not a table")
    key = _key(section, last, dotted)
    if value is not None:
        section[key] = deepcopy(value)  # a later layer may change a part of it
    elif isinstance(section, list) or key in section:
        del section[key]


def _key(section: Any, part: str, dotted: str) -> Any:
    """What a part of a dotted key stands for in a section: a place in a list, else itself."""
    if not isinstance(section, list):
        return part
    length = len(cast(list[Any], section))
    if not part.isdecimal() or int(part) >= length:
        raise ConfigError(f"{dotted}: expected a place in a list of {length}, counted from 0, got {part}")
    return int(part)


def _value(text: str) -> Any:
    """A value as TOML understands it; anything else is a string, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def raw_recipe(
    environment: str | EnvironmentSpec | None, path: Path | None, reads: Reads
) -> tuple[JsonDict, str, bool]:
    """The raw recipe, where it came from, and whether ``path`` is the bare name of one that comes with Gradus, and no file."""
    if path is not None and path.is_file():
        return beside(read_toml(path), path.parent), str(path), False
    if path is not None:
        if str(path) not in own_recipes():
            raise ConfigError(
                f"no recipe {path}{did_you_mean(str(path), own_recipes())}; it is a TOML file, or one of "
                f"{', '.join(own_recipes())}"
            )
        return _shipped_table(f"{path}.toml"), str(path), True
    assert environment is not None  # load_recipe refuses a call with neither
    spec = environments.load(environment) if isinstance(environment, str) else environment
    name = environment if isinstance(environment, str) else spec.name
    kind = "settings for" if spec.recipe is None else "recipe of"
    return recipe_of(name, spec, reads), f"the {kind} {name}", False


def recipe_of(environment: str, spec: EnvironmentSpec, reads: Reads = "answer") -> JsonDict:
    """The raw recipe of an environment: its own, or settings to begin with."""
    return starter(environment, spec, reads) if spec.recipe is None else fitted_to_data(own_table(spec), spec)


def own_table(spec: EnvironmentSpec) -> JsonDict:
    """Returns the recipe that an environment brings, as its file has it; empty if it brings none."""
    return {} if spec.recipe is None else _shipped_table(spec.recipe)


def own_recipes() -> list[str]:
    """Names of the recipes of Gradus and of installed packages, for ``--recipe``."""
    return sorted(_recipe_files())


@cache
def _recipe_files() -> dict[str, Traversable]:
    """Recipe files by name. A package brings its own by the entry point group ``gradus.recipes``, which names a package of TOML files."""
    files: dict[str, Traversable] = {}
    # Gradus's own last, so that no package takes the place of one.
    for package in [*(entry.value for entry in entry_points(group="gradus.recipes")), "gradus.recipes"]:
        for file in resources.files(package).iterdir():
            if file.name.endswith(".toml"):
                files[file.name.removesuffix(".toml")] = file
    return files


def _shipped_table(file_name: str) -> JsonDict:
    """A recipe that comes with Gradus or an installed package."""
    return tomllib.loads(_recipe_files()[file_name.removesuffix(".toml")].read_text(encoding="utf-8"))
