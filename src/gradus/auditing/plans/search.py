"""Looking for a hack without knowing one: cross-entropy search over plans and bent reflexes.

Every shape of plan gets a share of the budget. A generation draws plans from a distribution that is independent in each
step, rolls them all out on the same tasks at once, and moves the distribution towards the best. The plan that won so far
starts the next shape. Source: Rubinstein, Methodology and Computing in Applied Probability 1, 1999.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import cast

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.plan import (
    AnswerSpace,
    Plan,
    PlanPolicy,
    Shape,
    Table,
)
from gradus.auditing.records import rewards_of, true_rewards_of
from gradus.core import (
    EnvironmentSpec,
    Episode,
    Grader,
    Policy,
    Task,
    child_seed,
)
from gradus.core.frozen_record import frozen_record
from gradus.rollouts import roll_out

Objective = Callable[[Sequence[Episode]], Sequence[float | None]]
Progress = Callable[[float, int], None]
Weights = npt.NDArray[np.float64]

_PLANS = 32  # in one generation
_TASKS = 6  # that each plan is rolled out on
_ELITE = 6
_MOST_SWEPT = 40  # answers that are each given once
_MOST_PAIRED = 12
_TIMES = (1, 2, 3)  # that an answer is given before another one
_SWEEP_TASKS = 2
_LONG = 8  # turns of an episode that may have four stretches
_FINAL_TASKS = 18
_BENT = 4.0  # as much of the budget as any other shape: its table is the largest
_AFTER = (0.25, 0.5)  # of an episode: when a cycle may begin that follows upon skill
_MOVE = 0.5  # how far a generation moves the distribution
_LEAN = 0.4  # towards the words of the plan that won before
_KEEP = 0.5  # chance at the start that a bent reflex keeps its own word
_TIED = 0.5  # chance that a draw uses one word in all steps of a place: what is constant is found sooner


@frozen_record
class Field:
    """The search space: an environment under a grader, the possible answers, and the length of an episode."""

    spec: EnvironmentSpec
    grader: Grader
    space: AnswerSpace
    horizon: int  # turns of a usual episode
    reflex: Policy | None  # which plans may bend
    keeps: tuple[bool, ...]
    skilled: bool  # the reflex is a teacher, which reaches what pays again and again

    def roll_out(self, plans: Sequence[Plan], tasks: Sequence[Task], *, seed: int) -> list[list[Episode]]:
        """Every plan on every task, at once: one list of episodes a plan, in the order of the tasks."""
        n = len(tasks)
        policy = PlanPolicy(plans, tasks=n, reflex=self.reflex)
        repeated = [*tasks] * len(plans)
        # One rollout of all: an environment or a reflex on a server is asked for all plans together.
        episodes = roll_out(self.spec, policy, repeated, seed=seed, key=("audit",), grader=self.grader).episodes
        return [episodes[i : i + n] for i in range(0, len(repeated), n)]


@frozen_record
class Candidate:
    """A plan with its means over the tasks it was judged on. Without any reward a mean is minus infinity."""

    plan: Plan
    reward: float
    true_reward: float
    objective: float


@dataclass(kw_only=True)
class Search:
    """A search under way, and what it has tried."""

    field: Field
    objective: Objective
    seed: int
    # Of every shape, judged on tasks of its own, best first.
    best: list[Candidate] = dataclasses.field(default_factory=list[Candidate])
    trials: list[Candidate] = dataclasses.field(default_factory=list[Candidate])  # all that was tried
    episodes: int = 0  # that were rolled out for it
    _tasks: int = 0

    def judge(self, plans: Sequence[Plan], tasks: int) -> list[Candidate]:
        """Means of every plan over the next ``tasks`` training tasks, so that none is chosen for the tasks it happened to meet."""
        training = [self.field.spec.train_task(i) for i in range(self._tasks, self._tasks + tasks)]
        self._tasks += tasks
        self.episodes += len(plans) * tasks
        rolled_out = self.field.roll_out(plans, training, seed=self.seed)
        candidates = [
            Candidate(
                plan=plan,
                reward=_mean(rewards_of(episodes)),
                true_reward=_mean(true_rewards_of(episodes)),
                objective=_mean(self.objective(episodes)),
            )
            for plan, episodes in zip(plans, rolled_out, strict=True)
        ]
        self.trials += candidates
        return candidates


def least_budget(field: Field) -> int:
    """Episodes that one search takes at least: a generation of every shape of plan."""
    return round((_PLANS * _TASKS + 2 * _FINAL_TASKS) * sum(_shapes(field).values()))


def search(
    field: Field,
    *,
    budget: int,
    seed: int,
    objective: Objective,
    progress: Progress,
) -> Search:
    """Maximize the mean of ``objective`` with at most about ``budget`` episodes of training tasks.

    The result is a function of the arguments: all randomness is keyed by ``seed``.
    """
    shapes = _shapes(field)
    total = sum(shapes.values())
    under_way = Search(field=field, objective=objective, seed=seed)
    for index, (shape, share) in enumerate(shapes.items()):
        # Each shape ends with two finalists, whose tasks are set aside first.
        rounds = int((budget * share / total - 2 * _FINAL_TASKS) // (_PLANS * _TASKS))
        rng = np.random.default_rng(child_seed(seed, "audit", "search", index))
        under_way.best.append(_search_shape(under_way, shape, rounds, rng))
        progress(under_way.episodes, budget)
    further = _sweeps(field)
    if further:
        # Hundreds of plans: few tasks for all, more for the best of them, and others for the winner, which had luck too.
        first = sorted(under_way.judge(further, _SWEEP_TASKS), key=_by_objective)
        second = under_way.judge([candidate.plan for candidate in first[:_PLANS]], _TASKS)
        winner = min(second, key=_by_objective)
        under_way.best += under_way.judge([winner.plan], _FINAL_TASKS)
    under_way.best.sort(key=_by_objective)
    return under_way


def _sweeps(field: Field) -> list[Plan]:
    """Plans that need no search if an answer is one of a few: every answer once and then one of them again and again, pairs in turn, and one some times, then another.

    "Add everything, then check out" is such a plan, and no cycle or stretch is one.
    """
    sizes = field.space.sizes
    if field.horizon < 2 or len(sizes) != 1 or sizes[0] > _MOST_SWEPT:
        return []
    answers = list(range(sizes[0]))
    orders = [answers[:last] + answers[last + 1 :] + [last] for last in answers]
    sweep = Shape(name="every answer once", steps=len(answers), each=True)
    rows: list[tuple[Shape, Sequence[int], int]] = [(sweep, order, field.horizon) for order in orders]
    if len(answers) <= _MOST_PAIRED:
        cycle = Shape(name="pair", steps=2, cycle=True)
        stretches = Shape(name="two stretches", steps=2)
        rows += [(cycle, pair, field.horizon) for pair in combinations(answers, 2)]
        # How long the first answer goes on is no share of an episode whose length depends on the answers.
        rows += [(stretches, pair, 2 * times) for times in _TIMES for pair in permutations(answers, 2)]
    plans: list[Plan] = []
    for shape, row, horizon in rows:
        table = np.array([row], dtype=np.intp)
        plans.append(Plan(space=field.space, shape=shape, horizon=horizon, table=table))
    return plans


def _by_objective(candidate: Candidate) -> float:
    """The key that puts the best candidate first."""
    return -candidate.objective


def _shapes(field: Field) -> dict[Shape, float]:
    """From simple to less simple, each with its share; in a one-turn task only the constant makes sense."""
    is_long = field.horizon >= _LONG
    shapes = [Shape(name="constant")]
    if field.horizon > 1:
        shapes += [Shape(name="cycle", steps=2, cycle=True), Shape(name="two stretches", steps=2)]
    if is_long:
        shapes.append(Shape(name="four stretches", steps=4))
    shares = dict.fromkeys(shapes, 1.0)
    if field.reflex is None or not any(field.keeps):
        return shares
    steps = 4 if is_long else min(2, field.horizon)
    bent = Shape(name="bent reflex", steps=steps, bends=field.reflex.name, keeps=field.keeps)
    shares[bent] = _BENT
    if field.skilled and field.horizon > 1:  # what earns again and again what the teacher reaches once
        for after in _AFTER:
            shares[replace(bent, name="cycle after skill", steps=3, after=after)] = 1.0
    return shares


def _search_shape(search: Search, shape: Shape, rounds: int, rng: np.random.Generator) -> Candidate:
    """The best plan of one shape."""
    space = search.field.space
    horizon = search.field.horizon
    incumbent = min(search.best, key=_by_objective).plan if search.best else None
    distribution = Distribution.begin(space, shape, incumbent)
    carried = distribution.stretched(incumbent) if incumbent else []

    def plan(table: Table) -> Plan:
        return Plan(space=space, shape=shape, horizon=horizon, table=table)

    for _ in range(max(1, rounds)):
        tables = [*carried, *distribution.draw(rng, _PLANS - len(carried))]
        judged = sorted(search.judge(list(map(plan, tables)), _TASKS), key=_by_objective)
        distribution.move([candidate.plan.table for candidate in judged[:_ELITE]])
        carried = [judged[0].plan.table]  # the winner must win again on other tasks
    finalists = [plan(distribution.mode()), plan(carried[0])]
    return min(search.judge(finalists, _FINAL_TASKS), key=_by_objective)


def _mean(values: Sequence[float | None]) -> float:
    """The mean of the values that are known, minus infinity if there are none."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else -np.inf


