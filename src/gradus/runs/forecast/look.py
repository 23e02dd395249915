"""The look at the base before a run spends anything: prompts, what the base earns, a warm start if it must be, and the plan of time."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.environments.verifiable.items import TableTasks
from gradus.rollouts import roll_out
from gradus.runs.forecast.base_probe import BaseProbe, load_base, mean_reward, probe_base, way_out, with_sft_step
from gradus.runs.forecast.prompts import PromptTrial, try_prompts
from gradus.runs.forecast.time import TimePlan, plan_time, seconds_of, teaches_rows
from gradus.runs.job import Job
from gradus.runs.manifest import Manifest, StageInputs
from gradus.runs.recipe.starter import taught_rows
from gradus.runs.sources import reward_sources
from gradus.training.distributed.processes import world

ON_A_CPU = "1h"  # for a published model, unless a time is given
_TRIED_ANSWERS = 8
# Of the reference answers' reward: a base below it learns faster from them than from its own few right answers.
_FAR = 0.5


@frozen_record
class BaseLook:
    """A probe and what follows from it: prompts, changes of the recipe, and the plan of time."""

    trial: PromptTrial | None  # None if no prompts were tried
    probe: BaseProbe
    warm_start: str  # a sentence if SFT was added; else empty
    plan: TimePlan
    changes: Json
    # Why there is nothing to learn from, or no time for it, and the way out; None if there is something, or SFT comes first.
    problem: tuple[str, str] | None

    def lines(self) -> list[str]:
        """Returns what a person reads before the run."""
        prompts = self.trial.line() if self.trial else ""
        return list(filter(None, [prompts, *self.probe.lines(), self.warm_start, *self.plan.lines()]))


def is_probed(job: Job) -> bool:
    """Says if a run looks at its base first: a published model that this process samples from, not at toy size."""
    recipe = job.recipe
    is_here = recipe.grpo.sampler == "local" and recipe.trainer == "local"
    # Several processes would each probe and choose for themselves, and then train with different settings.
    return job.pretrained and is_here and not recipe.quick and world().size == 1


def look_at_base(job: Job, *, time: str | None, fixed: Collection[str], seeds: int = 1) -> BaseLook:
    """Tries prompts, probes the base, and fits the settings to ``time``, on a CPU by default to an hour. ``fixed``: keys that a person set."""
    import torch

    began = clock.perf_counter()
    time = time or (None if torch.cuda.is_available() else ON_A_CPU)
    limit = None if time is None else seconds_of(time) / seeds
    loaded, load_seconds = load_base(job)
    changes: JsonDict = {}
    # The prompt comes first: the probe measures the answers that the run will train on.
    trial = try_prompts(job, loaded, fixed)
    if trial is not None:
        changes |= trial.changes()
        job = job.with_settings(changes)
    probe = probe_base(job, loaded, load_seconds)
    warm_start, problem = "", None
    if needs_warm_start(job, probe, fixed, short=trial is not None):
        settings = {name: value for name, value in warm_start_settings(job).items() if name not in fixed}
        changes |= settings
        job = job.with_settings(settings)
        warm_start = "the base earns far less than the reference answers, so SFT on {count} of them comes first"
    elif probe.silent and not job.recipe.teach.enabled:
        why, remedy = way_out(probe, job.environment, job.recipe.grpo)
        problem = f"the base has nothing to learn from here: {why}", remedy
    if teaches_rows(job):  # last, because it trains the model that was probed
        probe = with_sft_step(probe, job, loaded)
    spent = clock.perf_counter() - began
    # Seeds of one run should have the same number of steps, so that none of them ends by the clock.
    plan = plan_time(job, probe, probe_seconds=spent, limit=limit, fixed=fixed, timed=seeds == 1)
    return BaseLook(
        trial=trial,
        probe=probe,
        warm_start=warm_start.format(count=plan.recipe.teach.episodes),
        plan=plan,
        changes={**changes, **plan.changes},
        problem=problem or plan.problem,
    )


def needs_warm_start(job: Job, probe: BaseProbe, fixed: Collection[str], *, short: bool) -> bool:
    """Says if a run begins with SFT on reference answers: they earn far more than the base, and a person did not decide otherwise.

    ``short``: answers are a few words. Then less than half of their reward is far; longer answers of a base that has a signal may reason,
    which a bare reference answer would unlearn.
    """
    spec = job.environment
    decided = job.recipe.teach.enabled or "teach.enabled" in fixed
    if decided or not isinstance(spec.data_set, TableTasks) or spec.teacher is None:
        return False
    if not short and not probe.silent:
        return False
    tasks = [spec.train_task(index) for index in range(_TRIED_ANSWERS)]
    teacher = spec.policy(spec.teacher)
    rolled = roll_out(spec, teacher, tasks, seed=job.recipe.seed, key=("reference",), grader=job.grader)
    reference = mean_reward(rolled.episodes).mean
    # Without a signal GRPO cannot begin, so that any higher reward of the reference answers is worth learning.
    share = 1.0 if probe.silent else _FAR
    return reference is not None and share * reference > (probe.reward.mean or 0.0)


def warm_start_settings(job: Job) -> JsonDict:
    """Returns the settings of a warm start on reference answers; the model after it is in the tables too."""
    rows = job.environment.data_set
    assert isinstance(rows, TableTasks)
    taught, first_task = taught_rows(rows.size("train"))
    return {
        "teach.enabled": True,
        "teach.episodes": taught,
        "grpo.first_task": first_task,
        "sft.batch_size": 16,
        # The epochs are the most: it ends when the loss on held-out answers has not fallen for three of them.
        "sft.epochs": 20,
        "sft.patience": 3,
        "sft.validation_share": 0.15,
    }


def fitted_job(
    job: Job,
    folder: Path,
    *,
    time: str | None,
    fixed: Collection[str],
    anyway: bool,
    tell: Callable[[str], None],
    seeds: int = 1,
) -> Job:
    """The job with settings that fit base and time; a folder that has them keeps them. Raises ConfigError if nothing can be learned."""
    if not is_probed(job):
        if time is not None:
            raise ConfigError(
                "a time fits a published model that is sampled from here; leave out --time, or give --model"
            )
        return job
    manifest = Manifest(folder)
    settings = {"recipe": job.recipe.model_dump(mode="json"), "time": time}
    inputs = StageInputs(settings=settings, data=reward_sources(job))
    # A second look would measure other times and fit other settings, which the stages that are done do not have.
    if manifest.begun("grpo") or manifest.done("plan", inputs):
        stored: Json = manifest.plan.get("settings", {})
        return job.with_settings({name: value for name, value in stored.items() if name not in fixed})
    with manifest.doing("plan", inputs) as record:
        look = look_at_base(job, time=time, fixed=fixed, seeds=seeds)
        for line in look.lines():
            tell(line)
        if look.problem is not None and not anyway:
            why, remedy = look.problem
            raise ConfigError(f"{why}; {remedy}; or run with --anyway (in Python anyway=True)")
        # Steps that a person typed are all done, and several seeds have no deadline of one run.
        limit = None if "grpo.max_steps" in fixed or seeds > 1 else look.plan.limit
        plan = {"seconds": dict(look.plan.seconds), "limit": limit}
        record |= {"settings": dict(look.changes), "probe": asdict(look.probe), "plan": plan}
    return job.with_recipe(look.plan.recipe)
