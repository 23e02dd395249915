"""Rolling out groups of episodes at once: every policy call answers all episodes that wait for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from math import fsum

from gradus.core import (
    Action,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    Group,
    Policy,
    Request,
    Session,
    Task,
)
from gradus.core.frozen_record import frozen_record
from gradus.rollouts.grading import grade_episodes, lowest_reward
from gradus.rollouts.stepping import Stepper
from gradus.rollouts.under_way import UnderWay, make_environment, unequal_starts

MAX_CONCURRENT = 256  # episodes at once, unless a caller asks for fewer
Progress = Callable[[float, int], None]


@frozen_record
class RolloutResult:
    """Groups that were rolled out and graded, one per task in the order of the tasks.

    ``seconds`` holds policy (its answers), environment (reset and step), reward and total.
    """

    groups: Sequence[Group]
    seconds: dict[str, float]

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, groups one after another."""
        return episodes_of(self.groups)


def episodes_of(groups: Iterable[Group]) -> list[Episode]:
    """Returns all episodes, groups one after another."""
    return [episode for group in groups for episode in group.episodes]


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
    lowest: float = 0.0,
    progress: Progress | None = None,
) -> RolloutResult:
    """Roll out ``group_size`` episodes of every task and grade them.

    The randomness of a member is keyed by (seed, *key, group, member) and by nothing else, so a group can be rolled out again
    alone or in another call: ``first_group`` is the number of the first one here. At most ``max_concurrent`` episodes run at
    once, whole groups only. ``lowest``: the smallest reward
    so far, see :func:`grade_episodes`. ``progress`` is told (episodes done, all); of one under way the share of its
    turns counts.
    """
    limit = spec.max_turns if max_turns is None else max_turns
    batch = _groups_at_once(spec, group_size, max_concurrent, limit)
    seconds: dict[str, float] = dict.fromkeys(("policy", "environment", "reward", "total"), 0.0)
    rollout = _Rollout(spec=spec, policy=policy, key=(seed, *key), limit=limit, group_size=group_size, seconds=seconds)
    grader = grader or spec.grader()
    identified = [spec.identify(task) for task in tasks]
    total = len(tasks) * group_size
    groups: list[Group] = []
    with _timed(seconds, "total"):
        for first in range(0, len(tasks), batch):
            part = identified[first : first + batch]
            episodes = rollout.run(part, first_group + first, partial(_tell, progress, first * group_size, total))
            with _timed(seconds, "reward"):
                episodes = grade_episodes(spec, episodes, grader, lowest=lowest)
                lowest = lowest_reward(episodes, lowest)
            # The members of a group follow each other.
            for index, task in enumerate(part):
                members = episodes[index * group_size : (index + 1) * group_size]
                groups.append(Group(task=task, episodes=tuple(members)))
    return RolloutResult(groups=groups, seconds=seconds)


def _tell(progress: Progress | None, before: int, total: int, finished: float) -> None:
    if progress is not None:
        progress(before + finished, total)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Generator[None]:
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started


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
    # A group is never cut, also if it is larger than max_concurrent.
    return max(1, most // group_size)


@frozen_record
class _Rollout:
    """The settings of all batches, and the ``seconds`` that their parts take."""

    spec: EnvironmentSpec
    policy: Policy
    key: tuple[int | str, ...]
    limit: int
    group_size: int
    seconds: dict[str, float]

    def run(self, tasks: Sequence[Task], first_group: int, progress: Callable[[float], None]) -> list[Episode]:
        """Roll out the groups of one batch, not graded. Each environment is closed, whatever happens."""
        stepper = Stepper(self.spec.stepping)
        with ExitStack() as stack:
            with _timed(self.seconds, "environment"):
                rows = self._open(tasks, first_group, stack)
                for number, observation, error in stepper.all([row.reset_call() for row in rows]):
                    rows[number].opened(observation, error)
                for first in range(0, len(rows), self.group_size):
                    _check_equal_starts(rows[first : first + self.group_size])
            with _timed(self.seconds, "policy"):
                session = self.policy.start([row.start(self.key) for row in rows])
            # The session ends before outcomes are read: a policy has nothing to say about them.
            with closing(session):
                self._run_rows(session, rows, stepper, progress)
            return [row.closed(self.policy.name) for row in rows]

    def _open(self, tasks: Sequence[Task], first_group: int, stack: ExitStack) -> list[UnderWay]:
        """Make one environment per member."""
        rows: list[UnderWay] = []
        for group, task in enumerate(tasks, first_group):
            for member in range(self.group_size):
                row = UnderWay(
                    spec=self.spec,
                    task=task,
                    group=group,
                    member=member,
                    environment=make_environment(self.spec),
                )
                stack.callback(row.end)
                rows.append(row)
        return rows

    def _run_rows(
        self, session: Session, rows: list[UnderWay], stepper: Stepper, progress: Callable[[float], None]
    ) -> None:
        actions: dict[int, Action] = {}  # by row, while its environment is busy
        waiting = [index for index, row in enumerate(rows) if row.stop is None]
        while waiting or stepper.busy:
            shares = [1.0 if row.stop is not None else len(row.turns) / self.limit for row in rows]
            progress(fsum(shares))
            with _timed(self.seconds, "policy"):
                answers = self._ask(session, rows, waiting)
            with _timed(self.seconds, "environment"):
                for index, action in zip(waiting, answers, strict=True):
                    if rows[index].acts(action):
                        actions[index] = action
                        stepper.begin(index, rows[index].step_call(action))
                finished = stepper.collect()
                for index, observation, error in finished:
                    rows[index].take(actions.pop(index), observation, error, self.limit)
            waiting = [index for index, _, _ in finished if rows[index].stop is None]
        progress(len(rows))

    def _ask(self, session: Session, rows: Sequence[UnderWay], waiting: Sequence[int]) -> Sequence[Action]:
        # Environments that take time may keep all rows busy.
        if not waiting:
            return []
        requests = [Request(row=index, observation=rows[index].observation) for index in waiting]
        actions = session.act(requests)
        if len(actions) != len(waiting):
            raise EnvironmentFault(
                f"policy {self.policy.name!r} answered {len(actions)} of {len(waiting)} requests; "
                "Session.act must return one Action per request, in order"
            )
        return actions


def _check_equal_starts(members: Sequence[UnderWay]) -> None:
    """Members of a group must not differ before the policy has done anything; credit would be noise otherwise."""
    # An agent of somebody else begins when it is called, so its first observation says nothing.
    alive = [row for row in members if row.stop is None and not row.spec.foreign]
    for row in alive[1:]:
        difference = unequal_starts(alive[0].shown(), row.shown())
        if difference is not None:
            raise EnvironmentFault(
                f"members of a group must begin with equal observations, but seed {row.task.seed} gave {difference}; "
                "key the environment's noise by its seed instead of drawing it from a shared stream"
            )
