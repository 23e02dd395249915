"""Rolling out policies on the same seeds, grading the episodes with one or more graders, and comparing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Policy, Task
from gradus.core.documents import SCHEMA, Looks, Results
from gradus.evidence.evaluation.summary import (
    LEVEL,
    Figures,
    holm_adjusted,
    pair_record,
    paired_figures,
    policy_record,
    require_same_tasks,
)
from gradus.rollouts import MAX_CONCURRENT, grade_episodes, roll_out
from gradus.stats import LOOK_LEVEL, decided, look_sizes

Progress = Callable[[str, float, int], None]
Rollouts = Mapping[str, Mapping[str, Sequence[Episode]]]
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation: its document and its episodes. ``episodes``: condition -> policy -> episodes, graded by the first grader."""

    document: Results
    episodes: Rollouts

    @property
    def flat(self) -> list[Episode]:
        """All episodes, conditions and policies one after another."""
        return [each for by_policy in self.episodes.values() for several in by_policy.values() for each in several]

    def to_json(self) -> Results:
        """The document of schema 2 (docs/evaluation.md); the same evaluation gives the same bytes."""
        return self.document.copy()


def evaluate(
    spec: EnvironmentSpec,
    policies: Mapping[str, Policy | None],
    *,
    stored: Rollouts | None = None,
    conditions: Sequence[str] | None = None,
    graders: Sequence[str] | None = None,
    episodes: int | None = None,
    seed: int = 0,
    pairs: Sequence[Pair] | None = None,
    power: float | None = None,
    checkpoint: str | None = None,
    samples: int = 1,
    pass_k: Sequence[int] = (),
    until_decided: bool = False,
    max_concurrent: int = MAX_CONCURRENT,
    progress: Progress | None = None,
) -> Evaluation:
    """Roll out every policy on the same seeds of every condition and compare them.

    ``policies``: the name shown -> the policy, or None if ``stored`` has its episodes. ``conditions``: names, all of the environment's if None; the first is the
    main one. ``graders``: names, the environment's default if None; the first is the main one and the others grade the
    same episodes again. ``episodes``: seeds per condition; a condition that has fewer gives all it has, if another has
    enough. ``pairs``: (a, b) for the difference a - b; by default each policy minus every one before it. ``power``: a
    difference in reward, for which each pair then says how many episodes show it with 80 % power. ``samples``: episodes of each
    seed; figures are then means over seeds of the means over samples. ``pass_k``: for each k the figure ``pass@k``. ``until_decided``: look
    five times, and stop once the reward of every pair is decided (:mod:`gradus.stats.sequential`); one condition only.

    All randomness of a policy is keyed by (seed, "evaluate", condition, seed's index, sample), the same for every policy.
    Raises ConfigError for unknown names, GradusError if an environment breaks its contract.
    """
    _check(policies, power, samples, pass_k)
    names = list(conditions) if conditions is not None else list(spec.conditions)
    tasks = condition_tasks(spec, names, episodes)
    grader = chosen_graders(spec, graders)[0]
    given = stored or {}
    rollouts: dict[str, dict[str, list[Episode]]] = {
        condition: {name: list(given[condition][name]) if policies[name] is None else [] for name in policies}
        for condition in names
    }
    options: Any = {"samples": samples, "seed": seed, "grader": grader, "max_concurrent": max_concurrent}

    def roll_out_tasks(begin: int, end: int | None) -> None:
        """Add the episodes of these tasks, policy by policy: each may hold a model."""
        for name, policy in policies.items():
            if policy is None:
                continue
            for condition in names:
                label = _labeled(progress, f"{condition} · {name}")
                rollouts[condition][name] += roll_out_condition(
                    *(spec, name, policy, condition, tasks[condition][begin:end]),
                    **options,
                    first_task=begin,
                    progress=label,
                )

    looks = None
    if until_decided:
        _require_one_condition(policies, tasks)
        looks = _roll_out_until_decided(
            spec, grader, rollouts, chosen_pairs(list(policies), pairs), len(tasks[names[0]]), roll_out_tasks
        )
    else:
        roll_out_tasks(0, None)
    document = compare(
        spec,
        rollouts,
        graders=graders,
        pairs=pairs,
        power=power,
        checkpoint=checkpoint,
        graded=True,
        seeds=[seed],
        pass_k=pass_k,
        level=LOOK_LEVEL if until_decided else LEVEL,
    )
    if looks is not None:
        document["until_decided"] = looks
    if samples > 1:
        document["samples"] = samples
    return Evaluation(document=document, episodes=rollouts)


