"""What has nothing to do with skill and ruins a run all the same: chance, leaks, ranges, and seeds that are used twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradus.audit.records import Check, PanelEpisodes
from gradus.core import EnvironmentSpec, Episode, Grader, Observation, StopReason, Task, child_seed
from gradus.rollouts import roll_out
from gradus.stats import spearman

__all__ = ["check_hygiene"]

_TRAIN_SEEDS = 20_000
_TASKS = 4
_TELLING = 4  # decimals that make a number, characters that make a string, too particular to be there by chance
_NUMBER = re.compile(rf"-?\d+\.\d{{{_TELLING},}}")


def check_hygiene(
    spec: EnvironmentSpec, grader: Grader, panel: PanelEpisodes, draw: Callable[[int], str], *, seed: int
) -> Check:
    """All small tests at once; every problem found is a sentence, and none is allowed."""
    tasks = spec.tasks(panel.condition)[:_TASKS]
    tests: dict[str, Callable[[], list[str]]] = {
        "determinism": lambda: _not_deterministic(spec, tasks, draw, seed),
        "hidden state": lambda: _leaks(spec, tasks, panel, draw, seed),
        "gold": lambda: _gold(spec, grader, tasks, seed),
        "range": lambda: _out_of_range(grader, panel),
        "grading": lambda: _ungraded(panel),
        "seeds": lambda: _shared_seeds(spec),
    }
    found = {name: test() for name, test in tests.items()}
    problems = [problem for each in found.values() for problem in each]
    declared = [
        "the same seed gives the same episode",
        f"{len(spec.audit.hidden)} hidden keys are not to be seen"
        if spec.audit.hidden
        else "no hidden keys are declared",
        "gold scores 1" if _gold_name(spec) else "no gold policy is declared",
        f"rewards stay in {list(grader.range)}" if grader.range else "no range is declared",
        "train and test seeds are disjoint",
    ]
    evidence = "; ".join(problems) if problems else "; ".join(declared)
    return Check(name="hygiene", passed=not problems, evidence=evidence, details=found)


def _course(
    spec: EnvironmentSpec, environment: Any, task: Task, draw: Callable[[int], str], seed: int
) -> Iterator[tuple[Observation, Mapping[str, Any]]]:
    """Observations and public states of one episode with random answers keyed by the task."""
    observation = environment.reset(seed=task.seed, episode_id="audit", **task.options)
    yield observation, dict(environment.state)
    for turn in range(spec.max_turns):
        if observation.terminated or observation.truncated:
            return
        observation = environment.step(draw(child_seed(seed, "hygiene", task.seed, turn) % 2**31))
        yield observation, dict(environment.state)


def _not_deterministic(
    spec: EnvironmentSpec, tasks: Sequence[Task], draw: Callable[[int], str], seed: int
) -> list[str]:
    """Each task three times: in a fresh environment, in one that is used again, and after other tasks."""
    used = spec.make()
    problems: list[str] = []
    first = {task.seed: list(_course(spec, spec.make(), task, draw, seed)) for task in tasks}
    for task in [*reversed(tasks), *tasks]:
        again = list(_course(spec, used, task, draw, seed))
        for turn, (a, b) in enumerate(zip(first[task.seed], again, strict=False)):
            if a[0] != b[0]:
                problems.append(f"seed {task.seed} played twice differs at turn {turn}: {_difference(a[0], b[0])}")
                break
    used.close()
    return problems[:2]


def _difference(a: Observation, b: Observation) -> str:
    """Which field differs, with both values."""
    for name in ("text", "reward", "terminated", "truncated", "data"):
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            return f"{name} {str(left)[:60]!r} and {str(right)[:60]!r}"
    return "what is said of the action"


def _leaks(
    spec: EnvironmentSpec, tasks: Sequence[Task], panel: PanelEpisodes, draw: Callable[[int], str], seed: int
) -> list[str]:
    """Hidden keys or their values in anything public; and hidden numbers that the first observation gives away."""
    problems: dict[str, None] = {}
    for task in tasks:
        environment = spec.make()
        course = list(_course(spec, environment, task, draw, seed))
        outcome = environment.outcome()
        hidden = {key: outcome[key] for key in spec.audit.hidden if key in outcome}
        for turn, (observation, state) in enumerate(course):
            public = {"data": observation.data, "state": state, "action_data": observation.action_data}
            for place, value in public.items():
                for problem in _found_in(value, hidden):
                    problems.setdefault(f"{problem} is in the {place} of turn {turn}, seed {task.seed}")
            for problem in _told_in(f"{environment.system_prompt}\n{observation.text}", hidden):
                problems.setdefault(f"{problem} is in the text of turn {turn}, seed {task.seed}")
        environment.close()
    first = next(iter(panel.episodes.values()), ())
    return [*list(problems)[:3], *_given_away(spec, [e for e in first if e.stop is not StopReason.FAILED])]


def _found_in(public: Any, hidden: Mapping[str, Any]) -> list[str]:
    """Hidden keys, telling numbers and telling strings inside a public value."""
    keys, numbers, strings = set[str](), set[float](), set[str]()
    for path, leaf in _walk(public):
        keys.update(part for part in path if isinstance(part, str))
        if isinstance(leaf, float):
            numbers.add(round(leaf, 9))
        elif isinstance(leaf, str) and len(leaf) >= _TELLING:
            strings.add(leaf)
    problems = [f"the hidden key {key!r}" for key in hidden if key in keys]
    for key, value in hidden.items():
        for _, leaf in _walk(value):
            seen = leaf in strings if isinstance(leaf, str) else _is_telling(leaf) and round(float(leaf), 9) in numbers
            if seen:
                problems.append(f"hidden {key} = {leaf!r}")
    return problems


def _told_in(text: str, hidden: Mapping[str, Any]) -> list[str]:
    """Telling numbers, as precise as the text gives them, and telling strings inside a text."""
    told = [(float(number), len(number.partition(".")[2])) for number in _NUMBER.findall(text)]
    problems: list[str] = []
    for key, value in hidden.items():
        for _, leaf in _walk(value):
            shown = isinstance(leaf, str) and len(leaf) >= _TELLING and leaf in text
            if shown or (
                _is_telling(leaf) and any(round(float(leaf), decimals) == number for number, decimals in told)
            ):
                problems.append(f"hidden {key} = {leaf!r}")
    return problems


def _given_away(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> list[str]:
    """Numbers of the first observation that order the episodes exactly as a hidden number does."""
    if len(episodes) < 20:
        return []
    public = _columns([episode.turns[0].data for episode in episodes if episode.turns])
    hidden = _columns([{key: e.outcome[key] for key in spec.audit.hidden if key in e.outcome} for e in episodes])
    problems: list[str] = []
    for path, column in public.items():
        for name, truth in hidden.items():
            found = spearman(column, truth) if len(column) == len(truth) else None
            if found is not None and abs(found) > 0.999:
                problems.append(
                    f"{path} of the first observation gives hidden {name} away (rank correlation {found:.3f})"
                )
    return problems[:3]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Numeric leaves that every row has and that take at least ten values: path -> one number a row."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for path, leaf in _walk(row):
            if isinstance(leaf, int | float) and not isinstance(leaf, bool):
                found.setdefault(".".join(map(str, path)), []).append(float(leaf))
    return {path: column for path, column in found.items() if len(column) == len(rows) and len(set(column)) >= 10}


def _walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths and leaves of nested mappings and lists."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _walk(inner, (*path, index))
    else:
        yield path, value


def _is_telling(leaf: Any) -> bool:
    """A number that is too particular to stand somewhere by chance."""
    return isinstance(leaf, float) and abs(leaf - round(leaf, _TELLING - 1)) > 1e-9


def _gold_name(spec: EnvironmentSpec) -> str | None:
    return spec.audit.gold


def _gold(spec: EnvironmentSpec, grader: Grader, tasks: Sequence[Task], seed: int) -> list[str]:
    """Where the environment knows the right answers, they must get the full reward."""
    name = _gold_name(spec)
    if name is None:
        return []
    top = grader.range[1] if grader.range else 1.0
    episodes = roll_out(spec, spec.policy(name), tasks, seed=seed, key=("audit", "gold"), grader=grader).episodes
    values = {episode.task.seed: episode.reward.value if episode.reward else None for episode in episodes}
    short = {seed: value for seed, value in values.items() if value is None or abs(value - top) > 1e-6}
    if not short:
        return []
    worst, value = next(iter(short.items()))
    return [
        f"the gold policy {name!r} gets {value} instead of {top:g} on seed {worst}, and less on {len(short)} of {len(values)}"
    ]


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
    problems: list[str] = []
    for name, episodes in panel.episodes.items():
        failed = [e for e in episodes if e.failure]
        if failed and failed[0].failure:
            problems.append(
                f"{len(failed)} of {len(episodes)} episodes of {name} failed ({failed[0].failure.message[:80]})"
            )
        errors = [e.reward.error for e in episodes if e.reward and e.reward.value is None]
        if errors:
            problems.append(
                f"{len(errors)} of {len(episodes)} episodes of {name} got no reward ({str(errors[0])[:80]})"
            )
    return problems


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
