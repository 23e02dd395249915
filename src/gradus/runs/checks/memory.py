"""The memory of a recipe: its own prompts and answers on its own model, on this machine or on a card of some size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gradus.core import ConfigError
from gradus.runs.checks.findings import Finding, passed, warned
from gradus.runs.checks.model import too_long
from gradus.runs.checks.subject import Circumstances, Subject
from gradus.runs.planning.forecast import check_fits, fit_to_memory, make_plan
from gradus.runs.planning.hardware import GIB, card_of, this_machine
from gradus.runs.planning.shapes import Lengths
from gradus.runs.recipe.record import Recipe
from gradus.runs.recipe.starter import by_size
from gradus.training.trainer_config import TrainerConfig

_TIGHT = 0.8  # of the memory: a forecast is within a quarter


def changes_for_card(recipe: Recipe, memory: str, *, online: bool) -> list[str]:
    """Returns the changes that fit a recipe to a card of this size, as ``--set`` takes them. Raises ConfigError if nothing fits.

    ``online``: the hub may be asked for the config and tokenizer of a model that is named.
    """
    card = card_of(memory)
    asked = Circumstances(online=online and recipe.model.path is not None)
    with TemporaryDirectory(prefix="gradus-plan-") as scratch:
        subject = Subject(recipe, Path(scratch), asked)
        if (wrong := too_long(subject)) is not None:
            raise ConfigError(f"{wrong.message}; {wrong.remedy}")
        plan, config, changed = fit_to_memory(subject.shape, recipe.grpo, lengths_of(subject), card)
    check_fits(plan, config)
    return [*changed, *_for_sft(changed)]


def memory(subject: Subject) -> list[Finding]:
    """The forecast of GRPO's memory, against what this machine or the card that was named has."""
    config, given = subject.recipe.grpo, subject.given.memory
    hardware = this_machine() if given is None else card_of(given)
    plan = make_plan(subject.shape, config, lengths_of(subject), hardware)
    check_fits(plan, config)  # raises, naming the setting to change
    line = f"{plan.peak / GIB:.2f} of {hardware.memory / GIB:.1f} GiB of {hardware.name}, most of it {max(plan.memory, key=lambda name: plan.memory[name])}"
    if plan.peak > _TIGHT * hardware.memory:
        return [warned(line, "lower grpo.token_budget or grpo.groups; the forecast is within a quarter")]
    return [passed(line)]


def _for_sft(changed: Sequence[str]) -> list[str]:
    """Returns the changes that SFT needs as well: both stages hold one model in one memory, and train the same adapters."""
    changes = dict(each.removeprefix("grpo.").split("=", 1) for each in changed)
    both = {key: value for key, value in changes.items() if key in TrainerConfig.model_fields and key != "lr"}
    if "lora" in both:
        both["lr"] = str(by_size(None)["sft"]["lr"])  # that of adapters
    return [f"sft.{key}={value}" for key, value in both.items()]


def lengths_of(subject: Subject) -> Lengths:
    """Lengths in the model's tokens. A forecast multiplies them by the turns; here they are shares of a real sequence, so that both agree."""
    longest, config, context = subject.longest, subject.recipe.grpo, subject.shape.context
    answer = config.sampling.max_new_tokens if longest.turns == 1 else math.ceil(longest.said / longest.turns)
    prompt = math.ceil(longest.read / longest.turns)
    lengths = Lengths(prompt=prompt, answer=answer, turns=longest.turns, first=longest.first)
    if context is not None and lengths.whole > context:
        return replace(lengths, answer=max(1, context // longest.turns - prompt))
    return lengths