def _check(policies: Mapping[str, Policy | None], power: float | None, samples: int, pass_k: Sequence[int]) -> None:
    """Raise ConfigError for what cannot be meant."""
    if not policies:
        raise ConfigError("expected at least one policy to evaluate, got none; name some with --policy a,b")
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples}")
    if power is not None and not 0 < power < inf:
        raise ConfigError(f"--power takes a difference above 0 that is finite, got {power:g}")
    if any(not 1 <= k <= samples for k in pass_k):
        raise ConfigError(
            f"pass_k must lie between 1 and samples, got pass_k = {list(pass_k)} with samples = {samples}; ask for more samples"
        )


def _require_one_condition(policies: Mapping[str, Policy | None], tasks: Mapping[str, Sequence[Task]]) -> None:
    """Raise ConfigError if looks cannot be taken: they need one condition, and policies that are rolled out now."""
    if len(tasks) != 1:
        raise ConfigError(
            f"until_decided looks at one condition, got {', '.join(tasks)}; name one, or leave until_decided out"
        )
    if len(policies) < 2 or None in policies.values():
        raise ConfigError("until_decided compares at least two policies; name another one with --policy")


def _roll_out_until_decided(
    spec: EnvironmentSpec,
    grader: Grader,
    rollouts: Rollouts,
    pairs: Sequence[Pair],
    tasks: int,
    roll_out_tasks: Callable[[int, int], None],
) -> Looks:
    """Add tasks to the one condition of ``rollouts``, an equal share before each look, until the reward of every pair is decided."""
    (condition,) = rollouts
    declared = spec.conditions.get(condition)
    cluster = declared.cluster if declared else None
    for look, (begin, end) in enumerate(pairwise([0, *look_sizes(tasks)]), start=1):
        roll_out_tasks(begin, end)
        figures = {name: Figures.of(spec, grader, each, cluster) for name, each in rollouts[condition].items()}
        rewards = {name: each.plain["reward"] for name, each in figures.items()}
        compared = [paired_figures(figures[a], figures[b])(rewards[a], rewards[b]) for a, b in pairs]
        if end == tasks or decided(compared, tasks):
            return {"looks": look, "tasks": end, "of": tasks}
    raise AssertionError("the last look sees all tasks")


def roll_out_condition(
    spec: EnvironmentSpec,
    name: str,
    policy: Policy,
    condition: str,
    tasks: Sequence[Task],
    *,
    samples: int,
    seed: int,
    grader: Grader,
    first_task: int = 0,
    max_concurrent: int = MAX_CONCURRENT,
    progress: Callable[[float, int], None] | None = None,
) -> list[Episode]:
    """The episodes of one policy, shown as ``name``, under one condition. ``first_task``: the number of the first of ``tasks``."""
    rolled_out = roll_out(
        spec,
        policy,
        tasks,
        group_size=samples,
        seed=seed,
        key=("evaluate", condition),
        grader=grader,
        first_group=first_task,
        max_concurrent=max_concurrent,
        progress=progress,
    )
    return [replace(episode, policy=name) for episode in rolled_out.episodes]


def compare(
    spec: EnvironmentSpec,
    rollouts: Rollouts,
    *,
    graders: Sequence[str] | None = None,
    pairs: Sequence[Pair] | None = None,
    power: float | None = None,
    checkpoint: str | None = None,
    graded: bool = False,
    seeds: Sequence[int] = (),
    correct_pairs: bool = False,
    pass_k: Sequence[int] = (),
    level: float = LEVEL,
) -> Results:
    """The document for episodes that are there already; nothing is rolled out.

    ``correct_pairs``: Holm's correction goes over the pairs too, not only over the conditions. ``seeds``: those of the policies' own
    randomness. ``graded``: the episodes carry the first grader's rewards, so only the others have to grade them. ``pass_k``: for each k
    the figure ``pass@k``, from all episodes of a seed. ``level``: of every interval.
    """
    chosen = chosen_graders(spec, graders)
    names = list(dict.fromkeys(name for policies in rollouts.values() for name in policies))
    compared = chosen_pairs(names, pairs)
    by_grader: dict[str, dict[str, Any]] = {}
    for index, grader in enumerate(chosen):
        current = rollouts if graded and index == 0 else _regraded(spec, rollouts, grader)
        tests = len(rollouts) * (len(compared) if correct_pairs else 1)
        by_grader[grader.name] = _conditions(spec, grader, current, compared, (power, tests), pass_k, level)
        holm_adjusted(by_grader[grader.name], over_pairs=correct_pairs)
    document = results_document(spec, by_grader, checkpoint, seeds)
    if power is not None:
        document["power"] = {"difference": power, "power": 0.8, "alpha": 0.05}
    return document


