"""The stages of `gradus run`, one after another, and what commands share. Imported lazily: recipes know the trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.pipeline.person import PersonPolicy
    from gradus.pipeline.policies import find_model, make_policy
    from gradus.pipeline.progress import progress_bar
    from gradus.pipeline.recipe import Recipe, load_recipe
    from gradus.pipeline.stages import run_recipe
    from gradus.pipeline.teaching import TeachSummary, teach

_HOME = {
    "PersonPolicy": "person",
    "Recipe": "recipe",
    "TeachSummary": "teaching",
    "find_model": "policies",
    "load_recipe": "recipe",
    "make_policy": "policies",
    "progress_bar": "progress",
    "run_recipe": "stages",
    "teach": "teaching",
}

__all__ = [
    "PersonPolicy",
    "Recipe",
    "TeachSummary",
    "find_model",
    "load_recipe",
    "make_policy",
    "progress_bar",
    "run_recipe",
    "teach",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
