"""Settings of a recipe for stepping its environment: threads and limits."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from gradus.core import EnvironmentSpec

LIMITS = ("step_seconds", "episode_seconds")  # beyond them an episode has no reward; all else changes no episode


class SteppingSection(BaseModel):
    """Settings of resets and steps. What is left out is the environment's own way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_seconds: float | None = Field(
        default=None, gt=0, description="Seconds for one reset or step; beyond, the episode fails."
    )
    episode_seconds: float | None = Field(
        default=None, gt=0, description="Seconds for all resets and steps of an episode together."
    )
    threads: bool | None = Field(
        default=None,
        description="Run steps in threads, beside each other, unless they are coroutines.",
    )
    rounds: bool | None = Field(
        default=None,
        description="Let the policy answer when all episodes wait for it: slower, and the same to the last digit in any order of arrival.",
    )

    def applied(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """``spec`` stepped in this way."""
        return replace(spec, stepping=replace(spec.stepping, **self.model_dump(exclude_none=True)))
