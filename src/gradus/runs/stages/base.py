"""The look at the base before a run spends anything: refused if nothing can be learned, else fitted to the time there is."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradus.core import ConfigError
from gradus.core.documents import SCHEMA
from gradus.core.files import read_json, write_json
from gradus.policies.local.folders import find_model, is_nano
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.base_probe import BaseProbe, probe_base, way_out
from gradus.runs.stages.fitting import ON_A_CPU, changed, fit_to_time, seconds_of, time_text
from gradus.runs.stages.sources import reward_sources
from gradus.training.distributed.processes import world

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
