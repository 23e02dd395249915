"""Says if the memory of a GRPO run fits a device, and fits its settings to one. No weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import ConfigError
from gradus.runs.planning.memory import memory_forecast, rows_at_once
from gradus.runs.planning.shapes import GIB, Hardware, Lengths, ModelShape
from gradus.training.config import GrpoConfig

_ADAPTERS = {"rank": 16, "alpha": 32}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A forecast. ``memory`` is in bytes by what holds it, above what an idle process with torch takes, at the worse ``moment``."""

    model: ModelShape
    lengths: Lengths
    hardware: Hardware
    memory: Mapping[str, float]
    moment: str

    @property
    def peak(self) -> float:
        """The sum of the memory, in bytes."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """The peak stays below the memory of the device."""
        return self.peak <= self.hardware.memory


def make_plan(shape: ModelShape, config: GrpoConfig, lengths: Lengths, hardware: Hardware) -> Plan:
    """Returns the forecast for a run."""
    memory, moment = memory_forecast(shape, config, lengths, hardware)
    return Plan(model=shape, lengths=lengths, hardware=hardware, memory=memory, moment=moment)


def check_fits(plan: Plan, config: GrpoConfig) -> None:
    """Raises ConfigError if a plan does not fit; it names settings that do, if there are any."""
    if plan.fits:
        return
    fitted, _, changed = fit_to_memory(plan.model, config, plan.lengths, plan.hardware)
    shorter = "lower sampling.max_new_tokens, shorten the prompts, or choose a smaller model"
    way = f"set {' and '.join(changed)}" if fitted.fits else shorter
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
    attempts += [{"lora": _ADAPTERS, "lr": 1e-5}] if config.lora is None else []
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
