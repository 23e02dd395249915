"""One run: a job and a folder, with what follows from the two. Every stage is a function of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import cached_property, partial
from pathlib import Path

from rich.console import Console

from gradus.core import Policy
from gradus.core.files import digest
from gradus.core.printing import quiet
from gradus.core.terminal import Terminal
from gradus.policies.local.loading import load_model
from gradus.policies.local.shelf import ModelShelf, ShelvedPolicy
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.tinker.served import served_policy
from gradus.runs.job import Job
from gradus.runs.manifest import CHECKPOINTS, Manifest, StageInputs
from gradus.runs.money import Ledger
from gradus.runs.policies import make_policy
from gradus.runs.sources import algorithm_sources, data_sources, environment_sources, reward_sources
from gradus.training.data.tasks import reserved_ids, training_tasks
from gradus.training.distributed.processes import world
from gradus.training.run.validation import sampling_policy

GRADED = ("grader", "weights", "rewards", "reward_messages")
TRAINED = ("model", "teach", "sft", "distill", "grpo", *GRADED, "stage", "adaptive")


class RunContext:
    """A job and a folder, with the folder's manifest.

    ``anyway``: go on although the audit failed. ``rolled_out``: a file with episodes of policies that are not rolled out again. ``lessons``: files
    of episodes that SFT learns, in place of those of the run's teacher. ``stages``: the names of those that are done in the run.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        redo: bool,
        console: Console | None = None,
        anyway: bool = False,
        rolled_out: Path | None = None,
        lessons: Sequence[Path] = (),
        stages: Collection[str] = (),
    ) -> None:
        self.job, self.folder, self.anyway = job, folder, anyway
        self.console = console or Terminal(quiet=quiet())
        self.recipe, self.spec, self.grader = job.recipe, job.environment, job.grader
        self.rolled_out, self.lessons, self.stages = rolled_out, lessons, stages
        # A schedule of other components, or too few rows to train on, should fail now and not behind the stages before GRPO.
        job.schedule()
        if self.spec.content is not None:
            reserved = reserved_ids(self.spec, self.recipe.grpo)
            training_tasks(self.spec, self.recipe.grpo, 0, 1, reserved)
        self.counts = TokenCounts()  # of a server, in the stage that is being done
        self.manifest = Manifest(folder, redo=redo, writing=world().main)
        self.ledger = Ledger(job, self.manifest, self.counts)

    def inputs(self, sections: Sequence[str]) -> StageInputs:
        """The inputs of a stage: sections of the recipe, and the data and the code that they name."""
        # How a teacher is called changes no episode.
        dumped = self.recipe.model_dump(mode="json", exclude={"teach": {"remote": {"concurrency", "timeout"}}})
        settings = {name: dumped[name] for name in ("environment", "seed", *sections)}
        if "model" in settings:  # a run can be moved together with its model, and be named in another way
            # Compared as seen from the run's folder: a path from elsewhere would make a moved run another one.
            settings["model"]["path"] = _as_seen_from(self.folder, self.recipe.model.path)
            if self.recipe.trainer != "local":  # a server may move
                settings["trainer"] = self.recipe.trainer.partition(":")[0]
        data, code, rewards = self._sources
        # Only stages that grade or train depend on the code of rewards, and only GRPO on its algorithm's.
        if "rewards" in settings:
            code = code | rewards
        if "grpo" in settings:
            code = code | algorithm_sources(self.recipe.grpo.algorithm)
        if "sft" in settings:
            data = data | {f"episodes of {path.name}": digest(path) for path in self.lessons}
        # No |= above: the three are shared by all stages.
        return StageInputs(settings=settings, data=data, code=code)

    @cached_property
    def _sources(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Digests of the rows, of the environment's code, and of that of the rewards."""
        return data_sources(self.job), environment_sources(self.job), reward_sources(self.job)

    @property
    def base(self) -> str:
        """The model before any training."""
        return self.job.base_model(self.folder)

    def checkpoint(self, stage: str) -> str:
        """The best checkpoint of a training stage, or the model before any."""
        return self.base if stage == "model" else str(self.folder / stage / "best")


def _as_seen_from(folder: Path, model: str | None) -> str | None:
    """A model's folder as a path from the run's folder if both lie beside each other; another name as it is."""
    if model is None or not Path(model).exists():
        return model
    path, run = Path(model).resolve(), folder.resolve()
    return os.path.relpath(path, run) if run.parent in path.parents else str(path)


def run_policies(run: RunContext, names: Sequence[str]) -> dict[str, Policy]:
    """The policies of the evaluation: the run's checkpoints, one loaded at a time, and any other policy by its name.

    A policy of the environment comes before a checkpoint of its name: ``prompted`` may be the environment's own.
    """
    shelf = ModelShelf()
    policies: dict[str, Policy] = {}
    for name in names:
        is_checkpoint = name in CHECKPOINTS and name not in run.spec.policies
        policy = _checkpoint(run, name, shelf) if is_checkpoint else make_policy(run.spec, name, shelf=shelf)
        run.ledger.charge(policy, run.recipe.prices.evaluation)
        policies[name] = policy
    return policies


def _checkpoint(run: RunContext, name: str, shelf: ModelShelf) -> Policy:
    """A checkpoint of the run as a policy."""
    stage, greedy = CHECKPOINTS[name]
    grpo, model = run.recipe.grpo, run.checkpoint(stage)
    address = run.job.address(model)
    if address is not None:
        sampling = grpo.sampling.changed(temperature=0 if greedy else None)
        return served_policy(address, run.job.words(address, model), sampling, name=name, counts=run.counts)
    make = partial(sampling_policy, spec=run.spec, config=grpo, name=name, greedy=greedy)
    prompt = run.recipe.eval.prompted if name == "prompted" else None
    load = partial(load_model, model, **run.job.loading(trained=stage != "model"))
    return ShelvedPolicy(shelf, f"checkpoint {stage}", load, make, name=name, system_prompt=prompt)
