"""Checks an environment for faults that ruin a run: chance, leaks, rewards out of range, and seeds that are used twice."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from gradus.auditing.leaks import places_of_text, telling_place, walk
from gradus.auditing.plans.plan import PlanSubject
from gradus.auditing.records import AuditCheck, PanelEpisodes, shortened
from gradus.core import EnvironmentSpec, Grader, Observation, Task, child_seed
from gradus.core.values import Json, JsonDict, plain
from gradus.core.waiting import blocking
from gradus.rollouts.under_way import first_sight
from gradus.sandbox import clock

# Of tasks and a seed: the observations of every task, as each of several processes sees them.
Elsewhere = Callable[[Sequence[Task], int], Sequence[Sequence[Sequence[str]]]]
_RAISED = "the environment raised "
_TRAIN_SEEDS = 20_000
_TASKS = 4
_LEAK_TASKS = 24
_CONTENT = 200  # questions, as many as a second makes
_SHARED = 0.1  # of the test questions; a small endless source repeats some by chance


def check_hygiene(subject: PlanSubject, panel: PanelEpisodes, *, elsewhere: Elsewhere | None = None) -> AuditCheck:
    """All small tests at once; every problem is a sentence, and none is allowed."""
    spec = subject.spec
    tasks = spec.tasks(panel.condition)
    problems = {
        "determinism": _not_deterministic(subject, tasks[:_TASKS], elsewhere),
        "hidden state": _leaks(subject, tasks[:_LEAK_TASKS], keys=spec.audit.hidden),
        "range": _out_of_range(subject.grader, panel),
        "grading": _ungraded(panel) if panel.is_graded else [],
        "seeds": _shared_seeds(spec),
    }
    sound = "a seed gives one episode, nothing hidden is seen, and no reward leaves its range"
    check = _check("hygiene", problems, sound)
    # Whatever an agent calls may answer otherwise next time, and random answers may well break it.
    if spec.foreign and check.status == "fail":
        return replace(check, status="open")
    return check


def not_graded(panel: PanelEpisodes) -> AuditCheck:
    """The one finding if no episode got a reward: the grader raises on all of them, the environment did, or it took no answer."""
    failed = sum(episode.failure is not None for episode in panel.flat)
    check = AuditCheck(
        subject="grading", status="fail", evidence="; ".join(_ungraded(panel)), measured={"failed": failed}
    )
    if failed or any(turn.valid for episode in panel.flat for turn in episode.turns):
        return check
    why = "no answer of any policy was valid; declare random_answers or a teacher"
    return replace(check, status="open", evidence=f"{why}: {check.evidence}")


def check_tasks(subject: PlanSubject, *, elsewhere: Elsewhere | None = None) -> AuditCheck:
    """The tasks of an environment of one turn: determinism, the answer in public data, and tasks that are used twice."""
    spec = subject.spec
    tasks = spec.tasks(next(iter(spec.conditions)))
    keys = [key for key in spec.audit.hidden if key == "answer"]
    problems = {
        "determinism": _not_deterministic(subject, tasks[:_TASKS], elsewhere),
        "hidden state": _leaks(subject, tasks[:_LEAK_TASKS], keys=keys, texts=False),
        "seeds": _shared_seeds(spec),
        "content": _shared_content(spec, tasks[:_CONTENT]),
    }
    return _check(
        "tasks",
        problems,
        "the same seed is the same task, and no test task is a training task",
    )


def _check(name: str, problems: Mapping[str, Sequence[str]], sound: str) -> AuditCheck:
    """The check from problems by kind. ``sound``: the evidence if there are none."""
    sentences = [problem for several in problems.values() for problem in several]
    check = AuditCheck(subject=name, status="pass", evidence=sound, measured=problems)
    if sentences:
        return replace(check, status="fail", evidence="; ".join(sentences))
    return check


def _course(subject: PlanSubject, environment: Any, task: Task) -> Iterator[Observation]:
    """Observations of one episode with random answers keyed by the task.

    An environment that raises ends its episode with an observation that says so, as a rollout would, and not the audit.
    """
    try:
        observation: Observation = environment.reset(seed=task.seed, **task.options)
        yield observation
        for turn in range(subject.spec.max_turns):
            if _is_over(observation):
                return
            observation = environment.step(subject.draw(child_seed(subject.seed, "hygiene", task.seed, turn) % 2**31))
            yield observation
    except (Exception, SystemExit) as error:
        text = f"{_RAISED}{type(error).__name__}: {error}"
        yield Observation(text=text, terminated=True)


def _is_over(observation: Observation) -> bool:
    """The episode has ended."""
    return observation.terminated or observation.truncated


def digests(subject: PlanSubject, tasks: Sequence[Task]) -> list[list[str]]:
    """One digest for each observation of every task, in environments of their own, to compare with another process."""
    # Digests, for another process sends them through a pipe.
    rows: list[list[str]] = []
    for task in tasks:
        with closing(blocking(subject.spec.make())) as environment:
            rows.append([_digest(observation) for observation in _course(subject, environment, task)])
    return rows


def _not_deterministic(subject: PlanSubject, tasks: Sequence[Task], elsewhere: Elsewhere | None) -> list[str]:
    """Each task in a fresh environment, after other tasks beside another environment, and in another process."""
    # State that is left from another task, or that environments share, shows only if they are rolled out otherwise.
    first = digests(subject, tasks)
    again = _rolled_out_again(subject, tasks)
    problems: list[str] = []
    for task, observations in zip(tasks, again, strict=True):
        text = observations[-1].text
        if text.startswith(_RAISED) and not problems:
            problems.append(f"on seed {task.seed} {text[:120]}")
    twice = [list(map(_digest, observations)) for observations in again]
    problems += _differing("rolled out twice", tasks, first, twice)
    if elsewhere is None or problems:
        return problems
    how = "rolled out in a process with another PYTHONHASHSEED"
    for observed in elsewhere(tasks, subject.seed):
        problems += _differing(how, tasks, first, observed)
    return problems[:1]


def _rolled_out_again(subject: PlanSubject, tasks: Sequence[Task]) -> list[list[Observation]]:
    """The observations of each task in one environment, from the last task to the first, while another one goes on beside it."""
    spec = subject.spec
    again: list[list[Observation]] = []
    state = random.getstate()
    with (
        closing(blocking(spec.make())) as used,
        closing(blocking(spec.make())) as other,
    ):
        for task in reversed(tasks):
            observations: list[Observation] = []
            beside: Iterator[Any] = iter(())
            if spec.max_sessions != 1:
                beside = _course(subject, other, tasks[0])
            for observation in _course(subject, used, task):
                observations.append(observation)
                random.random()  # an environment may not see what others draw, or do
                next(beside, None)
            again.append(observations)
    random.setstate(state)
    return again[::-1]


def _differing(
    how: str,
    tasks: Sequence[Task],
    first: Iterable[Sequence[str]],
    again: Iterable[Sequence[str]],
) -> list[str]:
    """The first task whose observations are others than at first."""
    for task, before, after in zip(tasks, first, again, strict=False):
        if list(before) != list(after):
            pairs = enumerate(zip(before, after, strict=False))  # one may have ended earlier
            turn = next((turn for turn, (old, new) in pairs if old != new), len(after))
            return [f"seed {task.seed} {how} differs at turn {turn}"]
    return []


def _digest(observation: Observation) -> str:
    """A short text that is the same for observations with the same content."""
    fields = [
        observation.text,
        observation.reward,
        observation.terminated,
        observation.truncated,
        observation.data,
    ]
    text = json.dumps(plain(fields), sort_keys=True)  # mappings in one order, so that only content counts
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _leaks(
    subject: PlanSubject,
    tasks: Sequence[Task],
    *,
    keys: Sequence[str],
    texts: bool = True,
) -> list[str]:
    """Hidden keys, and places that show hidden values, in anything that is seen before the episode is over.

    ``texts``: look into the texts too, not only into structured data.
    """
    shown: list[JsonDict] = []
    outcomes: list[Json] = []
    named: list[str] = []
    # Each task in an environment of its own: what one shows of the task before it is no leak of its own task.
    for task in tasks if keys else ():
        with closing(blocking(subject.spec.make())) as environment:
            places: JsonDict = {}
            for turn, observation in enumerate(_course(subject, environment, task)):
                # Behind the end nothing is hidden any more. What is over at the start was shown all the same.
                if turn and _is_over(observation):
                    continue
                public = {"data": observation.data, "action_data": observation.action_data}
                for (kind, *path), leaf in walk(public):
                    place = f"the {kind} of turn {turn}"
                    places[f"{place}: {'.'.join(path)}"] = leaf
                    named += [f"the hidden key {key!r} is in {place}" for key in keys if key in path]
                if texts:
                    text = f"{environment.system_prompt}\n{observation.text}"
                    places |= places_of_text(text, f"the text of turn {turn}")
            shown.append(places)
            outcomes.append(environment.outcome())
    problems = list(dict.fromkeys(named))[:2]
    for key in keys:
        hidden = [_leaves(outcome.get(key)) for outcome in outcomes]
        place = telling_place(shown, hidden)
        if place is not None:
            example = next(leaf for values in hidden for leaf in values)
            problems.append(f"hidden {key} (as {example!r}) is in {place}")
    return problems[:3]


def _leaves(value: Any) -> list[Any]:
    """The values at the ends of nested mappings and lists."""
    return [leaf for _, leaf in walk(value)]


def _shared_content(spec: EnvironmentSpec, tasks: Sequence[Task]) -> list[str]:
    """Test questions that are also training questions, by their text; a spec that says what a task asks is kept apart by that."""
    if spec.content is not None:
        return []
    until = clock.now() + 1.0
    training: set[Any] = set()
    for index in range(len(tasks)):
        if clock.now() > until:  # questions that are slow to make
            tasks = tasks[:index]
            break
        training.add(first_sight(spec, spec.train_task(index))["text"])
    shared = [task for task in tasks if first_sight(spec, task)["text"] in training]
    if len(shared) <= _SHARED * len(tasks):
        return []
    return [f"{len(shared)} of {len(tasks)} test questions are training questions too, e.g. seed {shared[0].seed}"]


def _out_of_range(grader: Grader, panel: PanelEpisodes) -> list[str]:
    """The first reward outside the declared range."""
    if grader.range is None:
        return []
    low, high = grader.range
    for episode in panel.flat:
        value = episode.reward_value
        if value is not None and not low - 1e-9 <= value <= high + 1e-9:
            where = f"{episode.policy} gets {value:.4f} on seed {episode.task.seed}"
            return [f"{where}, outside the declared range [{low:g}, {high:g}]"]
    return []


def _ungraded(panel: PanelEpisodes) -> list[str]:
    """Episodes without a reward, and the first reason."""
    episodes = panel.flat
    failed = [episode.failure.message for episode in episodes if episode.failure]
    errors = [str(episode.reward.error) for episode in episodes if episode.reward and episode.reward.value is None]
    return [
        f"{len(reasons)} of {len(episodes)} episodes {what} ({shortened(reasons[0])})"
        for what, reasons in (("failed", failed), ("got no reward", errors))
        if reasons
    ]


def _shared_seeds(spec: EnvironmentSpec) -> list[str]:
    """Training tasks that are also tasks of a condition."""
    # A task is a seed with options; its question is not made for this.
    training = [spec.train_task(index) for index in range(_TRAIN_SEEDS)]
    problems: list[str] = []
    for name, condition in spec.conditions.items():
        seeds = set(condition.seeds)
        # A seed under other options, as of another split, is another task.
        options = dict(condition.options)
        same = [task for task in training if task.seed in seeds and dict(task.options) == options]
        if same:
            problems.append(f"{len(same)} training tasks are also in condition {name!r}, e.g. seed {same[0].seed}")
    return problems
