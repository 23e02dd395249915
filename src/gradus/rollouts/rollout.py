"""Rolling out groups of episodes at once: every policy call answers all episodes that wait for an answer.

What goes wrong in one episode ends that episode and no other: failures are captured here, at one boundary, with their stage.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradus.core import (
    Action,
    ConfigError,
    Environment,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Failure,
    Grader,
    GradusError,
    Group,
    Observation,
    Policy,
    Request,
    Session,
    StopReason,
    Task,
    Turn,
)
from gradus.core.files import whole_characters
from gradus.core.waiting import blocking, settled
from gradus.rollouts.grading import grade_episodes
from gradus.rollouts.received import check_answer, checked_prompt, plain, received
from gradus.rollouts.stepping import Stepper

MAX_CONCURRENT = 256  # episodes at once, unless a caller asks for fewer
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """Groups that were rolled out and graded, one per task in the order of the tasks.

    ``seconds`` holds policy (its answers), environment (reset and step), reward and total.
    """

    groups: Sequence[Group]
    seconds: dict[str, float]

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, groups one after another."""
        return [episode for group in self.groups for episode in group.episodes]


@dataclass
class _Row:
    """One episode under way."""

    task: Task
    group: int
    member: int
    environment: Environment
    observation: Observation
    system_prompt: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: list[Turn] = field(default_factory=list[Turn])
    stop: StopReason | None = None
    failure: Failure | None = None


@dataclass
class _Clock:
    policy: float = 0.0
    environment: float = 0.0
    reward: float = 0.0


