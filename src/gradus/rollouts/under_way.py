"""One episode under way: what a reset gave, what each answer made of it, and the record that it ends as.

What goes wrong in an episode ends it and no other: failures are captured here, at one boundary, with their stage. What an environment or a
policy gave is checked before it becomes part of an episode: later it could only break storing or grading.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from os.path import commonprefix
from typing import Any, cast

from gradus.core import (
    Action,
    ConfigError,
    Environment,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Failure,
    GradusError,
    Message,
    Observation,
    StopReason,
    Task,
    Turn,
)
from gradus.core.errors import OutOfTime
from gradus.core.foreign import STEP_SECONDS, raised_at, within
from gradus.core.records import FAULTS, LARGEST_REWARD
from gradus.core.values import Json, JsonDict, check_unicode, plain
from gradus.core.waiting import blocking, settled
from gradus.rollouts.grading import python_number
from gradus.rollouts.stepping import Call

Start = Json
"""What a policy can know before it answers, by name."""


_NOTHING = Observation(
    text="", action_valid=False
)  # what an environment shows before a reset, or of a step that failed


@dataclass
class UnderWay:
    """One episode under way. ``observation``: the newest."""

    spec: EnvironmentSpec
    task: Task
    group: int
    member: int
    environment: Environment
    observation: Observation = _NOTHING
    system_prompt: str = ""
    tools: tuple[Json, ...] = ()
    turns: list[Turn] = field(default_factory=list[Turn])
    stop: StopReason | None = None
    failure: Failure | None = None

    def reset_call(self) -> Call:
        """Return the reset, to be called where the environment is stepped."""
        reset = partial(self.environment.reset, seed=self.task.seed, **self.task.options)
        return Call(self._named("reset"), reset)

    def step_call(self, action: Action) -> Call:
        """Return the step that an answer makes."""
        answer: Any = action.text if action.message is None else action.message
        if self.spec.foreign:  # an agent of somebody else is given tokens and usage too
            answer = action
        return Call(self._named("step"), partial(self.environment.step, answer))

    def _named(self, method: str) -> str:
        turn = f", turn {len(self.turns) + 1}" if method == "step" else ""
        return f"{method} of {self.task.environment} (seed {self.task.seed}{turn})"

    def opened(self, observation: Any, error: Exception | None) -> None:
        """Take down what a reset gave."""
        if error is not None:
            self._fail("reset", error)
            return
        try:
            self.observation = received(observation, "reset")
            self.system_prompt = checked_prompt(self.environment.system_prompt)
            self.tools = tuple(plain(list(getattr(self.environment, "tools", ()))))
        except (Exception, SystemExit) as raised:
            self._fail("reset", raised)

    def shown(self) -> Start:
        """Return what its policy can know before it answers, by name."""
        return start_of(self.observation, self.system_prompt, self.tools)

    def start(self, key: tuple[int | str, ...]) -> EpisodeStart:
        """Return what its policy is told, seeded by ``key``."""
        return EpisodeStart(
            task=self.task,
            system_prompt=self.system_prompt,
            key=(*key, self.group, self.member),
            group=self.group,
            member=self.member,
            environment=self.environment,
            tools=self.tools,
            by_content=self.spec.stepping.by_content,
        )

    def acts(self, action: Action) -> bool:
        """Say whether there is an answer for the environment; an episode without one ends."""
        if action.failure is None:
            try:
                check_text(action.text, "the answer")
            except EnvironmentFault as error:
                self._fail("act", error)
            return self.stop is None
        self.failure = action.failure
        # A prompt that no longer fits ends an episode as a cut answer does; without a turn there is no episode.
        overlong = action.failure.type == "ContextLengthError" and self.turns
        self.stop = StopReason.TOKEN_LIMIT if overlong else StopReason.FAILED
        return False

    def take(self, action: Action, after: Any, error: Exception | None, limit: int) -> None:
        """Write down the turn that an answer made, and whether the episode goes on."""
        if error is None:
            try:
                after = received(after, "step", plain_data=getattr(self.environment, "plain_data", False))
            except EnvironmentFault as refused:
                error = refused
            except Exception as refused:  # the environment's data, not the model's answer
                error = EnvironmentFault(str(refused))
        if error is not None:
            self.turns.append(self._turn(action, _NOTHING))
            self._fail("step", error)
            return
        self.turns.append(self._turn(action, after))
        self.observation = after
        cut = action.stop is StopReason.TOKEN_LIMIT
        if after.terminated:
            self.stop = StopReason.TOKEN_LIMIT if cut else StopReason.TERMINATED
        elif after.truncated:
            self.stop = StopReason.TRUNCATED
        elif len(self.turns) >= limit:
            self.stop = StopReason.TOKEN_LIMIT if cut else StopReason.TURN_LIMIT

    def closed(self, policy: str) -> Episode:
        """Return the episode as it ended, not graded."""
        outcome: JsonDict = {}
        if self.stop not in FAULTS:
            try:
                seconds = self.spec.stepping.outcome_seconds
                answer = within(seconds, self._named("outcome"), lambda: settled(self.environment.outcome()))
                outcome = plain(dict(answer or {}))
            except (Exception, SystemExit) as error:
                self._fail("outcome", error)
        assert self.stop is not None
        # Read again: an outcome that fails has made a failure of the episode.
        finished = self.stop not in FAULTS
        return Episode(
            task=self.task,
            policy=policy,
            turns=tuple(self.turns),
            stop=self.stop,
            system_prompt=self.system_prompt,
            tools=self.tools,
            group=self.group,
            member=self.member,
            outcome=outcome,
            failure=self.failure,
            final=self.observation if finished else None,
        )

    def end(self) -> None:
        """Close its environment. An error then is told and loses no episode."""
        try:
            within(STEP_SECONDS, self._named("close"), lambda: settled(self.environment.close()))
        except (Exception, SystemExit) as error:
            warnings.warn(f"an environment could not be closed: {type(error).__name__}: {error}", stacklevel=2)

    def _turn(self, action: Action, after: Observation) -> Turn:
        before = self.observation
        return Turn(
            index=len(self.turns),
            observation=before.text,
            action=action.text,
            data=before.data,
            env_reward=after.reward,
            valid=after.action_valid,
            error=after.action_error,
            spans=after.action_spans,
            action_data=after.action_data,
            restart=before.restart,
            cut=action.stop is StopReason.TOKEN_LIMIT,
            messages=before.messages,
            calls=after.action_calls,
            asked=before.asked,
            undelivered=after.undelivered,
            tokens=action.tokens,
            usage=action.usage,
        )

    def _fail(self, stage: str, error: Exception | SystemExit) -> None:
        self.failure = Failure(stage=stage, type=type(error).__name__, message=f"{error}{raised_at(error)}")
        self.stop = StopReason.BROKEN if stage == "step" and self._is_models(error) else StopReason.FAILED

    def _is_models(self, error: BaseException) -> bool:
        """Say whether the model's answer made a step fail, and not the world: an environment that breaks its contract, or is out of reach."""
        # OutOfTime is a fault of the environment's by its class, but what takes long is what the model asked for.
        if isinstance(error, OutOfTime):
            return True
        return not isinstance(error, (*self.spec.missing, EnvironmentFault))


