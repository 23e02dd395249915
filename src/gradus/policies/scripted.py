"""A policy that is a function: from what is seen to an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from random import Random

from gradus.core import (
    Action,
    AnswerDistribution,
    ConfigError,
    EpisodeStart,
    Observation,
    Policy,
    Request,
    child_rng,
)
from gradus.core.values import JsonDict


class Script:
    """The state of a scripted policy's episode: the start, a memory and randomness of its own."""

    def __init__(self, name: str, start: EpisodeStart) -> None:
        self.start = start
        self.memory: JsonDict = {}
        self._name = name

    @cached_property
    def rng(self) -> Random:
        """Keyed by the episode and the policy's name: the same call gives the same answers."""
        return child_rng(0, *self.start.key, "policy", self._name)


Answer = Callable[[Observation, Script], str]
Distribution = Callable[[Observation, Script], AnswerDistribution]


class FunctionPolicy:
    """Answers an observation by ``answer(observation, script)``.

    ``distribution(observation, script)`` says how likely the answers are, for distillation.

    >>> policy = FunctionPolicy("echo", lambda observation, script: observation.text.upper())
    """

    def __init__(self, name: str, answer: Answer, distribution: Distribution | None = None) -> None:
        self.name = name
        self._answer = answer
        self._distribution = distribution

    def start(self, episodes: Sequence[EpisodeStart]) -> _ScriptSession:
        scripts = [Script(self.name, start) for start in episodes]
        # A session that states distributions is another kind: distillation asks for the method.
        if self._distribution is None:
            return _ScriptSession(self._answer, scripts)
        return _DistributionSession(self._answer, scripts, self._distribution)


class _ScriptSession:
    def __init__(self, answer: Answer, scripts: Sequence[Script]) -> None:
        self._answer = answer
        self._scripts = scripts

    def act(self, requests: Sequence[Request]) -> list[Action]:
        return [self._action(request) for request in requests]

    def _action(self, request: Request) -> Action:
        """The answer, or what was raised in its place, which fails this episode and no other."""
        try:
            return Action(text=self._answer(request.observation, self._scripts[request.row]))
        except (Exception, SystemExit) as error:
            return Action.failed(error)

    def close(self) -> None: ...


class _DistributionSession(_ScriptSession):
    """A script's session that states distributions too."""

    def __init__(self, answer: Answer, scripts: Sequence[Script], distribution: Distribution) -> None:
        super().__init__(answer, scripts)
        self._distribution = distribution

    def distributions(self, requests: Sequence[Request]) -> list[AnswerDistribution]:
        return [self._distribution(request.observation, self._scripts[request.row]) for request in requests]


def constant_policy(text: str) -> Policy:
    """Always the same answer."""
    return FunctionPolicy(f"constant:{text}", lambda _, __: text)


def policy_factory(name: str, answer: Answer) -> Callable[[str | None], Policy]:
    """An entry for ``EnvironmentSpec.policies``: a policy that takes no argument after a colon."""

    def make(argument: str | None) -> Policy:
        if argument is not None:
            raise ConfigError(f"policy {name!r} takes no argument, got {argument!r}")
        return FunctionPolicy(name, answer)

    return make


def read_share(name: str, argument: str | None, default: float) -> float:
    """Reads the share from 0 to 1 behind a policy's colon. Raises ConfigError for anything else."""
    try:
        share = float(argument or default)
    except ValueError:
        share = -1.0  # refused as what is out of range
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} takes a share from 0 to 1 after the colon, got {argument!r}")
    return share