def roll_out(
    spec: EnvironmentSpec,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    group_size: int = 1,
    seed: int = 0,
    key: tuple[int | str, ...] = (),
    grader: Grader | None = None,
    max_turns: int | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    first_group: int = 0,
    progress: Progress | None = None,
) -> RolloutResult:
    """Roll out ``group_size`` episodes of every task and grade them.

    The randomness of a member is keyed by (seed, *key, group, member) and by nothing else, so a group can be rolled out again
    alone or in another call: ``first_group`` is the number of the first one here. At most ``max_concurrent`` episodes run at
    once, whole groups only. ``progress`` is told (episodes done, all).
    """
    if group_size < 1:
        raise ConfigError(f"group_size must be at least 1, got {group_size}")
    if max_concurrent < 1:
        raise ConfigError(f"concurrent rollouts must be at least 1, got {max_concurrent}")
    limit = spec.max_turns if max_turns is None else max_turns
    if limit < 1:
        raise ConfigError(f"max_turns must be at least 1, got {limit}")
    if spec.max_sessions is not None:
        if group_size > spec.max_sessions:
            raise ConfigError(
                f"group_size {group_size} needs as many episodes at once, but {spec.name} allows {spec.max_sessions}"
            )
        max_concurrent = min(max_concurrent, spec.max_sessions)
    grader = grader or spec.grader()
    tasks = [spec.identify(task) for task in tasks]
    started = time.perf_counter()
    clock = _Clock()
    groups: list[Group] = []
    total = len(tasks) * group_size
    batch = max(1, max_concurrent // group_size)
    for first in range(0, len(tasks), batch):
        numbered = [(first_group + index, tasks[index]) for index in range(first, min(first + batch, len(tasks)))]
        stepper = Stepper(spec.stepping)
        rows = _open(spec, numbered, group_size, clock, stepper)

        def tell(done: int, before: int = first * group_size) -> None:
            if progress is not None:
                progress(before + done, total)

        try:
            _run_rows(policy, rows, (seed, *key), limit, clock, tell, stepper)
            episodes = [_close(row, policy.name) for row in rows]
        finally:
            for row in rows:
                _end(row.environment)
        before = time.perf_counter()
        episodes = grade_episodes(spec, episodes, grader)
        clock.reward += time.perf_counter() - before
        for index, (_, task) in enumerate(numbered):
            members = tuple(episodes[index * group_size : (index + 1) * group_size])
            groups.append(Group(task=task, episodes=members))
    seconds = {
        "policy": clock.policy,
        "environment": clock.environment,
        "reward": clock.reward,
        "total": time.perf_counter() - started,
    }
    return RolloutResult(groups=groups, seconds=seconds)


def stepped_episode(
    spec: EnvironmentSpec,
    environment: Environment,
    task: Task,
    first: Observation,
    taken: Sequence[tuple[str, Observation]],
) -> Episode:
    """The episode that somebody else's answers made, not graded. ``taken``: each answer with what was observed after it."""
    row = _Row(task=task, group=0, member=0, environment=environment, observation=first)
    _opened(row, first, None)
    for answer, after in taken:
        _take(row, Action(text=answer), after, None, spec.max_turns)
    return _close(row, "client")


def _open(
    spec: EnvironmentSpec, numbered: Sequence[tuple[int, Task]], group_size: int, clock: _Clock, stepper: Stepper
) -> list[_Row]:
    """Reset one environment per member and check that a group begins as one."""
    before = time.perf_counter()
    rows: list[_Row] = []
    try:
        for index, task in numbered:
            for member in range(group_size):
                made = make_environment(spec)
                rows.append(
                    _Row(task=task, group=index, member=member, environment=made, observation=Observation(text=""))
                )
        for number, observation, error in stepper.all([_reset_call(row) for row in rows]):
            _opened(rows[number], observation, error)
        for first in range(0, len(rows), group_size):
            _check_equal_starts(rows[first : first + group_size])
    except BaseException:
        for row in rows:
            _end(row.environment)
        raise
    clock.environment += time.perf_counter() - before
    return rows


def make_environment(spec: EnvironmentSpec) -> Environment:
    """What the spec makes. Raises ConfigError if that fails, because it would fail for every episode."""
    try:
        return spec.make()
    except GradusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{spec.name} cannot be made: {type(error).__name__}: {error}") from error


def _reset_call(row: _Row) -> Callable[[], Any]:
    task, name = row.task, f"{row.task.condition}-{row.task.seed}-{row.member}"
    return lambda: row.environment.reset(seed=task.seed, episode_id=name, **task.options)


def _opened(row: _Row, observation: Any, error: Exception | None) -> None:
    """Take down what a reset gave."""
    if error is not None:
        _fail(row, "reset", error)
        return
    try:
        row.observation = received(observation, "reset")
        row.system_prompt = checked_prompt(row.environment.system_prompt)
        row.tools = tuple(plain(tuple(getattr(row.environment, "tools", ())), "tools"))
    except (Exception, SystemExit) as raised:
        _fail(row, "reset", raised)


def _check_equal_starts(members: Sequence[_Row]) -> None:
    """Members of a group must not differ before the policy has done anything; credit would be noise otherwise."""
    alive = [row for row in members if row.stop is None]
    for row in alive[1:]:
        if (differing := unequal_starts(_shown(alive[0]), _shown(row))) is not None:
            raise EnvironmentFault(
                f"members of a group must begin with equal observations, but seed {row.task.seed} gave {differing}; "
                "key the environment's noise by its seed instead of drawing it from a shared stream"
            )


def _shown(row: _Row) -> Mapping[str, Any]:
    return start_of(row.observation, row.system_prompt, row.tools)


def start_of(shown: Observation, system_prompt: str, tools: Sequence[Any]) -> Mapping[str, Any]:
    """What a policy can know before it answers, by name."""
    return {"text": shown.text, "messages": shown.messages, "system prompt": system_prompt, "tools": tuple(tools)}


def unequal_starts(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first thing in which two starts differ, as words; None if they are equal."""
    for name, value in one.items():
        if value != other[name]:
            a, b = (repr(each) for each in (value, other[name]))
            begin = max(0, next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b)) - 40)
            a, b = (f"{'…' if begin else ''}{each[begin : begin + 80]}" for each in (a, b))
            return f"{a} and {b}" if name == "text" else f"different {name}: {a} and {b}"
    return None


def _run_rows(
    policy: Policy,
    rows: list[_Row],
    key: tuple[int | str, ...],
    limit: int,
    clock: _Clock,
    tell: Callable[[int], None],
    stepper: Stepper,
) -> None:
    starts = [_start_of(row, key) for row in rows]
    before = time.perf_counter()
    session = policy.start(starts)
    clock.policy += time.perf_counter() - before
    taken: dict[int, Action] = {}  # what a row's environment is busy with
    try:
        waiting = [index for index, row in enumerate(rows) if row.stop is None]
        while waiting or stepper.busy:
            tell(sum(row.stop is not None for row in rows))
            after = before = time.perf_counter()
            if waiting:
                actions = _ask(
                    policy, session, [Request(row=index, observation=rows[index].observation) for index in waiting]
                )
                after = time.perf_counter()
                clock.policy += after - before
                for index, action in zip(waiting, actions, strict=True):
                    if _acts(rows[index], action):
                        taken[index] = action
                        told = action.text if action.message is None else action.message
                        stepper.begin(index, partial(rows[index].environment.step, told))
            waiting = []
            for index, seen, error in stepper.collect():
                _take(rows[index], taken.pop(index), seen, error, limit)
                waiting += [index] if rows[index].stop is None else []
            clock.environment += time.perf_counter() - after
        tell(len(rows))
    finally:
        session.close()


def _start_of(row: _Row, key: tuple[int | str, ...]) -> EpisodeStart:
    return EpisodeStart(
        task=row.task,
        system_prompt=row.system_prompt,
        key=(*key, row.group, row.member),
        group=row.group,
        member=row.member,
        environment=row.environment,
        tools=row.tools,
    )


def _ask(policy: Policy, session: Session, requests: Sequence[Request]) -> Sequence[Action]:
    actions = session.act(requests)
    if len(actions) != len(requests):
        raise EnvironmentFault(
            f"policy {policy.name!r} answered {len(actions)} of {len(requests)} requests; "
            "Session.act must return one Action per request, in order"
        )
    return actions


def _acts(row: _Row, action: Action) -> bool:
    """Whether there is an answer to give to the environment; a row without one ends."""
    if action.failure is None:
        try:
            check_answer(action.text)
        except EnvironmentFault as error:
            _fail(row, "act", error)
        return row.stop is None
    row.failure = replace(action.failure, message=whole_characters(action.failure.message))
    overlong = action.failure.type == "ContextLengthError" and row.turns
    row.stop = StopReason.TOKEN_LIMIT if overlong else StopReason.FAILED
    return False


def _take(row: _Row, action: Action, after: Any, error: Exception | None, limit: int) -> None:
    """Write down the turn that an answer made, and whether the episode goes on."""
    seen = row.observation
    if error is None:
        try:
            after = received(after, "step", plain_data=getattr(row.environment, "plain_data", False))
        except Exception as refused:
            error = refused
    if error is not None:
        row.turns.append(_turn(row, seen, action, None))
        _fail(row, "step", error)
        return
    row.turns.append(_turn(row, seen, action, after))
    row.observation = after
    cut = action.stop is StopReason.TOKEN_LIMIT
    if after.terminated:
        row.stop = StopReason.TOKEN_LIMIT if cut else StopReason.TERMINATED
    elif after.truncated:
        row.stop = StopReason.TRUNCATED
    elif len(row.turns) >= limit:
        row.stop = StopReason.TOKEN_LIMIT if cut else StopReason.TURN_LIMIT


def _turn(row: _Row, seen: Observation, action: Action, after: Observation | None) -> Turn:
    return Turn(
        index=len(row.turns),
        observation=seen.text,
        action=action.text,
        data=seen.data,
        env_reward=after.reward if after else None,
        valid=after.action_valid if after else False,
        error=after.action_error if after else None,
        spans=after.action_spans if after else (),
        action_data=after.action_data if after else {},
        restart=seen.restart,
        cut=action.stop is StopReason.TOKEN_LIMIT,
        messages=seen.messages,
        calls=after.action_calls if after else (),
        tokens=action.tokens,
        usage=action.usage,
    )


def _fail(row: _Row, stage: str, error: Exception | SystemExit) -> None:
    row.failure = Failure(stage=stage, type=type(error).__name__, message=whole_characters(str(error)))
    row.stop = StopReason.FAILED


def _end(environment: Environment) -> None:
    """Close it. An error then is told and loses no episode."""
    try:
        blocking(environment).close()
    except (Exception, SystemExit) as error:
        warnings.warn(f"an environment could not be closed: {type(error).__name__}: {error}", stacklevel=2)


def _close(row: _Row, policy: str) -> Episode:
    outcome: dict[str, Any] = {}
    if row.stop is not StopReason.FAILED:
        try:
            outcome = plain(dict(settled(row.environment.outcome()) or {}), "outcome")
        except (Exception, SystemExit) as error:
            _fail(row, "outcome", error)
    assert row.stop is not None
    episode = Episode(
        task=row.task,
        policy=policy,
        turns=tuple(row.turns),
        stop=row.stop,
        system_prompt=row.system_prompt,
        tools=row.tools,
        group=row.group,
        member=row.member,
        outcome=outcome,
        failure=row.failure,
    )
    finished = row.stop is not StopReason.FAILED
    return replace(episode, final=row.observation) if finished else episode