def received(value: Any, method: str, *, plain_data: bool = False) -> Observation:
    """Return the Observation that ``method`` gave, of plain values. Raises EnvironmentFault, which says what was expected.

    ``plain_data``: the environment says that its data are what JSON can hold; to look at much of it at each step takes time.
    """
    if not isinstance(value, Observation):
        raise EnvironmentFault(f"{method}: expected an Observation, got {_kind(value)}")
    messages = cast(Sequence[Any], value.messages)
    if not all(isinstance(message, Message) for message in messages):
        raise EnvironmentFault(f"{method}: expected messages that are Messages, got {_kind(value.messages)}")
    for text in (value.text, *(message.content for message in value.messages)):
        check_text(text, f"the text that {method} gave")
    # JSON does not know numpy's truth values.
    truths = {name: bool(getattr(value, name)) for name in ("terminated", "truncated", "restart", "action_valid")}
    value = replace(value, reward=_reward(value.reward, method), **truths)
    return value if plain_data else replace(value, data=plain(value.data), action_data=plain(value.action_data))


def check_text(value: Any, what: str) -> None:
    """Raise EnvironmentFault for anything but text that can be stored."""
    if not isinstance(value, str):
        raise EnvironmentFault(f"{what} is {_kind(value)}; expected text")
    try:
        check_unicode(value)
    except ValueError as error:
        raise EnvironmentFault(f"{what}: {error}") from None


def checked_prompt(value: Any) -> str:
    """Return a system prompt, which may be missing."""
    prompt = "" if value is None else value
    check_text(prompt, "system_prompt")
    return prompt


def _reward(value: Any, method: str) -> Any:
    """Return the reward as a number of Python's."""
    if value is None:
        return None
    try:
        reward = python_number(value)
    except (TypeError, ValueError):
        reward = nan
    if not abs(reward) <= LARGEST_REWARD:
        raise EnvironmentFault(
            f"{method} gave the reward {value!r:.60}; expected a finite number, at most {LARGEST_REWARD:g}"
        )
    return reward


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}, {value!r:.60}" if isinstance(value, str | int | float) else type(value).__name__


def make_environment(spec: EnvironmentSpec) -> Environment:
    """Make an environment. Raises ConfigError if that fails, because it would fail for every episode."""
    try:
        return within(STEP_SECONDS, f"making {spec.name}", spec.make)
    except GradusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{spec.name} cannot be made: {type(error).__name__}: {error}") from error


def start_of(observation: Observation, system_prompt: str, tools: Sequence[Any]) -> Start:
    """Return what a policy can know before it answers, by name."""
    return {
        "text": observation.text,
        "messages": observation.messages,
        "system prompt": system_prompt,
        "tools": tuple(tools),
    }


def first_sight(spec: EnvironmentSpec, task: Task) -> Start:
    """Begin a task and return what a policy can know before its first answer. Raises what the environment raises."""
    environment = blocking(make_environment(spec))
    try:
        observation = received(environment.reset(seed=task.seed, **task.options), "reset")
        return start_of(observation, checked_prompt(environment.system_prompt), getattr(environment, "tools", ()))
    finally:
        environment.close()


def unequal_starts(first: Start, second: Start) -> str | None:
    """Return the first thing in which two starts differ, as words; None if they are equal."""
    for name, value in first.items():
        if value != second[name]:
            words = _around_the_difference(repr(value), repr(second[name]))
            return words if name == "text" else f"different {name}: {words}"
    return None


def _around_the_difference(first: str, second: str) -> str:
    """Return both texts from 40 characters before their first difference on."""
    begin = max(0, len(commonprefix([first, second])) - 40)  # noqa: RUF071 - character by character is meant
    cut = "…" if begin else ""
    return f"{cut}{first[begin : begin + 80]} and {cut}{second[begin : begin + 80]}"
