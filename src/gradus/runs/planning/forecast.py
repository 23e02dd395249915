"""Forecasts memory, time and money of a GRPO run from shapes alone. No weights are loaded.

Time is the arithmetic of a step divided by what this machine was measured to do, times the share of it that such work reaches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import ConfigError
from gradus.runs.planning.hardware import GIB, Hardware
from gradus.runs.planning.memory import (
    cache_bytes,
    memory_forecast,
    rows_at_once,
    step_tokens,
    trained_parameters,
    weight_bytes,
)
from gradus.runs.planning.shapes import Lengths, ModelShape
from gradus.stats import format_money
from gradus.training.config import GrpoConfig

_ADAPTERS = {"rank": 16, "alpha": 32}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A forecast. ``memory`` is in bytes by what holds it, above what an idle process with torch takes; ``peak`` their sum at
    the worse moment. ``seconds`` are of one step by phase; ``cost`` is in US dollars, None without a price."""

    model: ModelShape
    lengths: Lengths
    hardware: Hardware
    memory: Mapping[str, float]
    peak: float
    moment: str
    seconds: Mapping[str, float]
    steps: int
    cost: float | None

    @property
    def fits(self) -> bool:
        """The peak stays below the memory of the device."""
        return self.peak <= self.hardware.memory

    @property
    def hours(self) -> float:
        """Of all steps."""
        return self.steps * sum(self.seconds.values()) / 3600


