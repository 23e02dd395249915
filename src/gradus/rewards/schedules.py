"""Weights by step: stages that follow each other, and weights that adapt to success.

Both are state machines over the step number: no clock, no randomness, and a state of plain JSON values, so that a run which
is killed and resumed has exactly the weights of the unbroken one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.rewards.compose import Weights

_ROUNDING = 1e-6  # by which a mean may miss its range
# Factors of a raise and of a cut of an adaptive weight, and its bounds as multiples of the first.
_UP = 1.2
_DOWN = 0.8
_LEAST = 0.25
_MOST = 4.0


class StageConfig(BaseModel):
    """One ``[[stage]]`` of the rewards' schedule. Warm-up and decay of the rate go over the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    name: str = Field(min_length=1)
    """What the stage is called."""
    steps: int | None = Field(default=None, ge=1)
    """How long it lasts; the last stage alone may leave it out and lasts to the end."""
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Component to weight; the others count for nothing. Empty keeps the grader's own."""
    lr: float | None = Field(default=None, gt=0)
    """Peak rate of the stage; the run's by default."""
    carry_optimizer: bool = True
    """Whether the optimizer's moments survive the beginning of this stage."""


class AdaptiveConfig(BaseModel):
    """Weights that follow success: a component's mean, from 0 for its least possible value to 1 for its greatest."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    components: tuple[str, ...] = ()
    """Those that adapt; all with a weight above 0 by default."""
    low: float = 0.3
    """A component whose mean is below is weighted more."""
    high: float = 0.8
    """A component whose mean is above is weighted less."""

    @model_validator(mode="after")
    def _ordered(self) -> AdaptiveConfig:
        """Refuses a band in which no success lies."""
        if not self.low < self.high:
            raise ValueError(f"adaptive.low must be below adaptive.high, got {self.low} and {self.high}")
        return self


@frozen_record
class StepPlan:
    """Settings of one optimizer step. ``lr`` None: as configured. ``reset_optimizer``: forget its moments first."""

    stage: str | None = None
    weights: Weights = field(default_factory=dict[str, float])
    lr: float | None = None
    reset_optimizer: bool = False


def adapt(weight: float, success: float | None, start: float, config: AdaptiveConfig) -> float:
    """Returns the weight after a step with this success rate; unchanged if success is not known, or the first weight is not above 0.

    >>> adapt(1.0, 0.1, 1.0, AdaptiveConfig()), adapt(1.0, 0.9, 1.0, AdaptiveConfig()), adapt(1.0, 0.5, 1.0, AdaptiveConfig())
    (1.2, 0.8, 1.0)
    """
    if success is None or start <= 0:
        return weight
    if success < config.low:
        weight *= _UP
    elif success > config.high:
        weight *= _DOWN
    return min(max(weight, _LEAST * start), _MOST * start)


class RewardSchedule:
    """Stages and adaptive weights together. ``plan(step)`` says the weights, ``observe(step, components)`` takes its result.

    ``weights`` are the grader's own. ``ranges``: what no success and full success of a component earn, 0 and 1 for the others. Weights of a
    component whose mean is out of its range do not adapt, nor do negative ones. Steps count from 1, as in the metrics. Call ``observe`` once after every step, in order;
    ``state()`` is JSON and ``restore`` takes it back. At a new stage the adaptive weights start anew from that stage's.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        stages: Sequence[StageConfig] = (),
        adaptive: AdaptiveConfig | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._base = dict(weights)
        self._stages = tuple(stages)
        self._adaptive = adaptive
        self._ranges = dict(ranges or {})
        _check_names(self._base, self._stages, adaptive)
        _check_stages(self._base, self._stages)
        self._step = 0
        self._weights = self._first_weights(1)

    def plan(self, step: int) -> StepPlan:
        """Returns the settings of ``step``, which must be the one after the last observed."""
        if step != self._step + 1:
            raise ConfigError(
                f"the schedule stands before step {self._step + 1}, got step {step}; restore its state first"
            )
        weights = dict(self._weights)
        stage, is_first = self._stage(step)
        if stage is None:
            return StepPlan(weights=weights)
        # At the first step of all there are no moments.
        reset = is_first and step > 1 and not stage.carry_optimizer
        return StepPlan(stage=stage.name, weights=weights, lr=stage.lr, reset_optimizer=reset)

    def observe(self, step: int, components: Mapping[str, float | None]) -> None:
        """Takes a step's mean component values (unweighted) and moves on."""
        self.plan(step)  # refuses a step that is not the next
        self._step = step
        _, starts_stage = self._stage(step + 1)
        # A stage says its weights itself; what was adapted before belongs to another one.
        if starts_stage:
            self._weights = self._first_weights(step + 1)
        elif self._adaptive is not None:
            first = self._first_weights(step)
            for name in self._adaptive.components or first:
                weight = self._weights[name]
                success = self._success(name, components.get(name))
                self._weights[name] = adapt(weight, success, first[name], self._adaptive)

    def state(self) -> JsonDict:
        """Returns JSON values for ``restore``. That the settings are still the same is the manifest's to say."""
        return {"step": self._step, "weights": dict(self._weights)}

    def restore(self, state: Json) -> None:
        """Goes back to the step of ``state``. Raises ConfigError if it belongs to another schedule."""
        # Of a run whose rewards have changed, the stored weights would name components that are not there.
        weights = {name: float(weight) for name, weight in state["weights"].items()}
        if weights.keys() != self._base.keys():
            raise ConfigError(
                f"the stored schedule weighs {', '.join(sorted(weights))}, this one {', '.join(sorted(self._base))}"
            )
        self._step = int(state["step"])
        self._weights = weights

    def _stage(self, step: int) -> tuple[StageConfig | None, bool]:
        """Returns the stage of ``step``, and True at its first step; beyond the end the last one goes on."""
        start = 1
        for stage in self._stages:
            if stage.steps is None or step < start + stage.steps:
                return stage, step == start
            start += stage.steps
        last = self._stages[-1] if self._stages else None
        return last, False

    def _first_weights(self, step: int) -> dict[str, float]:
        """Returns the weights with which the stage of ``step`` begins."""
        stage, _ = self._stage(step)
        if stage is None or not stage.weights:
            return dict(self._base)
        return {name: float(stage.weights.get(name, 0.0)) for name in self._base}

    def _success(self, name: str, mean: float | None) -> float | None:
        """Returns a component's mean as a share of its range; None outside of it, because then the range is wrong."""
        low, high = self._ranges.get(name, (0.0, 1.0))
        if mean is None or not low < high:
            return None
        share = (mean - low) / (high - low)
        # A mean of floats may end a rounding beyond its range.
        is_within = -_ROUNDING <= share <= 1 + _ROUNDING
        return share if is_within else None


