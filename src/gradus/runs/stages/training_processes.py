"""SFT and GRPO in several processes on a CPU (``sft.processes``, ``grpo.processes``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from gradus import environments
from gradus.algorithms import is_registered_here
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.training_stages import grpo_stage, read_lessons, sft_stage
from gradus.training.config import GrpoConfig
from gradus.training.distributed.local_processes import beside, together
from gradus.training.distributed.processes import world
from gradus.training.lesson_config import SftConfig


def training_processes(
    recipe: Recipe, stage: Literal["sft", "grpo"], *, model: str, folder: Path, resume: bool, data: Sequence[Path] = ()
) -> AbstractContextManager[None]:
    """Inside, a stage is trained by as many processes as the recipe wants.

    The others load what the recipe names, so one process trains if it alone knows something of that; and so it is on a GPU, under a
    launcher, beside a server that samples, one step off, and in an environment that limits its sessions. ``data``: the files of episodes that SFT trains on.
    """
    config: SftConfig | GrpoConfig = getattr(recipe, stage)
    size = config.processes or 1
    if size == 1:
        return nullcontext()
    if (reason := _alone(recipe, config)) is not None:
        if world().main:
            print(f"{stage}.processes has no effect: {reason}", file=sys.stderr)
        return nullcontext()
    told = {
        "recipe": recipe.model_dump(mode="json", exclude_unset=True),
        "stage": stage,
        "model": model,
        "folder": str(folder),
        "resume": resume,
        "data": [str(path) for path in data],
    }
    return together(size, f"{__name__}:train_beside", told)


def _alone(recipe: Recipe, config: SftConfig | GrpoConfig) -> str | None:
    """The reason why one process trains, in spite of the recipe; None if several can."""
    if world().size > 1 or torch.distributed.is_initialized():
        return "a launcher decides how many there are"
    if config.device != "cpu" and (config.device != "auto" or torch.cuda.is_available()):
        return "several share a CPU only; accelerate launch starts them on GPUs"
    if isinstance(config, GrpoConfig) and (config.sampler != "local" or config.async_level):
        return "grpo.sampler and grpo.async_level already do two things at a time"
    if not known_elsewhere(recipe):
        return "the environment, a reward or the algorithm is known to this process alone; put it into a file, and name that"
    if isinstance(config, GrpoConfig) and recipe.spec().max_sessions is not None:
        return "the environment limits the episodes that run at once, and processes do not count each other's"
    return None


def known_elsewhere(recipe: Recipe) -> bool:
    """True if another process finds the environment, the rewards and the algorithm by their names."""
    head = recipe.environment.partition(":")[0]
    local = head in environments.names() and not environments.is_registered_by_name(recipe.environment)
    given = any(each.function.startswith("python:") for each in recipe.rewards)
    return not (local or given or is_registered_here(recipe.grpo.algorithm))


def train_beside(given: Mapping[str, Any]) -> None:
    """Train in a process that :func:`training_processes` started."""
    with beside(given) as told:
        recipe, folder = Recipe.model_validate(told["recipe"]), Path(told["folder"])
        if told["stage"] == "sft":
            episodes = read_lessons(recipe.spec(), [Path(each) for each in told["data"]])
            sft_stage(recipe, told["model"], episodes, folder, resume=told["resume"])
        else:
            grader = recipe.spec().grader(recipe.grader_name)
            grpo_stage(recipe, told["model"], folder, grader, resume=told["resume"])
