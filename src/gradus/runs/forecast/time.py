"""Plans the seconds of each stage of a run, and fits the settings of a recipe to the time that there is."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.environments.verifiable.items import TableTasks
from gradus.evidence.reports.verdict import STUDENTS
from gradus.runs.forecast.base_probe import BaseProbe
from gradus.runs.job import Job
from gradus.runs.recipe.record import Recipe
from gradus.stats import LEAST_UNITS, format_seconds

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
_GROUPS = (16, 8, 4)
_ENOUGH, _LEAST, _MOST = 40, 10, 200  # steps: worth fewer groups, worth a run, and more than most need
_OFTEN = 5  # steps between validations, at least
_JUDGED = 0.25  # of the time, at most, for the evaluation
_TAUGHT = 0.6  # of the time, at most, for SFT; what it leaves is GRPO's
_PASSES = 4  # of SFT over its rows, before it takes more rows
_MORE_ROWS = 128  # at once
_EXPLORED = 256  # rows, at least, that are GRPO's alone
_TEXT_AUDIT = 5.0, 1000  # seconds and answers of an audit of one turn, besides what the grader takes for them
_AUDIT_POLICIES = 5  # of the panel of an environment
_CHECKED = 5.0  # what loading a model and comparing its sampler with a plain forward take, as a multiple of loading it
_FORWARD = 1 / 3  # of the arithmetic of a forward and a backward pass
_KEEPS = 2.0  # what loading and storing a model take in a training stage, as a multiple of loading it
_TOLERANCE = 1.1  # a plan that is this much longer than the time is refused


def seconds_of(text: str) -> float:
    """Reads ``20m``, ``2h`` or ``90s``. Raises ConfigError.

    >>> seconds_of("20m"), seconds_of("1.5 h")
    (1200.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)\s*", str(text))
    if match is None or not float(match[1]):
        raise ConfigError(f"a time is a number and s, m or h, as in --time 20m, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@frozen_record
class TimePlan:
    """The recipe that fits a time, and how long each stage will take."""

    recipe: Recipe
    changes: Json  # of the recipe that was given
    seconds: Mapping[str, float]  # by stage, the probe among them
    steps: int  # of GRPO in that time; the recipe's are the most, and the run finds out how many fit
    limit: float | None  # seconds of the whole run; None for any

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())

    @property
    def problem(self) -> tuple[str, str] | None:
        """Says why the plan does not fit the time, and the way out; None if it fits."""
        if self.limit is None or self.total <= _TOLERANCE * self.limit:
            return None
        why = f"the shortest run with these settings takes {format_seconds(self.total)}, and the time is {format_seconds(self.limit)}"
        minutes = math.ceil(self.total / 60)
        return why, f"give --time {minutes}m, a smaller grpo.group_size, shorter answers, or a smaller model"

    def lines(self) -> list[str]:
        """Returns the plan as a table of seconds, and the settings in a line."""
        title, row = "plan   ", "seconds"
        for name, seconds in {**self.seconds, "all": self.total}.items():
            cell = f"{seconds:.0f}"
            width = max(len(name), len(cell))
            title += f"  {name:>{width}}"
            row += f"  {cell:>{width}}"
        grpo = self.recipe.grpo
        answers = f"{grpo.groups} x {grpo.group_size} answers of at most {grpo.sampling.max_new_tokens} tokens"
        limit = f", for {format_seconds(self.limit)} (--time changes it)" if self.limit is not None else ""
        about = "" if self.steps == grpo.max_steps else "about "
        return [title, row, f"{about}{self.steps} steps of {answers}{limit}"]


def plan_time(
    job: Job,
    probe: BaseProbe,
    *,
    probe_seconds: float,
    limit: float | None,
    fixed: Collection[str],
    timed: bool = True,
) -> TimePlan:
    """Fits the settings of a job to ``limit`` seconds and plans each stage.

    ``fixed``: keys that a person set; they stay. ``timed``: GRPO ends when the time is up, so that its steps are an estimate; otherwise
    they are a setting, round numbers, so that the same machine gives the same ones.
    """
    fitted = _Fitting(job, probe, probe_seconds, fixed)
    if limit is not None:
        fitted.shorten_answers()
        fitted.shorten_evaluation(_JUDGED * limit)
        fitted.fit_sft(limit)
        fitted.choose_steps(limit, timed=timed and depends_on_no_length(job.recipe))
    return TimePlan(
        recipe=fitted.job.recipe,
        changes=fitted.changes,
        seconds=fitted.seconds(),
        steps=fitted.steps,
        limit=limit,
    )


