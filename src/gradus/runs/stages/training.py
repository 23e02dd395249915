"""`gradus sft` and `gradus grpo`: one training stage by itself, in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from gradus.core import ConfigError
from gradus.core.files import digest, read_json, write_json
from gradus.policies.local.folders import find_model
from gradus.runs.policies import base_model
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.sources import algorithm_sources, environment_sources, reward_sources
from gradus.runs.stages.training_stages import (
    begun,
    distill_stage,
    grpo_stage,
    make_nano_model,
    read_lessons,
    sft_stage,
)
from gradus.training.distributed.processes import world
from gradus.training.run.folder import SOURCES


def sft_alone(recipe: Recipe, data: Sequence[Path], folder: Path, *, resume: bool) -> Path:
    """`gradus sft`: warm-start a model (a nano model if none is named) on stored episodes; returns the best checkpoint."""
    episodes = read_lessons(recipe.spec(), data)
    made_from = {f"episodes of {path.name}": digest(path) for path in data}
    fresh = recipe.model.path is None and not begun(folder)
    base = base_model(recipe, folder)
    if fresh:
        make_nano_model(recipe, folder / "model")
    try:
        with _same_sources(folder, made_from):
            return sft_stage(recipe, base, episodes, folder, resume=resume).best
    finally:
        if fresh and not begun(folder):  # it failed before it began: the next try may want another model
            shutil.rmtree(folder / "model", ignore_errors=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def distill_alone(recipe: Recipe, folder: Path, *, resume: bool) -> Path:
    """`gradus distill`: teach a model (a nano model if none is named); returns the best checkpoint."""
    spec = recipe.spec()
    base = base_model(recipe, folder)
    if recipe.model.path is None and not begun(folder):
        make_nano_model(recipe, folder / "model")
    with _same_sources(folder, environment_sources(recipe.environment, spec)):
        return distill_stage(recipe, str(find_model(base) or base), folder, resume=resume).best


def grpo_alone(recipe: Recipe, folder: Path, *, resume: bool) -> Path:
    """`gradus grpo`: train ``model.path`` on the recipe's environment; returns the best checkpoint."""
    model = recipe.model.path or ""
    spec = recipe.spec()
    grader = spec.grader(recipe.grader_name)
    model = str(find_model(model) or model)
    made_from = {
        **environment_sources(recipe.environment, spec),
        **reward_sources(recipe.rewards, grader),
        **algorithm_sources(recipe.grpo.algorithm),
    }
    with _same_sources(folder, made_from):
        return grpo_stage(recipe, model, folder, grader, resume=resume).best


@contextmanager
def _same_sources(folder: Path, sources: Mapping[str, str]) -> Iterator[None]:
    """Raise ConfigError if a run that goes on was begun with other data or code than ``sources`` (what it is -> digest).

    The caller's threads are left as they were: what is evaluated next has the digits that it has in a process of its own.
    """
    path, threads = folder / SOURCES, torch.get_num_threads()
    if begun(folder):
        before: Mapping[str, str] = read_json(path) if path.exists() else {}
        other = [name for name, now in sources.items() if before.get(name, now) != now]
        if other:
            raise ConfigError(
                f"{folder} was begun with other {' and other '.join(other)}; put back what it was made from, or choose another folder with --out"
            )
    elif world().main:
        write_json(path, dict(sources))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if world().main and not begun(folder):  # it failed before it began
            path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                folder.rmdir()
