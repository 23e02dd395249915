"""Looking for a hack without knowing one: cross-entropy search over plans and small reactive tables.

Every shape of plan gets a share of the budget. A generation draws plans from a distribution that is independent in each
cell, plays them all on the same tasks in lockstep, and moves the distribution towards the best fifth. The plan that won so
far starts the next shape. Source: Rubinstein, Methodology and Computing in Applied Probability 1, 1999.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradus.audit.answers import AnswerSpace
from gradus.audit.features import Feature
from gradus.audit.plans import Plan, PlanPolicy, Shape
from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Task, child_seed
from gradus.rollouts import play

__all__ = ["Candidate", "Search", "Trial", "play_plans", "search"]

Objective = Callable[[Episode], float | None]
Progress = Callable[[int, int], None]
_Weights = list[npt.NDArray[np.float64]]  # per place (steps, bins, words)

_PLANS = 32  # in one generation
_TASKS = 6  # that each plan is played on
_ELITE = 6
_STEP = 0.6  # how far a generation moves the distribution
_FINAL_TASKS = 18


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan with its means over the tasks it was judged on."""

    plan: Plan
    grade: float
    yardstick: float
    objective: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One plan that was tried on the way: what the grader and the yardstick made of it, and its components."""

    plan: Plan
    grade: float
    yardstick: float
    components: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Search:
    """``best``: the best plan of every shape, judged on tasks of their own, best first. ``trials``: all that was tried."""

    best: Sequence[Candidate]
    trials: Sequence[Trial]
    episodes: int

    @property
    def constants(self) -> list[Trial]:
        """The trials that always give the same answer."""
        return [trial for trial in self.trials if trial.plan.table[0].size == 1]


@dataclass
class _Judge:
    """Plays plans and keeps count."""

    spec: EnvironmentSpec
    grader: Grader
    objective: Objective
    seed: int
    trials: list[Trial]
    episodes: int = 0
    tasks: int = 0

    def fresh(self, n: int) -> list[Task]:
        """The next ``n`` training tasks, so that no plan is chosen for the tasks it happened to meet."""
        first = self.tasks
        self.tasks += n
        return [self.spec.train_task(i) for i in range(first, first + n)]

    def judge(self, plans: Sequence[Plan], tasks: Sequence[Task]) -> list[Candidate]:
        """Means over ``tasks`` of every plan; a plan that never got a grade is worth minus infinity."""
        found = play_plans(self.spec, self.grader, plans, tasks, seed=self.seed)
        self.episodes += len(plans) * len(tasks)
        judged: list[Candidate] = []
        for plan, episodes in zip(plans, found, strict=True):
            grade = _mean([e.grade.value if e.grade else None for e in episodes])
            yardstick = _mean([e.metrics.get("yardstick") for e in episodes])
            aim = _mean([self.objective(e) for e in episodes])
            judged.append(Candidate(plan=plan, grade=grade, yardstick=yardstick, objective=aim))
            components = {
                name: _mean([e.grade.components.get(name) if e.grade else None for e in episodes])
                for name in self.grader.weights
            }
            self.trials.append(Trial(plan=plan, grade=grade, yardstick=yardstick, components=components))
        return judged


def search(
    spec: EnvironmentSpec,
    grader: Grader,
    *,
    space: AnswerSpace,
    features: Sequence[Feature],
    horizon: int,
    budget: int,
    seed: int,
    objective: Objective,
    progress: Progress | None = None,
) -> Search:
    """Maximise the mean of ``objective`` with at most about ``budget`` episodes of training tasks.

    ``horizon``: turns of a usual episode. The result is a function of the arguments: all randomness is keyed by ``seed``.
    """
    generation = _PLANS * _TASKS
    shapes = _shapes(features, horizon)
    least = len(shapes) * (generation + 2 * _FINAL_TASKS)
    if budget < least:
        raise ConfigError(
            f"a search over {len(shapes)} shapes of plans needs a budget of {least} episodes, got {budget}"
        )
    judge = _Judge(spec=spec, grader=grader, objective=objective, seed=seed, trials=[])
    rounds = (budget // len(shapes) - 2 * _FINAL_TASKS) // generation
    best: list[Candidate] = []
    for index, shape in enumerate(shapes):
        incumbent = max(best, key=lambda each: each.objective).plan if best else None
        best.append(_search_shape(judge, space, shape, horizon, rounds, incumbent, (seed, index)))
        if progress is not None:
            progress(judge.episodes, budget)
    ordered = sorted(best, key=lambda each: -each.objective)
    return Search(best=ordered, trials=judge.trials, episodes=judge.episodes)


def play_plans(
    spec: EnvironmentSpec,
    grader: Grader,
    plans: Sequence[Plan],
    tasks: Sequence[Task],
    *,
    seed: int,
    name: str = "search",
) -> list[list[Episode]]:
    """Every plan on every task, in lockstep: one list of episodes a plan, in the order of the tasks."""
    policy = PlanPolicy(plans, tasks=len(tasks), name=name)
    episodes = play(spec, policy, [*tasks] * len(plans), seed=seed, key=("audit",), grader=grader).episodes
    return [episodes[i * len(tasks) : (i + 1) * len(tasks)] for i in range(len(plans))]


def _shapes(features: Sequence[Feature], horizon: int) -> list[Shape]:
    """From simple to less simple; in a one-turn task only the constant and the reactive ones make sense."""
    shapes = [Shape(name="constant")]
    if horizon > 1:
        shapes += [Shape(name="cycle", steps=2, cycle=True), Shape(name="two stretches", steps=2)]
    if horizon >= 8:
        shapes.append(Shape(name="four stretches", steps=4))
    return [*shapes, *(Shape(name=f"table on {feature.name}", feature=feature) for feature in features)]


def _search_shape(
    judge: _Judge,
    space: AnswerSpace,
    shape: Shape,
    horizon: int,
    rounds: int,
    incumbent: Plan | None,
    key: tuple[int, int],
) -> Candidate:
    """The best plan of one shape."""
    rng = np.random.default_rng(child_seed(key[0], "audit", "search", key[1]))
    weights = _begin(space, shape, incumbent)
    carried = [_stretched(incumbent, shape)] if incumbent is not None else []
    champion: Candidate | None = None
    for _ in range(rounds):
        tables = [*carried, *_draw(weights, shape, rng, _PLANS - len(carried))]
        plans = [Plan(space=space, shape=shape, horizon=horizon, table=table) for table in tables]
        judged = sorted(judge.judge(plans, judge.fresh(_TASKS)), key=lambda each: -each.objective)
        _move(weights, [each.plan.table for each in judged[:_ELITE]])
        champion = judged[0]
        carried = [champion.plan.table]  # the winner must win again on other tasks
    mode = np.stack([place.argmax(axis=-1) for place in weights])
    finalists = [Plan(space=space, shape=shape, horizon=horizon, table=mode), *([champion.plan] if champion else [])]
    return max(judge.judge(finalists, judge.fresh(_FINAL_TASKS)), key=lambda each: each.objective)


def _begin(space: AnswerSpace, shape: Shape, incumbent: Plan | None) -> _Weights:
    """Uniform, leaning towards the words that the incumbent uses at each place."""
    weights: _Weights = []
    for place, size in enumerate(space.sizes):
        uniform = np.full(size, 1 / size)
        if incumbent is not None:
            used = np.bincount(incumbent.table[place].ravel(), minlength=size)
            uniform = 0.6 * uniform + 0.4 * used / used.sum()
        weights.append(np.tile(uniform, (shape.steps, shape.bins, 1)))
    return weights


def _stretched(incumbent: Plan, shape: Shape) -> npt.NDArray[np.intp]:
    """The incumbent's table in another shape: its stretches and bins are repeated where the new shape has more."""
    old = incumbent.table
    steps = [i * old.shape[1] // shape.steps for i in range(shape.steps)]
    bins = [i * old.shape[2] // shape.bins for i in range(shape.bins)]
    return old[:, steps][:, :, bins]


def _draw(weights: _Weights, shape: Shape, rng: np.random.Generator, n: int) -> list[npt.NDArray[np.intp]]:
    """``n`` tables (places, steps, bins), each cell independent: the place where a uniform number falls in the sum."""
    drawn = np.empty((n, len(weights), shape.steps, shape.bins), dtype=np.intp)
    for place, weight in enumerate(weights):
        below = np.cumsum(weight, axis=-1)[None]
        uniform = rng.random((n, shape.steps, shape.bins, 1))
        drawn[:, place] = np.minimum((uniform > below).sum(axis=-1), weight.shape[-1] - 1)
    return list(drawn)


def _move(weights: _Weights, elite: Sequence[npt.NDArray[np.intp]]) -> None:
    """Move each cell's distribution towards how often the elite uses each word there."""
    tables = np.stack(elite)
    for place, weight in enumerate(weights):
        used = (tables[:, place, :, :, None] == np.arange(weight.shape[-1])).mean(axis=0)
        weights[place] = (1 - _STEP) * weight + _STEP * used


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else -np.inf
