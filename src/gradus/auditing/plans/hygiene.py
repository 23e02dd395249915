"""Checks an environment for faults that ruin a run: chance, leaks, rewards out of range, and seeds that are used twice."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from gradus.auditing.leaks import places_of_text, telling_place, walk
from gradus.auditing.records import AuditCheck, PanelEpisodes
from gradus.core import EnvironmentSpec, Grader, Observation, Task, child_seed
from gradus.core.values import plain
from gradus.core.waiting import blocking
from gradus.sandbox import clock

Draw = Callable[[int], str]
Elsewhere = Callable[[Sequence[Task], int, int], Sequence[Sequence[str]]]  # of tasks, a seed and a PYTHONHASHSEED
_RAISED = "the environment raised "
_TRAIN_SEEDS = 20_000
_TASKS = 4
_HASH_SEEDS = 0, 4711  # two, as the small sets of one process stand as in another by chance
_LEAK_TASKS = 24
_CONTENT = 200  # questions, as many as a second makes
_SHARED = 0.1  # of the test questions; a small endless source repeats some by chance


def check_hygiene(
    spec: EnvironmentSpec,
    grader: Grader,
    panel: PanelEpisodes,
    draw: Draw,
    *,
    seed: int,
    elsewhere: Elsewhere | None = None,
) -> AuditCheck:
    """All small tests at once; every problem is a sentence, and none is allowed."""
    every = spec.tasks(panel.condition)
    problems_of = {
        "determinism": _not_deterministic(spec, every[:_TASKS], draw, seed, elsewhere),
        "hidden state": _leaks(spec, every[:_LEAK_TASKS], draw, seed, keys=spec.audit.hidden),
        "range": _out_of_range(grader, panel),
        "grading": _ungraded(panel),
        "seeds": _shared_seeds(spec),
    }
    return _check(
        "hygiene", problems_of, "a seed gives one episode, nothing hidden is seen, and no reward leaves its range"
    )


def check_tasks(spec: EnvironmentSpec, draw: Draw, *, seed: int, elsewhere: Elsewhere | None = None) -> AuditCheck:
    """The tasks of an environment of one turn: determinism, the answer in public data, and tasks that are used twice."""
    every = spec.tasks(next(iter(spec.conditions)))
    keys = [key for key in spec.audit.hidden if key == "answer"]
    problems_of = {
        "determinism": _not_deterministic(spec, every[:_TASKS], draw, seed, elsewhere),
        "hidden state": _leaks(spec, every[:_LEAK_TASKS], draw, seed, keys=keys, texts=False),
        "seeds": _shared_seeds(spec),
        "content": _shared_content(spec, every[:_CONTENT]),
    }
    return _check("tasks", problems_of, "the same seed is the same task, and no test task is a training task")


def _check(name: str, problems_of: Mapping[str, Sequence[str]], declared: str) -> AuditCheck:
    problems = [problem for each in problems_of.values() for problem in each]
    status = "fail" if problems else "pass"
    return AuditCheck(subject=name, status=status, evidence="; ".join(problems) or declared, measured=problems_of)


def _course(
    spec: EnvironmentSpec, environment: Any, task: Task, draw: Draw, seed: int
) -> Iterator[tuple[Observation, Mapping[str, Any]]]:
    """Observations and public states of one episode with random answers keyed by the task.

    An environment that raises ends its episode with an observation that says so, as a rollout would, and not the audit.
    """
    try:
        observation = environment.reset(seed=task.seed, episode_id="audit", **task.options)
        yield observation, dict(environment.state)
        for turn in range(spec.max_turns):
            if observation.terminated or observation.truncated:
                return
            observation = environment.step(draw(child_seed(seed, "hygiene", task.seed, turn) % 2**31))
            yield observation, dict(environment.state)
    except (Exception, SystemExit) as error:
        told = f"{_RAISED}{type(error).__name__}: {error}"
        yield Observation(text=told, terminated=True), {}


def digests(spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int) -> list[list[str]]:
    """One digest for each observation of every task, in environments of their own, to compare with another process."""
    rows: list[list[str]] = []
    for task in tasks:
        with closing(blocking(spec.make())) as environment:
            rows.append([_digest(shown) for shown, _ in _course(spec, environment, task, draw, seed)])
    return rows


def _not_deterministic(
    spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int, elsewhere: Elsewhere | None
) -> list[str]:
    """Each task in a fresh environment, after other tasks beside another environment, and in another process."""
    first = digests(spec, tasks, draw, seed)
    again: dict[int, list[Observation]] = {}
    state = random.getstate()
    with closing(blocking(spec.make())) as used, closing(blocking(spec.make())) as other:
        for task in reversed(tasks):
            again[task.seed] = []
            beside = iter(()) if spec.max_sessions == 1 else _course(spec, other, tasks[0], draw, seed)
            for shown, _ in _course(spec, used, task, draw, seed):
                again[task.seed].append(shown)
                random.random()  # an environment may not see what others draw, or do
                next(beside, None)
    random.setstate(state)
    ends = {number: seen[-1].text for number, seen in again.items()}
    raised = [f"on seed {number} {told[:120]}" for number, told in ends.items() if told.startswith(_RAISED)]
    twice = [list(map(_digest, again[task.seed])) for task in tasks]
    problems = [*raised[-1:], *_differing("rolled out twice", tasks, first, twice)]
    if elsewhere is None or problems:
        return problems
    how = "rolled out in a process with another PYTHONHASHSEED"
    compared = (_differing(how, tasks, first, elsewhere(tasks, seed, hash_seed)) for hash_seed in _HASH_SEEDS)
    return next(filter(None, compared), [])


def _differing(
    how: str, tasks: Sequence[Task], first: Iterable[Sequence[str]], again: Iterable[Sequence[str]]
) -> list[str]:
    """The first task whose observations are others than at first."""
    for task, here, there in zip(tasks, first, again, strict=False):
        if list(there) != list(here):
            turn = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), len(there))
            return [f"seed {task.seed} {how} differs at turn {turn}"]
    return []


def _digest(observation: Observation) -> str:
    told = [observation.text, observation.reward, observation.terminated, observation.truncated, observation.data]
    text = json.dumps(plain(told), sort_keys=True)  # mappings in one order, so that only content counts
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _leaks(
    spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int, *, keys: Sequence[str], texts: bool = True
) -> list[str]:
    """Hidden keys, and places that show hidden values, in anything that is seen before the episode is over.

    ``texts``: look into the texts too, not only into structured data.
    """
    shown: list[dict[str, Any]] = []
    outcomes: list[Mapping[str, Any]] = []
    named: dict[str, None] = {}
    for task in tasks if keys else ():
        environment = blocking(spec.make())
        places: dict[str, Any] = {}
        for turn, (observation, state) in enumerate(_course(spec, environment, task, draw, seed)):
            if turn and (observation.terminated or observation.truncated):
                continue
            public = {"data": observation.data, "state": state, "action_data": observation.action_data}
            for path, leaf in walk(public):
                place = f"the {path[0]} of turn {turn}"
                places[f"{place}: {'.'.join(path[1:])}"] = leaf
                named |= dict.fromkeys(f"the hidden key {key!r} is in {place}" for key in keys if key in path)
            if texts:
                text = f"{environment.system_prompt}\n{observation.text}"
                places |= places_of_text(text, f"the text of turn {turn}")
        shown.append(places)
        outcomes.append(environment.outcome())
        environment.close()
    problems = list(named)[:2]
    for key in keys:
        hidden = [[leaf for _, leaf in walk(outcome.get(key))] for outcome in outcomes]
        if (place := telling_place(shown, hidden)) is not None:
            example = next(leaf for each in hidden for leaf in each)
            problems.append(f"hidden {key} (as {example!r}) is in {place}")
    return problems[:3]


def _shared_content(spec: EnvironmentSpec, tasks: Sequence[Task]) -> list[str]:
    """Test questions that are also training questions, by their text; a spec that says what a task asks is kept apart by that."""
    if spec.content is not None:
        return []
    environment = blocking(spec.make())
    until = clock.now() + 1.0
    training: set[str] = set()
    for i in range(len(tasks)):
        if clock.now() > until:  # questions that are slow to make
            tasks = tasks[:i]
            break
        drawn = spec.train_task(i)
        training.add(environment.reset(seed=drawn.seed, **drawn.options).text)
    shared = [task for task in tasks if environment.reset(seed=task.seed, **task.options).text in training]
    environment.close()
    told = f"{len(shared)} of {len(tasks)} test questions are training questions too, e.g. seed"
    return [f"{told} {shared[0].seed}"] if len(shared) > _SHARED * len(tasks) else []


def _out_of_range(grader: Grader, panel: PanelEpisodes) -> list[str]:
    if grader.range is None:
        return []
    low, high = grader.range
    for name in panel.episodes:
        for episode, value in zip(panel.episodes[name], panel.rewards(name), strict=True):
            if value is not None and not low - 1e-9 <= value <= high + 1e-9:
                return [
                    f"{name} gets {value:.4f} on seed {episode.task.seed}, outside the declared range [{low:g}, {high:g}]"
                ]
    return []


def _ungraded(panel: PanelEpisodes) -> list[str]:
    """Episodes without a reward, and the first reason."""
    every = [e for episodes in panel.episodes.values() for e in episodes]
    failed = [e.failure.message for e in every if e.failure]
    errors = [str(e.reward.error) for e in every if e.reward and e.reward.value is None]
    told = "" if panel.is_graded else "; mend that first, then audit again"
    reasons = {f"failed ({failed[0]:.300})": failed} if failed else {}
    reasons |= {f"got no reward ({errors[0]:.300})": errors} if errors else {}
    return [f"{len(met)} of {len(every)} episodes {reason}{told}" for reason, met in reasons.items()]


def _shared_seeds(spec: EnvironmentSpec) -> list[str]:
    """Training tasks that are also tasks of a condition."""
    training = [spec.train_task(i) for i in range(_TRAIN_SEEDS)]
    seeds = {task.seed for task in training}
    problems: list[str] = []
    for name, condition in spec.conditions.items():
        shared, options = seeds & set(condition.seeds), dict(condition.options)
        same = [task for task in training if task.seed in shared and dict(task.options) == options]
        if same:
            problems.append(f"{len(same)} training tasks are also in condition {name!r}, e.g. seed {same[0].seed}")
    return problems