def results_document(
    spec: EnvironmentSpec, by_grader: Mapping[str, dict[str, Any]], checkpoint: str | None, seeds: Sequence[int]
) -> Results:
    """The document from each grader's conditions, the main grader first."""
    first, *others = by_grader
    document: Results = {
        "schema": SCHEMA,
        "environment": spec.name,
        "grader": first,
        "checkpoint": checkpoint,
        "true_reward_name": spec.true_reward_name,
        "level": 0.95,
        "seeds": list(seeds),
        "conditions": by_grader[first],
    }
    if others:
        document["graders"] = {grader: {"conditions": by_grader[grader]} for grader in others}
    return document


def _conditions(
    spec: EnvironmentSpec,
    grader: Grader,
    rollouts: Rollouts,
    pairs: Sequence[Pair],
    asked: tuple[
        float | None, int
    ],  # the difference whose power is asked for, and how many tests are corrected together
    pass_k: Sequence[int],
    level: float,
) -> dict[str, Any]:
    """Every condition's record under one grader."""
    records: dict[str, Any] = {}
    for condition, policies in rollouts.items():
        declared = spec.conditions.get(condition)
        cluster = declared.cluster if declared else None
        require_same_tasks(condition, policies.values())
        figures = {name: Figures.of(spec, grader, episodes, cluster, pass_k) for name, episodes in policies.items()}
        records[condition] = {
            "episodes": max((len(episodes) for episodes in policies.values()), default=0),
            "summary": declared.summary if declared else "",
            "clustered": cluster is not None,
            "policies": {name: policy_record(each, level) for name, each in figures.items()},
            "pairs": {
                f"{a} - {b}": pair_record(figures[a], figures[b], *asked, level=level)
                for a, b in pairs
                if a in figures and b in figures
            },
        }
    return records


def _regraded(spec: EnvironmentSpec, rollouts: Rollouts, grader: Grader) -> Rollouts:
    return {
        condition: {name: grade_episodes(spec, episodes, grader) for name, episodes in policies.items()}
        for condition, policies in rollouts.items()
    }


def condition_tasks(spec: EnvironmentSpec, conditions: Sequence[str], episodes: int | None) -> dict[str, list[Task]]:
    """Tasks per condition; ``episodes`` may exceed a condition's seeds only if another condition has as many."""
    for name in conditions:
        if name not in spec.conditions:
            spec.tasks(name)  # raises, naming the conditions there are
    sizes = {name: len(spec.conditions[name].seeds) for name in conditions}
    if episodes is not None and sizes and episodes > max(sizes.values()):
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"condition {largest!r} has {sizes[largest]} seeds, got episodes = {episodes}; ask for no more"
        )
    return {name: spec.tasks(name, None if episodes is None else min(episodes, sizes[name])) for name in conditions}


def chosen_graders(spec: EnvironmentSpec, names: Sequence[str] | None) -> list[Grader]:
    """Returns the graders of these names, or the environment's default grader if ``names`` is empty."""
    return [spec.grader(name) for name in dict.fromkeys(names or [spec.default_grader])]


def chosen_pairs(names: Sequence[str], pairs: Sequence[Pair] | None) -> list[Pair]:
    """The pairs asked for; each policy minus every one before it if None. Raises ConfigError for a name that is not there."""
    if pairs is None:
        return [(later, earlier) for i, later in enumerate(names) for earlier in names[:i]]
    for pair in pairs:
        for name in pair:
            if name not in names:
                raise ConfigError(
                    f"pair {pair[0]!r} - {pair[1]!r}: {name!r} was not rolled out; there are {', '.join(names)}"
                )
    return list(pairs)


def _labeled(progress: Progress | None, label: str) -> Callable[[float, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(label, done, total)