def _check_names(weights: Weights, stages: Sequence[StageConfig], adaptive: AdaptiveConfig | None) -> None:
    """Raises ConfigError for a component that the grader does not have, or that cannot adapt."""
    adapting = adaptive.components if adaptive else ()
    tables = [weights, *(stage.weights for stage in stages)]
    # The grader's own names are among them, and pass.
    names = set(adapting).union(*tables)
    for name in sorted(names):
        if name not in weights:
            raise ConfigError(f"the schedule names reward component {name!r}; the grader has {', '.join(weights)}")
    for name in adapting:
        if any(table.get(name, 0.0) < 0 for table in tables):
            raise ConfigError(f"adaptive weights are for what is wanted; the weight of {name!r} is below 0")


def _check_stages(weights: Weights, stages: Sequence[StageConfig]) -> None:
    """Raises ConfigError for two stages of one name, one without a reward, and one without an end that is not the last."""
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise ConfigError(f"stages need different names, got {', '.join(names)}")
    for stage in stages:
        if not any((stage.weights or weights).values()):
            raise ConfigError(f"stage {stage.name!r} has no reward: all its weights are 0; give one of them another")
        if stage.steps is None and stage is not stages[-1]:
            raise ConfigError(f"stage {stage.name!r} has no steps; only the last stage may last to the end of the run")
