"""The look at the base before a run spends anything: refused if nothing can be learned, else fitted to the time there is."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.documents import SCHEMA
from gradus.core.files import read_json, write_json
from gradus.policies.local.folders import find_model, is_nano
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.base_probe import BaseProbe, probe_base, way_out
from gradus.runs.stages.sources import reward_sources
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
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min" if hours >= 1 / 60 else "under 1 min"


def fit_to_time(
    recipe: Recipe, spec: EnvironmentSpec, probe: BaseProbe, time: float | None, fixed: Collection[str]
) -> tuple[Recipe, dict[str, Any], float]:
    """The recipe with settings for ``time`` seconds, these settings, and the seconds that its GRPO and evaluation then take.

    ``fixed``: keys that a person set; they stay. Steps are round numbers, so that the same machine gives the same ones.
    """
    if time is None:
        return (
            recipe,
            {},
            recipe.grpo.max_steps * _step(probe, recipe) + _judging(recipe, spec, probe, recipe.eval.episodes),
        )
    changes: dict[str, Any] = {}

    def set_to(key: str, value: Any) -> Recipe:
        if not {key, key.rpartition(".")[0]} & {*fixed}:  # a section within a section counts as a whole
            changes[key] = value
        return changed(recipe, changes)

    most = recipe.grpo.sampling.max_new_tokens
    if probe.paid is not None:
        wanted = next((each for each in _LENGTHS if each >= 1.5 * probe.paid), most)
        fitted = set_to("grpo.sampling.max_new_tokens", min(most, wanted))
    else:
        fitted = recipe
    judged = _judging(recipe, spec, probe, recipe.eval.episodes)
    if judged > _JUDGED * time:
        most = max(len(condition.seeds) for condition in spec.conditions.values())
        fewer = int(_JUDGED * time / judged * (recipe.eval.episodes or most)) // 10 * 10
        fitted = set_to("eval.episodes", max(min(_FEWEST, most), fewer))
    left = time - _judging(recipe, spec, probe, fitted.eval.episodes)
    groups = (
        [fitted.grpo.groups] if "grpo.groups" in fixed else [each for each in _GROUPS if each <= fitted.grpo.groups]
    )
    steps = 0
    for each in groups or [fitted.grpo.groups]:
        fitted = set_to("grpo.groups", each)
        steps = int(left / _step(probe, fitted))
        if steps >= _ENOUGH:
            break
    if "grpo.max_steps" not in fixed and not recipe.stage:
        steps = min(_MOST if recipe.grpo.max_steps > _MOST else recipe.grpo.max_steps, max(steps, _LEAST))
        fitted = set_to("grpo.max_steps", steps // 10 * 10 if steps >= 20 else steps)
        fitted = set_to("grpo.validation_every", max(5, fitted.grpo.max_steps // 8))
    return fitted, changes, fitted.grpo.max_steps * _step(probe, fitted) + time - left


def _judging(recipe: Recipe, spec: EnvironmentSpec, probe: BaseProbe, episodes: int | None) -> float:
    """Seconds of the evaluation with so many episodes a condition."""
    sizes = [len(spec.conditions[name].seeds) for name in recipe.eval.conditions or spec.conditions]
    rolled = sum(min(size, episodes or size) for size in sizes) * recipe.eval.samples
    return len(recipe.evaluated(spec)) * rolled * probe.rollout


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


PROBE = "probe.json"  # in the folder of a run


@dataclass(frozen=True, kw_only=True)
class BaseLook:
    """A probe and what follows: the recipe with settings that fit the time, those settings, and seconds of GRPO and evaluation.

    ``problem``: why there is nothing to learn from, and the way out; None if there is something, or SFT comes first.
    """

    probe: BaseProbe
    recipe: Recipe
    changes: dict[str, Any]
    seconds: float
    given: str
    problem: tuple[str, str] | None

    @property
    def plan(self) -> str:
        """The settings and the time in a line."""
        grpo = self.recipe.grpo
        told = f"{grpo.max_steps} steps of {grpo.groups} x {grpo.group_size} answers of at most {grpo.sampling.max_new_tokens} tokens"
        for_time = f" for {self.given} (--time changes it)" if self.changes else ""
        return f"{told}: {time_text(self.seconds / 3600)} with the evaluation{for_time}"


def is_probed(recipe: Recipe) -> bool:
    """Says if a run looks at its base first: a published model that this process samples from, not at toy size."""
    model = recipe.model.path
    return (
        model is not None
        and not recipe.quick
        and not is_nano(model)
        and recipe.grpo.sampler == "local"
        and world().size == 1
    )


def look_at_base(recipe: Recipe, *, time: str | None, fixed: Collection[str]) -> BaseLook:
    """Probes the base; fits the settings to ``time``, on a CPU by default to an hour. ``fixed``: keys that a person set."""
    import torch

    given = time or ("" if torch.cuda.is_available() else ON_A_CPU)
    limit = seconds_of(given) if given else None
    spec = recipe.spec()
    model = str(find_model(recipe.model.path or "") or recipe.model.path)
    probe = probe_base(recipe, spec, spec.grader(recipe.grader_name), model)
    problem = way_out(probe, spec, recipe.grpo) if probe.silent and not recipe.teach.enabled else None
    fitted, changes, seconds = fit_to_time(recipe, spec, probe, limit, fixed)
    return BaseLook(probe=probe, recipe=fitted, changes=changes, seconds=seconds, given=given, problem=problem)


def fitted_recipe(
    recipe: Recipe, folder: Path, *, time: str | None, fixed: Collection[str], anyway: bool, tell: Any
) -> Recipe:
    """The recipe with settings that fit base and time; a folder that has them keeps them. Raises ConfigError if nothing can be learned."""
    if not is_probed(recipe):
        if time is not None:
            raise ConfigError(
                "a time fits a published model that is sampled from here; leave out --time, or give --model"
            )
        return recipe
    grader = recipe.spec().grader(recipe.grader_name)
    told = [recipe.model_dump_json(), time, reward_sources(recipe.rewards, grader)]
    key = sha256(json.dumps(told).encode()).hexdigest()
    stored = read_json(folder / PROBE) if (folder / PROBE).is_file() else None
    if stored is not None and (stored["key"] == key or (folder / "grpo").exists()):
        return changed(recipe, {name: value for name, value in stored["settings"].items() if name not in fixed})
    look = look_at_base(recipe, time=time, fixed=fixed)
    for line in (*look.probe.lines(), look.plan):
        tell(line)
    if look.problem is not None and not anyway:
        why, way = look.problem
        raise ConfigError(
            f"the base has nothing to learn from here: {why}; {way}; or run with --anyway (in Python anyway=True)"
        )
    write_json(folder / PROBE, {"schema": SCHEMA, "key": key, "settings": look.changes, **asdict(look.probe)})
    return look.recipe
