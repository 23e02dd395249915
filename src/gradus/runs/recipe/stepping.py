"""Settings of a recipe for stepping its environment: processes and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from pydantic import BaseModel, ConfigDict, Field

from gradus import environments
from gradus.core import Environment, EnvironmentSpec
from gradus.rollouts.processes import in_processes

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
    processes: int | None = Field(
        default=None,
        ge=1,
        description="Processes that hold the environments, for steps that compute. Policies that look into an environment cannot act there.",
    )
    rounds: bool | None = Field(
        default=None,
        description="Let the policy answer when all episodes wait for it: slower, and the same to the last digit in any order of arrival.",
    )

    def applied(self, spec: EnvironmentSpec, environment: str) -> EnvironmentSpec:
        """``spec``, which ``environment`` names, stepped in this way."""
        given = self.model_dump(exclude={"processes"}, exclude_none=True)
        make = spec.make
        if self.processes is not None:
            make, given["threads"] = _in_processes(environment, self.processes), True
        return replace(spec, stepping=replace(spec.stepping, **given), make=make)


@cache
def _in_processes(environment: str, workers: int) -> Callable[[], Environment]:
    """The same processes for all stages of a run."""
    return in_processes(partial(_made, environment), workers)


@cache
def _loaded(environment: str) -> EnvironmentSpec:
    return environments.load(environment)


def _made(environment: str) -> Environment:
    """An environment by name, in whatever process this is called."""
    return _loaded(environment).make()