def teaches_rows(job: Job) -> bool:
    """Says if SFT learns the reference answers of rows."""
    spec = job.environment
    return job.recipe.teach.enabled and isinstance(spec.data_set, TableTasks) and spec.teacher is not None


def depends_on_no_length(recipe: Recipe) -> bool:
    """Says if the first steps of a run are the same however many follow: no rate or weight falls towards the last one."""
    grpo = recipe.grpo
    return grpo.schedule == "constant" and not grpo.warmup and grpo.entropy_schedule is None and not recipe.stage


class _Fitting:
    """A job whose settings are changed one after another until they fit."""

    def __init__(self, job: Job, probe: BaseProbe, probe_seconds: float, fixed: Collection[str]) -> None:
        self.job, self.probe, self.probe_seconds, self.fixed = job, probe, probe_seconds, fixed
        self.changes: JsonDict = {}
        self.steps = job.recipe.grpo.max_steps

    def seconds(self) -> dict[str, float]:
        return {"probe": self.probe_seconds, **stage_seconds(self.job, self.probe, self.steps)}

    def is_fixed(self, key: str) -> bool:
        # A person's sampling = { ... } is one key, as a recipe's layers count them, and it holds for each of its settings.
        return key in self.fixed or key.rpartition(".")[0] in self.fixed

    def set_to(self, key: str, value: Any) -> None:
        if not self.is_fixed(key):
            self.changes[key] = value
            self.job = self.job.with_settings({key: value})

    def shorten_answers(self) -> None:
        """Limits answers to half as many tokens again as the longest answer that earned something."""
        paid = self.probe.paid
        if paid is not None:
            most = self.job.recipe.grpo.sampling.max_new_tokens
            enough = [length for length in _LENGTHS if length >= 1.5 * paid]
            self.set_to("grpo.sampling.max_new_tokens", min([most, *enough]))

    def shorten_evaluation(self, limit: float) -> None:
        """Evaluates on fewer tasks, at least as many of each condition as a claim needs."""
        planned = self.seconds()["eval"]
        if planned <= limit:
            return
        seeds = max(len(condition.seeds) for condition in self.job.environment.conditions.values())
        episodes = self.job.recipe.eval.episodes or seeds
        # A round number: the same machine gives the same one, although no two of its probes take the same time.
        fewer = int(limit / planned * episodes) // 10 * 10
        self.set_to("eval.episodes", max(min(LEAST_UNITS, seeds), fewer))

    def fit_sft(self, limit: float) -> None:
        """Fits rows and passes of a warm start on rows to a share of the time, and to what the shortest GRPO leaves.

        More rows come before more passes over the same ones, which a model learns by heart.
        """
        if not teaches_rows(self.job):
            return
        recipe = self.job.recipe
        shortest_step = recipe.grpo.model_copy(update={"groups": min(_GROUPS[-1], recipe.grpo.groups)})
        others = {"probe": self.probe_seconds, **stage_seconds(self.job, self.probe, 0), "sft": 0.0}
        most = limit - sum(others.values()) - _LEAST * self.probe.step_seconds(shortest_step)
        most = min(_TAUGHT * limit, most)

        def fits(taught: int, epochs: int) -> bool:
            return epochs <= recipe.sft.epochs and _sft_seconds(recipe, self.probe, taught, epochs) <= most

        taught = recipe.teach.episodes
        if not self.is_fixed("teach.episodes"):
            rows = self.job.environment.data_set
            assert rows is not None
            while taught + _MORE_ROWS <= rows.size("train") - _EXPLORED and fits(taught + _MORE_ROWS, _PASSES):
                taught += _MORE_ROWS
        if taught > recipe.teach.episodes:
            self.set_to("teach.episodes", taught)
            self.set_to("grpo.first_task", taught)
        epochs = 1  # even if it does not fit: the plan then says that the time is too short
        while fits(taught, epochs + 1):
            epochs += 1
        self.set_to("sft.epochs", epochs)

    def choose_steps(self, limit: float, *, timed: bool) -> None:
        """Chooses groups and steps for what the other stages leave; fewer groups if forty steps do not fit. ``timed``: see :func:`plan_time`."""
        recipe = self.job.recipe
        sizes = [size for size in _GROUPS if size <= recipe.grpo.groups]
        if self.is_fixed("grpo.groups") or not sizes:
            sizes = [recipe.grpo.groups]
        # While steps are counted; more of them are validated less often.
        self.set_to("grpo.validation_every", _OFTEN)
        steps = 0
        for size in sizes:
            self.set_to("grpo.groups", size)
            steps = self._fitting_steps(limit)
            if steps >= _ENOUGH:
                break
        if self.is_fixed("grpo.max_steps") or recipe.stage:  # the stages of a schedule say how long GRPO is
            return
        most = min(_MOST, recipe.grpo.max_steps)
        steps = min(most, max(steps, _LEAST))
        self.steps = steps // 10 * 10 if steps >= 20 else steps
        self.set_to("grpo.max_steps", most if timed else self.steps)
        self.set_to("grpo.validation_every", max(_OFTEN, self.steps // 8))

    def _fitting_steps(self, limit: float) -> int:
        """The steps of GRPO that the other stages leave time for. The plan grows by the same with each step."""
        without, with_one = (sum(stage_seconds(self.job, self.probe, steps).values()) for steps in (0, 1))
        return int((limit - self.probe_seconds - without) / (with_one - without))


def stage_seconds(job: Job, probe: BaseProbe, steps: int) -> dict[str, float]:
    """Returns the seconds that each stage of a job takes after its probe, by the probe's costs of one episode, one update and one loading.

    ``steps``: of GRPO.
    """
    recipe, spec = job.recipe, job.environment
    grpo, section = recipe.grpo, recipe.eval
    episode = probe.episode_seconds(grpo)
    seconds = {"model": _CHECKED * probe.load, "audit": _audit_seconds(job, probe)}
    if recipe.teach.enabled:
        seconds["teach"] = recipe.teach.episodes * probe.grading
        seconds["sft"] = _sft_seconds(recipe, probe, recipe.teach.episodes, recipe.sft.epochs)
    # The model that GRPO begins with is validated too.
    validations = 1 + steps / grpo.validation_every if grpo.validation_every else 0.0
    trained = steps * probe.step_seconds(grpo)
    seconds["grpo"] = _KEEPS * probe.load + trained + validations * grpo.held_out * episode
    sizes = [len(spec.conditions[name].seeds) for name in section.conditions or spec.conditions]
    episodes = sum(min(size, section.episodes or size) for size in sizes) * section.samples
    policies = job.policies()
    models = {name.removesuffix("-greedy") for name in policies}  # a policy and its greedy form are one
    students = sum(name.removesuffix("-greedy") in STUDENTS for name in policies)
    # Scripted policies take next to no time and are counted as the base: the plan errs to the safe side.
    rounds = students * episode + (len(policies) - students) * probe.episode_seconds(grpo, trained=False)
    seconds["eval"] = episodes * rounds + len(models) * probe.load
    return seconds


def _audit_seconds(job: Job, probe: BaseProbe) -> float:
    section = job.recipe.audit
    if not section.enabled:
        return 0.0
    if job.environment.max_turns == 1:
        start, answers = _TEXT_AUDIT
        return start + answers * probe.grading
    return (section.episodes * _AUDIT_POLICIES + section.budget) * probe.grading


def _sft_seconds(recipe: Recipe, probe: BaseProbe, taught: int, epochs: int) -> float:
    config = recipe.sft
    trained = taught * (1 - config.validation_share)
    steps = epochs * math.ceil(trained / config.batch_size)
    steps = min(steps, config.max_steps or steps)
    step = probe.sft_step or config.batch_size * probe.train + probe.update
    # A validation after each epoch computes forward what a step computes forward and backward, and stores the weights.
    validation = _FORWARD * step * (taught - trained) / config.batch_size + probe.load
    return _KEEPS * probe.load + steps * step + epochs * validation
