"""The look at the base before a run spends anything: refused if nothing can be learned, else fitted to the time there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradus.core import ConfigError
from gradus.policies.local.folders import is_nano
from gradus.runs.forecast.base_probe import BaseProbe, probe_base, way_out
from gradus.runs.job import Job
from gradus.runs.manifest import Manifest, StageInputs
from gradus.runs.recipe.record import Recipe
from gradus.runs.sources import reward_sources
from gradus.training.distributed.processes import world

ON_A_CPU = "1h"  # for a published model, unless a time is given
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
_GROUPS = (16, 8, 4)
_ENOUGH, _LEAST, _MOST = 40, 10, 200  # steps: worth fewer groups, worth a run, and more than most need
_JUDGED = 0.25  # of the time, at most, for the evaluation
_FEWEST = 30  # episodes of a condition


def seconds_of(text: str) -> float:
    """Reads ``20m``, ``2h`` or ``90s``. Raises ConfigError.

    >>> seconds_of("20m"), seconds_of("1.5 h")
    (1200.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)\s*", str(text))
    if match is None or not float(match[1]):
        raise ConfigError(f"a time is a number and s, m or h, as in --time 20m, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def time_text(hours: float) -> str:
    """Writes ``1.5 h``, ``12 min`` or ``under 1 min``."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 60 else "under 1 min"


def fit_to_time(
    job: Job, probe: BaseProbe, time: float | None, fixed: Collection[str]
) -> tuple[Recipe, dict[str, Any], float]:
    """The recipe with settings for ``time`` seconds, these settings, and the seconds that its GRPO and evaluation then take.

    ``fixed``: keys that a person set; they stay. Steps are round numbers, so that the same machine gives the same ones.
    """
    recipe, spec = job.recipe, job.environment
    judging = _judging(job, probe, recipe.eval.episodes)
    if time is None:
        return recipe, {}, recipe.grpo.max_steps * _step(probe, recipe) + judging
    changes: dict[str, Any] = {}

    def set_to(key: str, value: Any) -> Recipe:
        if key not in fixed and key.rpartition(".")[0] not in fixed:  # a section within a section counts as one
            changes[key] = value
        return changed(recipe, changes)

    most = recipe.grpo.sampling.max_new_tokens
    fitted = recipe
    if probe.paid is not None:
        enough = next((length for length in _LENGTHS if length >= 1.5 * probe.paid), most)
        fitted = set_to("grpo.sampling.max_new_tokens", min(most, enough))
    if judging > _JUDGED * time:
        seeds = max(len(condition.seeds) for condition in spec.conditions.values())
        fewer = int(_JUDGED * time / judging * (recipe.eval.episodes or seeds)) // 10 * 10
        fitted = set_to("eval.episodes", max(min(_FEWEST, seeds), fewer))
    judging = _judging(job, probe, fitted.eval.episodes)
    training = time - judging
    sizes = [size for size in _GROUPS if size <= fitted.grpo.groups]
    if "grpo.groups" in fixed or not sizes:
        sizes = [fitted.grpo.groups]
    steps = 0
    for size in sizes:
        fitted = set_to("grpo.groups", size)
        steps = int(training / _step(probe, fitted))
        if steps >= _ENOUGH:
            break
    if "grpo.max_steps" not in fixed and not recipe.stage:
        steps = min(_MOST if recipe.grpo.max_steps > _MOST else recipe.grpo.max_steps, max(steps, _LEAST))
        fitted = set_to("grpo.max_steps", steps // 10 * 10 if steps >= 20 else steps)
        fitted = set_to("grpo.validation_every", max(5, fitted.grpo.max_steps // 8))
    return fitted, changes, fitted.grpo.max_steps * _step(probe, fitted) + judging


def _judging(job: Job, probe: BaseProbe, episodes: int | None) -> float:
    """Seconds of the evaluation with so many episodes a condition."""
    section, conditions = job.recipe.eval, job.environment.conditions
    sizes = [len(conditions[name].seeds) for name in section.conditions or conditions]
    episodes_each = sum(min(size, episodes or size) for size in sizes) * section.samples
    return len(job.policies()) * episodes_each * probe.rollout


def _step(probe: BaseProbe, recipe: Recipe) -> float:
    """Seconds of a step with its share of the validations."""
    config = recipe.grpo
    validated = config.held_out / config.validation_every * probe.rollout if config.validation_every else 0.0
    return max(1e-6, probe.step_seconds(config) + validated)


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with some values of ``grpo``, ``grpo.sampling``, ``eval`` and ``teach`` changed."""
    for key, value in changes.items():
        section, _, name = key.partition(".")
        held = getattr(recipe, section)
        inner, _, deeper = name.partition(".")
        if deeper:
            name, value = inner, getattr(held, inner).model_copy(update={deeper: value})
        recipe = recipe.model_copy(update={section: held.model_copy(update={name: value})})
    return recipe


@dataclass(frozen=True, kw_only=True)
class BaseLook:
    """A probe and what follows: the recipe with settings that fit the time, those settings, and seconds of GRPO and evaluation.

    ``time``: as it was typed. ``problem``: why there is nothing to learn from, and the way out; None if there is something, or SFT comes first.
    """

    probe: BaseProbe
    recipe: Recipe
    changes: dict[str, Any]
    seconds: float
    time: str
    problem: tuple[str, str] | None

    @property
    def plan(self) -> str:
        """The settings and the time in a line."""
        grpo = self.recipe.grpo
        steps = f"{grpo.max_steps} steps of {grpo.groups} x {grpo.group_size} answers of at most {grpo.sampling.max_new_tokens} tokens"
        for_time = f" for {self.time} (--time changes it)" if self.changes else ""
        return f"{steps}: {time_text(self.seconds / 3600)} with the evaluation{for_time}"


def is_probed(job: Job) -> bool:
    """Says if a run looks at its base first: a published model that this process samples from, not at toy size."""
    recipe = job.recipe
    if recipe.model.path is None or is_nano(recipe.model.path):
        return False
    return not recipe.quick and recipe.grpo.sampler == "local" and world().size == 1


def look_at_base(job: Job, *, time: str | None, fixed: Collection[str]) -> BaseLook:
    """Probes the base; fits the settings to ``time``, on a CPU by default to an hour. ``fixed``: keys that a person set."""
    import torch

    text = time or ("" if torch.cuda.is_available() else ON_A_CPU)
    limit = seconds_of(text) if text else None
    probe = probe_base(job)
    silent = probe.silent and not job.recipe.teach.enabled
    problem = way_out(probe, job.environment, job.recipe.grpo) if silent else None
    fitted, changes, seconds = fit_to_time(job, probe, limit, fixed)
    return BaseLook(probe=probe, recipe=fitted, changes=changes, seconds=seconds, time=text, problem=problem)


def fitted_job(
    job: Job, folder: Path, *, time: str | None, fixed: Collection[str], anyway: bool, tell: Callable[[str], None]
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
    if manifest.begun("grpo") or manifest.done("plan", inputs):
        stored: Mapping[str, Any] = manifest.extra("plan").get("settings", {})
        changes = {name: value for name, value in stored.items() if name not in fixed}
        return job.with_recipe(changed(job.recipe, changes))
    with manifest.doing("plan", inputs) as record:
        look = look_at_base(job, time=time, fixed=fixed)
        for line in (*look.probe.lines(), look.plan):
            tell(line)
        if look.problem is not None and not anyway:
            why, remedy = look.problem
            raise ConfigError(
                f"the base has nothing to learn from here: {why}; {remedy}; or run with --anyway (in Python anyway=True)"
            )
        record |= {"settings": look.changes, "probe": asdict(look.probe)}
    return job.with_recipe(look.recipe)