@dataclass
class Distribution:
    """``weights``: per place an array (steps, words), each step summing to 1."""

    shape: Shape
    weights: list[Weights]

    @classmethod
    def begin(cls, space: AnswerSpace, shape: Shape, incumbent: Plan | None) -> Distribution:
        """Uniform, leaning towards the words that the incumbent uses at each place, and towards the reflex it may bend."""
        weights: list[Weights] = []
        for place, size in enumerate(space.sizes):
            words = np.full(size, 1 / size)
            if incumbent is not None:
                # A bent plan may keep the reflex's own word, one past the last, at all steps; then it uses none.
                used = np.bincount(incumbent.table[place], minlength=size)[:size]
                if used.any():
                    words = (1 - _LEAN) * words + _LEAN * used / used.sum()
            if shape.bends and shape.keeps[place]:
                words = np.append(words * (1 - _KEEP), _KEEP)
            weights.append(np.tile(words, (shape.steps, 1)))
        return cls(shape=shape, weights=weights)

    def stretched(self, incumbent: Plan) -> list[Table]:
        """The incumbent's table in this shape, repeated if there are more steps; and with the reflex's words kept."""
        steps = incumbent.table.shape[1]
        columns = [column * steps // self.shape.steps for column in range(self.shape.steps)]
        table = incumbent.table[:, columns].copy()
        if not self.shape.bends:
            return [table]
        bent = table.copy()
        for place, keeps in enumerate(self.shape.keeps):
            if keeps:
                bent[place] = self.weights[place].shape[-1] - 1
        return [table, bent]

    def draw(self, rng: np.random.Generator, n: int) -> list[Table]:
        """``n`` tables (places, steps): in each step the place where a uniform number falls in the running sum."""
        drawn = np.empty((n, len(self.weights), self.shape.steps), dtype=np.intp)
        for place, weight in enumerate(self.weights):
            last = weight.shape[-1] - 1
            uniform = rng.random((n, self.shape.steps, 1))
            by_step = (uniform > np.cumsum(weight, axis=-1)[None]).sum(axis=-1)
            # One uniform number for all steps, in the running sum of the mean over steps.
            tied: Table = (rng.random((n, 1)) > np.cumsum(weight.mean(axis=0))).sum(axis=-1)
            is_tied = rng.random((n, 1)) < _TIED
            # The running sum may end a rounding below 1, and a number above it would name no word.
            drawn[:, place] = np.minimum(np.where(is_tied, tied[:, None], by_step), last)
        return list(drawn)

    def move(self, elite: Sequence[Table]) -> None:
        """Move each step towards how often the elite uses each word there."""
        tables = np.stack(elite)
        for place, weight in enumerate(self.weights):
            words: Table = np.arange(weight.shape[-1], dtype=np.intp)
            hits = cast("npt.NDArray[np.bool_]", tables[:, place, :, None] == words)
            used: Weights = hits.mean(axis=0)
            self.weights[place] = (1 - _MOVE) * weight + _MOVE * used

    def mode(self) -> Table:
        """The most likely table."""
        return np.stack([weight.argmax(axis=-1) for weight in self.weights])
