"""Rolling out groups of episodes at once: every policy call answers all episodes that wait for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

from gradus.core import (
    Action,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    Group,
    Observation,
    Policy,
    Request,
    Session,
    Task,
)
from gradus.rollouts.grading import grade_episodes
from gradus.rollouts.stepping import Stepper
from gradus.rollouts.under_way import UnderWay, make_environment, unequal_starts

MAX_CONCURRENT = 256  # episodes at once, unless a caller asks for fewer
Progress = Callable[[float, int], None]


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
    once, whole groups only. ``progress`` is told (episodes done, all); of one under way the share of its
    turns counts.
    """
    limit = spec.max_turns if max_turns is None else max_turns
    batch = _groups_at_once(spec, group_size, max_concurrent, limit)
    grader = grader or spec.grader()
    tasks = [spec.identify(task) for task in tasks]
    started = time.perf_counter()
    clock = _Clock()
    groups: list[Group] = []
    total = len(tasks) * group_size
    for first in range(0, len(tasks), batch):
        numbered = [(first_group + index, tasks[index]) for index in range(first, min(first + batch, len(tasks)))]
        stepper = Stepper(spec.stepping)
        rows = _open(spec, numbered, group_size, clock, stepper)

        def tell(done: float, before: int = first * group_size) -> None:
            if progress is not None:
                progress(before + done, total)

        try:
            _run_rows(policy, rows, (seed, *key), limit, clock, tell, stepper)
            episodes = [row.closed(policy.name) for row in rows]
        finally:
            for row in rows:
                row.end()
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


def _groups_at_once(spec: EnvironmentSpec, group_size: int, max_concurrent: int, limit: int) -> int:
    """Return how many groups are rolled out together. Raises ConfigError for numbers that cannot be used."""
    if min(group_size, max_concurrent, limit) < 1:
        raise ConfigError(
            f"expected group_size, max_concurrent and max_turns of at least 1, got {group_size}, {max_concurrent} and {limit}"
        )
    most = max_concurrent if spec.max_sessions is None else min(max_concurrent, spec.max_sessions)
    if spec.max_sessions is not None and group_size > most:
        raise ConfigError(
            f"group_size {group_size} needs as many episodes at once, but {spec.name} allows {most}; lower the group "
            "size, or allow more (the address of an OpenEnv server says how many: ?sessions=8)"
        )
    return max(1, most // group_size)


def _open(
    spec: EnvironmentSpec, numbered: Sequence[tuple[int, Task]], group_size: int, clock: _Clock, stepper: Stepper
) -> list[UnderWay]:
    """Reset one environment per member and check that a group begins as one."""
    before = time.perf_counter()
    rows: list[UnderWay] = []
    try:
        for index, task in numbered:
            for member in range(group_size):
                made = make_environment(spec)
                told = {"task": task, "group": index, "member": member, "foreign": spec.foreign}
                rows.append(UnderWay(**told, environment=made, observation=Observation(text="")))
        for number, observation, error in stepper.all([row.reset_call() for row in rows]):
            rows[number].opened(observation, error)
        for first in range(0, len(rows), group_size):
            _check_equal_starts(rows[first : first + group_size])
    except BaseException:
        for row in rows:
            row.end()
        raise
    clock.environment += time.perf_counter() - before
    return rows


def _check_equal_starts(members: Sequence[UnderWay]) -> None:
    """Members of a group must not differ before the policy has done anything; credit would be noise otherwise."""
    alive = [row for row in members if row.stop is None and not row.foreign]
    for row in alive[1:]:
        if (differing := unequal_starts(alive[0].shown(), row.shown())) is not None:
            raise EnvironmentFault(
                f"members of a group must begin with equal observations, but seed {row.task.seed} gave {differing}; "
                "key the environment's noise by its seed instead of drawing it from a shared stream"
            )


def _run_rows(
    policy: Policy,
    rows: list[UnderWay],
    key: tuple[int | str, ...],
    limit: int,
    clock: _Clock,
    tell: Callable[[float], None],
    stepper: Stepper,
) -> None:
    starts = [row.start(key) for row in rows]
    before = time.perf_counter()
    session = policy.start(starts)
    clock.policy += time.perf_counter() - before
    taken: dict[int, Action] = {}  # what a row's environment is busy with
    try:
        waiting = [index for index, row in enumerate(rows) if row.stop is None]
        while waiting or stepper.busy:
            tell(fsum(1.0 if row.stop is not None else len(row.turns) / limit for row in rows))
            after = before = time.perf_counter()
            if waiting:
                actions = _ask(
                    policy, session, [Request(row=index, observation=rows[index].observation) for index in waiting]
                )
                after = time.perf_counter()
                clock.policy += after - before
                for index, action in zip(waiting, actions, strict=True):
                    if rows[index].acts(action):
                        taken[index] = action
                        stepper.begin(index, rows[index].step_call(action))
            waiting = []
            for index, seen, error in stepper.collect():
                rows[index].take(taken.pop(index), seen, error, limit)
                waiting += [index] if rows[index].stop is None else []
            clock.environment += time.perf_counter() - after
        tell(len(rows))
    finally:
        session.close()


def _ask(policy: Policy, session: Session, requests: Sequence[Request]) -> Sequence[Action]:
    actions = session.act(requests)
    if len(actions) != len(requests):
        raise EnvironmentFault(
            f"policy {policy.name!r} answered {len(actions)} of {len(requests)} requests; "
            "Session.act must return one Action per request, in order"
        )
    return actions
