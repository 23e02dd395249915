"""The forecast of a recipe: its own prompts and answers on its own model, on this machine, a preset's or a card of some size."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gradus.core import ConfigError
from gradus.runs.checks.findings import Finding, passed, warned
from gradus.runs.checks.model import too_long
from gradus.runs.checks.subject import Subject
from gradus.runs.planning.forecast import GIB, Plan, check_fits, fit_to_memory, make_plan
from gradus.runs.planning.hardware import PRESETS, this_machine
from gradus.runs.planning.shapes import Lengths, ModelShape, read_shape
from gradus.runs.recipe.record import Recipe
from gradus.runs.recipe.starter import by_size
from gradus.training.config import GrpoConfig
from gradus.training.trainer_config import TrainerConfig

_TIGHT = 0.8  # of the memory: a forecast is within a quarter
_KEPT_FREE = 0.92  # of a card: the rest is the driver's and the libraries'
_LARGE = (
    40 * GIB
)  # from here on a card is one of a data center: its speed and its price are nearer to an H100's than to an L4's


def fitted_plan(
    recipe: Recipe, *, preset: str | None, memory: str | None, online: bool
) -> tuple[Plan, GrpoConfig, list[str]]:
    """The plan of a recipe, the settings it is for, and what had to be changed to fit ``memory`` (as ``--set`` takes it).

    Time and price of a card that is known by its ``memory`` alone are those of the preset's card that it resembles, which its name says.
    ``online``: the hub may be asked for the config and tokenizer of a model that is named.
    """
    chosen = PRESETS[preset].hardware if preset in PRESETS else None
    hardware = chosen or this_machine()
    if memory is not None:
        size = _bytes(memory)
        card = chosen or PRESETS["large-gpu" if size >= _LARGE else "small-gpu"].hardware or hardware
        hardware = replace(card, name=f"a card of {memory} (reckoned as {card.name})", memory=_KEPT_FREE * size)
    with TemporaryDirectory(prefix="gradus-plan-") as scratch:
        subject = Subject(recipe, folder=None, scratch=Path(scratch), online=online and recipe.model.path is not None)
        if (wrong := too_long(subject)) is not None:
            raise ConfigError(f"{wrong.message}; {wrong.remedy}")
        shape, lengths = forecast_of(subject)
    shape = replace(shape, name=recipe.model.path or "a nano model")
    if memory is None:
        return make_plan(shape, recipe.grpo, lengths, hardware), recipe.grpo, []
    plan, config, changed = fit_to_memory(shape, recipe.grpo, lengths, hardware)
    return plan, config, [*changed, *_for_sft(changed)]


def memory(subject: Subject) -> list[Finding]:
    """The forecast of `gradus plan` for GRPO, against what this machine has."""
    config = subject.recipe.grpo
    shape, lengths = forecast_of(subject)
    plan = make_plan(shape, config, lengths, this_machine())
    check_fits(plan, config)  # raises, naming the setting to change
    line = f"{plan.peak / GIB:.2f} of {plan.hardware.memory / GIB:.1f} GiB"
    if plan.peak > _TIGHT * plan.hardware.memory:
        return [warned(line, "lower grpo.token_budget or grpo.groups; the forecast is within a quarter")]
    return [passed(line)]


def _for_sft(changed: Sequence[str]) -> list[str]:
    """The changes that SFT needs as well: both stages hold one model in one memory, and train the same adapters."""
    changes = dict(each.removeprefix("grpo.").split("=", 1) for each in changed)
    both = {key: value for key, value in changes.items() if key in TrainerConfig.model_fields and key != "lr"}
    if "lora" in both:
        both["lr"] = str(by_size(None)["sft"]["lr"])  # that of adapters
    return [f"sft.{key}={value}" for key, value in both.items()]


def forecast_of(subject: Subject) -> tuple[ModelShape, Lengths]:
    """Shape and lengths. A plan multiplies its lengths by the turns; here they are shares of a real sequence, so that both agree."""
    longest, config = subject.longest, subject.recipe.grpo
    answer = config.sampling.max_new_tokens if longest.turns == 1 else math.ceil(longest.said / longest.turns)
    prompt = math.ceil(longest.read / longest.turns)
    lengths = Lengths(prompt=prompt, answer=answer, turns=longest.turns, first=longest.first)
    shape = read_shape(subject.model, lora=config.lora, online=subject.online)
    if shape.context is not None and lengths.whole > shape.context:
        lengths = replace(lengths, answer=max(1, shape.context // longest.turns - lengths.prompt))
    return shape, lengths


def _bytes(text: str) -> float:
    """``24GB`` or ``24`` in bytes; cards are sold by GiB, whatever is printed on them."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--memory takes gigabytes, as in 24GB, got {text!r}")
    return float(match[1]) * GIB
