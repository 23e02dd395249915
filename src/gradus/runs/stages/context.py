"""One run: a recipe and a folder, with what follows from the two. Every stage is a function of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gradus.core import EnvironmentSpec, Policy
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.shelf import ModelShelf, ShelvedPolicy
from gradus.runs.policies import base_model, make_policy
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.sources import algorithm_sources, environment_sources, reward_sources
from gradus.runs.stages.state import CHECKPOINTS, MadeFrom, RunState
from gradus.training.data.tasks import reserved_ids, training_tasks

GRADED = ("grader", "weights", "rewards", "reward_messages")
TRAINED = ("model", "teach", "sft", "distill", "grpo", *GRADED, "stage", "adaptive")

Select = Callable[["RunContext"], dict[str, Any]]  # the settings that a stage depends on


class RunContext:
    """A recipe and a folder, with the environment, the grader and the state of the folder.

    ``anyway``: go on although the audit failed. ``stored``: a file with episodes of policies that are not rolled out again.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        redo: bool,
        console: Console,
        anyway: bool = False,
        stored: Path | None = None,
    ) -> None:
        self.recipe, self.folder, self.console, self.anyway, self.stored = recipe, folder, console, anyway, stored
        self.spec: EnvironmentSpec = recipe.spec()
        self.grader = self.spec.grader(recipe.grader_name)
        self.schedule = recipe.schedule(self.grader)  # a stage that cannot be graded should fail now
        if self.spec.content is not None:
            reserved = reserved_ids(self.spec, recipe.grpo)
            training_tasks(self.spec, recipe.grpo, 0, 1, reserved)  # and so should too few rows
        self.state = RunState(folder, redo=redo)

    def made_from(self, select: Select) -> MadeFrom:
        """The inputs of a stage: settings, and data and code that they name."""
        settings = select(self)
        rewards = self._rewards if "rewards" in settings else {}
        algorithm = algorithm_sources(self.recipe.grpo.algorithm) if "grpo" in settings else {}
        return MadeFrom(settings, {**self._environment, **rewards, **algorithm})

    @cached_property
    def _environment(self) -> dict[str, str]:
        return environment_sources(self.recipe.environment, self.spec)

    @cached_property
    def _rewards(self) -> dict[str, str]:
        return reward_sources(self.recipe.rewards, self.grader)

    @property
    def base(self) -> str:
        """The model before any training: the given one, or the nano model of this run."""
        return base_model(self.recipe, self.folder)

    def checkpoint(self, stage: str) -> str:
        """The best checkpoint of a training stage, or the model before any."""
        return self.base if stage == "model" else str(self.folder / stage / "best")


def section_of(*names: str) -> Select:
    """Returns the settings of a stage: sections of the recipe, and what every stage depends on."""

    def select(run: RunContext) -> dict[str, Any]:
        # The number of calls at once and their price change no episode.
        dumped = run.recipe.model_dump(mode="json", exclude={"teach": {"remote": {"concurrency", "timeout", "price"}}})
        return {name: dumped[name] for name in ("environment", "seed", *names)}

    return select


def run_policies(run: RunContext, names: Sequence[str]) -> dict[str, Policy]:
    """The policies of the evaluation: the run's checkpoints, one loaded at a time, and any other policy by its name."""
    shelf = ModelShelf()
    return {
        name: _checkpoint(run, name, shelf) if name in CHECKPOINTS else make_policy(run.spec, name, shelf=shelf)
        for name in names
    }


def _checkpoint(run: RunContext, name: str, shelf: ModelShelf) -> Policy:
    """A checkpoint of the run as a policy."""
    stage, greedy = CHECKPOINTS[name]
    grpo = run.recipe.grpo
    options: Mapping[str, Any] = run.recipe.loading() if stage == "model" else run.recipe.loading_trained()
    load = partial(load_model, run.checkpoint(stage), **options)
    make = partial(
        LocalPolicy,
        sampling=grpo.sampling.changed(temperature=0) if greedy else grpo.sampling,
        name=name,
        batch_size=grpo.batch_size,
        grammar=run.spec.language.grammar,
    )
    return ShelvedPolicy(shelf, f"checkpoint {stage}", load, make, name=name)