def make_plan(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> Plan:
    """The forecast for a run. Raises ConfigError if the sequence is longer than the model's context."""
    if shape.context is not None and lengths.whole > shape.context:
        raise ConfigError(
            f"a sequence of {lengths.turns} turns has up to {lengths.whole} tokens, but the context of {shape.name} holds "
            f"{shape.context}; lower sampling.max_new_tokens, shorten the prompts, or use a model with a longer context"
        )
    memory, moment = memory_forecast(shape, config, lengths, hardware)
    seconds = _time_forecast(shape, config, lengths, hardware)
    hours = config.max_steps * sum(seconds.values()) / 3600
    cost = None if hardware.price is None else hours * hardware.price
    return Plan(
        model=shape,
        lengths=lengths,
        hardware=hardware,
        memory=memory,
        peak=sum(memory.values()),
        moment=moment,
        seconds=seconds,
        steps=config.max_steps,
        cost=cost,
    )


def check_fits(plan: Plan, config: GrpoConfig) -> None:
    """Raises ConfigError if a plan does not fit; it names settings that do, if there are any."""
    if plan.fits:
        return
    fitted, _, changed = fit_to_memory(plan.model, config, plan.lengths, plan.hardware)
    held = sum(plan.memory.get(name, 0.0) for name in ("weights", "gradients", "masters", "optimizer", "reference"))
    if fitted.fits:
        way = f"set {' and '.join(changed)}"
    elif held > plan.hardware.memory:
        way = "choose a smaller model, or a machine with more memory"
    else:
        way = "lower sampling.max_new_tokens, shorten the prompts, or choose a smaller model"
    need = f"{plan.peak / GIB:.1f} GiB where {plan.hardware.name} has {plan.hardware.memory / GIB:.1f}"
    raise ConfigError(f"this run would need {need}, at its peak while {plan.moment}; {way}")


def fit_to_memory(
    shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware
) -> tuple[Plan, GrpoConfig, list[str]]:
    """Change one setting after another until the forecast fits: the plan, its settings, and the changes as ``--set`` takes them.

    Cheapest first: what costs only time comes before adapters, which change what is trained. If nothing is enough, the plan is that of
    the last attempt, and :func:`check_fits` refuses it.
    """
    attempts: list[dict[str, Any]] = [{"gradient_checkpointing": True}]
    attempts += [
        {"token_budget": budget} for budget in (8192, 4096, 2048, 1024, 512, 256) if budget < config.token_budget
    ]
    attempts += [{"batch_size": rows} for rows in (64, 32, 16, 8, 4, 2, 1) if rows < rows_at_once(config)]
    attempts += [{"optimizer": "adamw8bit"}] if config.optimizer == "adamw" and config.lora is None else []
    adapters = {"lora": _ADAPTERS, "lr": 1e-5, "optimizer": config.optimizer}
    attempts += [adapters] if config.lora is None else []
    attempts += [{"dtype": "bfloat16"}, {"quantize": "4bit"}] if hardware.kind != "cpu" else []
    changed: dict[str, Any] = {}
    fitted, plan = config, make_plan(shape, config, lengths, hardware)
    for attempt in attempts:
        if plan.fits:
            break
        wanted = {**config.model_dump(exclude_unset=True), **changed, **attempt}
        if "quantize" in attempt and not wanted.get("lora"):
            continue
        other = GrpoConfig.model_validate(wanted)
        smaller = make_plan(shape, other, lengths, hardware)
        if smaller.peak < plan.peak:
            fitted, plan, changed = other, smaller, {**changed, **attempt}
    real = {key: value for key, value in changed.items() if value != getattr(config, key)}
    return plan, fitted, [f"grpo.{key}={_toml(value)}" for key, value in real.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}={each}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time_forecast(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> dict[str, float]:
    """Seconds of one step."""
    rows = config.groups * config.group_size
    at_once = rows_at_once(config)
    batches = math.ceil(rows / at_once)
    number = weight_bytes(config, hardware)
    tokens, answers = step_tokens(config, lengths)
    pairs = _pairs(config, lengths)
    # attention, in products with a weight: queries with keys, then what they look at
    attended = 2.0 * shape.layers * shape.hidden * pairs
    read = 2.0 * (shape.products * tokens + attended * tokens / (tokens + answers)) / hardware.reached
    each = 2.0 * (shape.products + shape.hidden * shape.vocabulary) * at_once / hardware.reached
    # A token of a batch waits for arithmetic, or for the weights and the cache to come from memory, and for the calls.
    moved = (shape.parameters * number + cache_bytes(shape, config, lengths, number, at_once)) / hardware.bandwidth
    rollout = read + batches * lengths.turns * lengths.answer * (max(each, moved) + shape.layers * hardware.overhead)
    backward = 4.0 if config.lora is None else 2.0
    again = 2.0 if config.gradient_checkpointing else 0.0
    products = shape.products * (tokens + answers) + shape.hidden * shape.vocabulary * answers
    work = (2.0 + backward + again) * products + (6.0 + again) * attended
    passes = config.epochs * max(1.0, (tokens + answers) / config.token_budget)
    train = config.epochs * work / hardware.reached + 20 * passes * shape.layers * hardware.overhead
    update = 6.0 * 4 * trained_parameters(shape, config) / hardware.bandwidth + _muon(shape, config) / hardware.reached
    return {"rollout": rollout, "train": train, "update": update * config.epochs * config.minibatches}


def _pairs(config: GrpoConfig, lengths: Lengths) -> float:
    """Pairs of a token and one before it in a step; those within a shared prompt count once."""
    prompt = lengths.shared**2 / 2
    return config.groups * (config.group_size * (lengths.whole**2 / 2 - prompt) + prompt)


def _muon(shape: ModelShape, config: GrpoConfig) -> float:
    """Arithmetic of Muon's five Newton-Schulz iterations, 6 m for each number of a matrix whose shorter side is m, at most hidden."""
    return 5 * 6.0 * shape.hidden * shape.matrices if config.optimizer == "muon" and config.lora is None else 0.0


def _size(value: float) -> str:
    return f"{value / GIB:.2f} GiB" if value >= 0.1 * GIB else f"{value / 2**20:.1f} MiB"


def time_text(hours: float) -> str:
    """``1.5 h``, ``12 min``, ``under 1 min``."""
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min" if hours >= 1 / 60 else "under 1 min"


def as_rows(plan: Plan) -> list[tuple[str, str]]:
    """The forecast as lines for a person."""
    rows = [(f"memory: {name}", _size(value)) for name, value in plan.memory.items()]
    rows.append((f"peak, while {plan.moment}", f"{_size(plan.peak)} of {plan.hardware.memory / GIB:.1f} GiB"))
    rows += [(f"a step: {name}", f"{value:.1f} s") for name, value in plan.seconds.items()]
    others = "audit, teaching, SFT and evaluation come on top"
    rows.append((f"GRPO, {plan.steps} steps", f"{time_text(plan.hours)}; {others}"))
    rows.append(("cost", "no price given" if plan.cost is None else format_money(plan.cost)))
    return rows
