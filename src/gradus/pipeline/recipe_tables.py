"""Recipes as the tables of their files, before anything is checked; nothing here needs torch."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.naming import did_you_mean
from gradus.pipeline.row_sizes import with_room_for_rows
from gradus.pipeline.starter import beside, starter, within_conditions


def raw_recipe(environment: str | None, path: Path | None) -> tuple[dict[str, Any], str]:
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
        except OSError as error:
            raise ConfigError(f"{path} is no recipe that can be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    assert environment is not None
    spec = environments.load(environment)
    kind = "settings for" if spec.recipe is None else "recipe of"
    return recipe_of(environment, spec), f"the {kind} {environment}"


def recipe_of(environment: str, spec: EnvironmentSpec) -> dict[str, Any]:
    """The raw recipe of an environment: its own, or settings to begin with."""
    if spec.recipe is None:
        return with_room_for_rows(starter(environment, spec), spec)
    table = tomllib.loads(resources.files("gradus.recipes").joinpath(spec.recipe).read_text(encoding="utf-8"))
    return with_room_for_rows(within_conditions(table, spec), spec)


def own_recipes() -> list[str]:
    """Names of the recipes that come with Gradus, for ``--recipe``."""
    return sorted(
        file.name.removesuffix(".toml") for file in resources.files("gradus.recipes").iterdir() if ".toml" in file.name
    )


def is_shipped(path: Path) -> bool:
    """Whether ``path`` is the bare name of a recipe that comes with Gradus, and no file."""
    return not path.is_file() and str(path) in own_recipes()


def _own(path: Path) -> str | None:
    """The text of a recipe that comes with Gradus, if ``path`` is the bare name of one and no file."""
    if not is_shipped(path):
        return None
    return resources.files("gradus.recipes").joinpath(f"{path}.toml").read_text(encoding="utf-8")
