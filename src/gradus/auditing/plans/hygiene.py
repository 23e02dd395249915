"""Checks an environment for faults that ruin a run: chance, leaks, rewards out of range, and seeds that are used twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.auditing.leaks import telling_places, walk
from gradus.auditing.plans.determinism import Elsewhere, course, not_deterministic
from gradus.auditing.records import Check, PanelEpisodes
from gradus.core import EnvironmentSpec, Grader, Task
from gradus.core.waiting import blocking
from gradus.sandbox import clock

_TRAIN_SEEDS = 20_000
_TASKS = 4
_LEAK_TASKS = 24
_REASON = 300  # characters
_CONTENT = 200
_QUICK = 0.5  # seconds that a tenth of them may take to make
_SHARED = 0.1  # of the test questions; a small endless source repeats some by chance


def check_hygiene(
    spec: EnvironmentSpec,
    grader: Grader,
    panel: PanelEpisodes,
    draw: Callable[[int], str],
    *,
    seed: int,
    elsewhere: Elsewhere | None = None,
) -> Check:
    """All small tests at once; every problem is a sentence, and none is allowed."""
    every = spec.tasks(panel.condition)
    tasks = every[:_TASKS]
    problems_of = {
        "determinism": not_deterministic(
            spec, tasks, draw, seed, elsewhere, [e for episodes in panel.episodes.values() for e in episodes]
        ),
        "hidden state": leaks(spec, every[:_LEAK_TASKS], draw, seed),
        "range": _out_of_range(grader, panel),
        "grading": _ungraded(panel),
        "seeds": _shared_seeds(spec),
    }
    return _check(
        "hygiene", problems_of, "a seed gives one episode, nothing hidden is seen, and no reward leaves its range"
    )


def _check(name: str, problems_of: Mapping[str, Sequence[str]], declared: str) -> Check:
    problems = [problem for each in problems_of.values() for problem in each]
    status = "fail" if problems else "pass"
    return Check(name=name, status=status, evidence="; ".join(problems) or declared, measured=problems_of)


def check_tasks(
    spec: EnvironmentSpec, draw: Callable[[int], str], *, seed: int, elsewhere: Elsewhere | None = None
) -> Check:
    """The tasks of an environment of one turn: determinism, the answer in public data, and tasks that are used twice."""
    every = spec.tasks(next(iter(spec.conditions)))
    hidden = tuple(key for key in spec.audit.hidden if key == "answer")
    problems_of = {
        "determinism": not_deterministic(spec, every[:_TASKS], draw, seed, elsewhere),
        "hidden state": leaks(
            replace(spec, audit=replace(spec.audit, hidden=hidden)), every[:_LEAK_TASKS], draw, seed, texts=False
        ),
        "seeds": _shared_seeds(spec),
        "content": _shared_content(spec, every[:_CONTENT]),
    }
    return _check("tasks", problems_of, "the same seed is the same task, and no test task is a training task")


def _shared_content(spec: EnvironmentSpec, tasks: Sequence[Task]) -> list[str]:
    """Test questions that are also training questions, by their text; a spec that says what a task asks is kept apart by that."""
    if spec.content is not None:
        return []
    environment = blocking(spec.make())

    def text(task: Task) -> str:
        return environment.reset(seed=task.seed, **task.options).text

    started = clock.now()
    training = {text(spec.train_task(i)) for i in range(_CONTENT // 10)}
    if clock.now() - started < _QUICK:
        training |= {text(spec.train_task(i)) for i in range(_CONTENT)}
    else:
        tasks = tasks[: _CONTENT // 10]  # questions that are slow to make: a tenth of them
    shared = [task for task in tasks if text(task) in training]
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
    """Episodes without a reward, and why; a reason that several policies meet is said once."""
    reasons: dict[str, list[str]] = {}
    for name, episodes in panel.episodes.items():
        failed = [e.failure.message for e in episodes if e.failure]
        errors = [str(e.reward.error) for e in episodes if e.reward and e.reward.value is None]
        for met, what in ((failed, "failed"), (errors, "got no reward")):
            if met:
                of_policy = f"{len(met)} of {len(episodes)} of {name}"
                reasons.setdefault(f"{what} ({met[0][:_REASON]})", []).append(of_policy)
    told = "" if panel.is_graded else "; mend that first, then audit again"
    return [f"episodes {what}: {', '.join(names)}{told}" for what, names in reasons.items()]


def _shared_seeds(spec: EnvironmentSpec) -> list[str]:
    """Training tasks that are also tasks of a condition."""
    training = [spec.train_task(i) for i in range(_TRAIN_SEEDS)]
    seeds = {task.seed for task in training}
    problems: list[str] = []
    for name, condition in spec.conditions.items():
        shared = seeds & set(condition.seeds)
        same = [t for t in training if t.seed in shared and _options(t.options) == _options(condition.options)]
        if same:
            problems.append(f"{len(same)} training tasks are also in condition {name!r}, e.g. seed {same[0].seed}")
    return problems


def _options(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True, default=str)


def leaks(
    spec: EnvironmentSpec, tasks: Sequence[Task], draw: Callable[[int], str], seed: int, *, texts: bool = True
) -> list[str]:
    """Hidden keys, and places that show hidden values, in anything that is seen before the episode is over.

    ``texts``: look into the texts too, not only into structured data.
    """
    if not spec.audit.hidden:
        return []
    shown: list[list[tuple[str, Any]]] = []
    hidden: list[Mapping[str, Any]] = []
    keys: dict[str, None] = {}
    for task in tasks:
        environment = blocking(spec.make())
        seen = list(course(spec, environment, task, draw, seed))
        outcome = environment.outcome()
        hidden.append({key: outcome[key] for key in spec.audit.hidden if key in outcome})
        shown.append([])
        for turn, (observation, state) in enumerate(seen):
            if turn and (observation.terminated or observation.truncated):
                continue
            public = {"data": observation.data, "state": state, "action_data": observation.action_data}
            for place, value in public.items():
                for path, leaf in walk(value):
                    shown[-1].append((f"the {place} of turn {turn}: {'.'.join(map(str, path))}", leaf))
                    for key in (each for each in spec.audit.hidden if each in path):
                        keys.setdefault(f"the hidden key {key!r} is in the {place} of turn {turn}, seed {task.seed}")
            if texts:
                shown[-1].append((f"the text of turn {turn}", f"{environment.system_prompt}\n{observation.text}"))
        environment.close()
    return [*list(keys)[:2], *telling_places(shown, hidden)][:3]
