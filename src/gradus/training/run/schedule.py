"""What a schedule of rewards must offer to the GRPO loop. ``gradus.rewards.RewardSchedule`` is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gradus.core import Grader


class StepPlan(Protocol):
    """What holds for one optimizer step."""

    @property
    def stage(self) -> str | None:
        """The stage's name."""
        ...

    @property
    def weights(self) -> Mapping[str, float]:
        """Component -> weight."""
        ...

    @property
    def lr(self) -> float | None:
        """The peak rate in place of the configured one, or None."""
        ...

    @property
    def reset_optimizer(self) -> bool:
        """Whether the optimizer forgets its moments before this step."""
        ...


class Schedule(Protocol):
    """A state machine over the step number: no clock and no randomness, so that a resumed run is the unbroken one."""

    def plan(self, step: int) -> StepPlan:
        """What holds for ``step``, 1 for the first."""
        ...

    def grader(self, grader: Grader, step: int) -> Grader:
        """The run's grader under the weights of ``step``."""
        ...

    def observe(self, step: int, components: Mapping[str, float | None]) -> None:
        """Take note of the mean of each component in ``step``."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Stand where ``state`` was taken."""
        ...
