"""Recipes as the tables of their files, before anything is checked; nothing here needs torch."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import read_toml
from gradus.core.naming import did_you_mean
from gradus.runs.recipe.starter import beside, starter, with_room_for_rows, within_conditions


def raw_recipe(environment: str | None, path: Path | None) -> tuple[dict[str, Any], str, bool]:
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
    assert environment is not None
    spec = environments.load(environment)
    kind = "settings for" if spec.recipe is None else "recipe of"
    return recipe_of(environment, spec), f"the {kind} {environment}", False


def recipe_of(environment: str, spec: EnvironmentSpec) -> dict[str, Any]:
    """The raw recipe of an environment: its own, or settings to begin with."""
    table = starter(environment, spec) if spec.recipe is None else within_conditions(own_table(spec), spec)
    return with_room_for_rows(table, spec)


def own_table(spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns the recipe that an environment brings, as its file has it; empty if it brings none."""
    return {} if spec.recipe is None else _shipped_table(spec.recipe)


def own_recipes() -> list[str]:
    """Names of the recipes of Gradus and of installed packages, for ``--recipe``."""
    return sorted(_recipe_files())


@cache
def _recipe_files() -> dict[str, Traversable]:
    """Recipe files by name. A package brings its own by the entry point group ``gradus.recipes``, which names a package of TOML files."""
    packages = ["gradus.recipes", *(each.value for each in entry_points(group="gradus.recipes"))]
    files = (file for package in reversed(packages) for file in resources.files(package).iterdir())
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def _shipped_table(file_name: str) -> dict[str, Any]:
    return tomllib.loads(_recipe_files()[file_name.removesuffix(".toml")].read_text(encoding="utf-8"))
