"""Rolling out policies on the same seeds, grading the episodes with one or more graders, and comparing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Policy, Task
from gradus.core.documents import SCHEMA, ByCondition, Looks, Results
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.evidence.evaluation.records import Method, Pairing, Runs, condition_record
from gradus.evidence.evaluation.summary import REWARD, Figures, figures_of, require_same_tasks
from gradus.rollouts import MAX_CONCURRENT, grade_episodes, roll_out
from gradus.stats import ERROR, LOOKS, decided, look_sizes

Progress = Callable[[str, float, int], None]
Rollouts = Mapping[str, Mapping[str, Sequence[Episode]]]  # condition -> policy -> episodes
_ByPolicy = Mapping[str, Mapping[int, Sequence[Episode]]]  # policy -> training seed -> episodes
BySeed = Mapping[str, _ByPolicy]  # by condition
Pair = tuple[str, str]
_Growing = Mapping[str, dict[str, list[Episode]]]  # rollouts while episodes come in


@frozen_record
class Evaluation:
    """An evaluation: its document and its episodes. ``episodes``: condition -> policy -> episodes, graded by the first grader."""

    document: Results
    episodes: Rollouts

    @property
    def flat(self) -> list[Episode]:
        """All episodes, conditions and policies one after another."""
        groups = [episodes for policies in self.episodes.values() for episodes in policies.values()]
        return [episode for episodes in groups for episode in episodes]

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
    rolling = _Rolling(
        spec=spec,
        grader=_graders(spec, graders)[0],
        policies=policies,
        tasks=condition_tasks(spec, list(spec.conditions if conditions is None else conditions), episodes),
        seed=seed,
        samples=samples,
        max_concurrent=max_concurrent,
        progress=progress,
    )
    rollouts = rolling.begin(stored or {})
    looks = None
    if until_decided:
        looks = _roll_out_until_decided(rolling, rollouts, _pairs(list(policies), pairs))
    else:
        rolling.add(rollouts)
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
        looks_planned=LOOKS if until_decided else 1,
    )
    if looks is not None:
        document["until_decided"] = looks
    if samples > 1:
        document["samples"] = samples
    return Evaluation(document=document, episodes=rollouts)


def _check(
    policies: Mapping[str, Policy | None],
    power: float | None,
    samples: int,
    pass_k: Sequence[int],
) -> None:
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


@frozen_record
class _Rolling:
    """What an evaluation rolls out: the policies on the tasks of each condition, ``samples`` times each."""

    spec: EnvironmentSpec
    grader: Grader
    policies: Mapping[str, Policy | None]
    tasks: Mapping[str, Sequence[Task]]
    seed: int
    samples: int
    max_concurrent: int
    progress: Progress | None

    def begin(self, stored: Rollouts) -> _Growing:
        """The episodes before anything is rolled out: those of policies that are stored."""
        rollouts: dict[str, dict[str, list[Episode]]] = {condition: {} for condition in self.tasks}
        for condition, episodes in rollouts.items():
            for name, policy in self.policies.items():
                episodes[name] = [*stored[condition][name]] if policy is None else []
        return rollouts

    def add(self, rollouts: _Growing, start: int = 0, end: int | None = None) -> None:
        """Add the episodes of these tasks, policy by policy: each may hold a model."""
        rolled = {name: policy for name, policy in self.policies.items() if policy is not None}
        # All conditions of a policy before the next policy: a model is loaded once.
        for name, policy in rolled.items():
            for condition, tasks in self.tasks.items():
                rolled_out = roll_out(
                    self.spec,
                    policy,
                    tasks[start:end],
                    group_size=self.samples,
                    seed=self.seed,
                    key=("evaluate", condition),
                    grader=self.grader,
                    first_group=start,
                    max_concurrent=self.max_concurrent,
                    progress=self.progress and partial(self.progress, f"{condition} · {name}"),
                )
                rollouts[condition][name] += [replace(episode, policy=name) for episode in rolled_out.episodes]


def _roll_out_until_decided(rolling: _Rolling, rollouts: _Growing, pairs: Sequence[Pair]) -> Looks:
    """Add tasks to the one condition of ``rollouts``, an equal share before each look, until the reward of every pair is decided.

    Raises ConfigError unless there is one condition, and at least two policies that are rolled out now.
    """
    if len(rollouts) != 1:
        raise ConfigError(
            f"until_decided looks at one condition, got {', '.join(rollouts)}; name one, or leave until_decided out"
        )
    if len(rolling.policies) < 2 or None in rolling.policies.values():
        raise ConfigError("until_decided compares at least two policies; name another one with --policy")
    ((condition, tasks),) = rolling.tasks.items()
    # At each look a pair must prove as much as all looks together may err.
    method = Method(pairs=len(pairs), looks=LOOKS, reward_range=rolling.grader.range)
    for look, (start, end) in enumerate(pairwise([0, *look_sizes(len(tasks))]), start=1):
        rolling.add(rollouts, start, end)
        policies = {name: {0: episodes} for name, episodes in rollouts[condition].items()}
        figures = _figures(rolling.spec, condition, rolling.grader, policies, method, graded=True)
        rewards = [Pairing(figures[a], figures[b], method).difference(REWARD) for a, b in pairs]
        # The last look ends it whatever it finds: all tasks are used up.
        if end == len(tasks) or decided(rewards, len(tasks)):
            return {"looks": look, "tasks": end, "of": len(tasks)}
    raise AssertionError("the last look sees all tasks")


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
    pass_k: Sequence[int] = (),
    looks_planned: int = 1,
) -> Results:
    """The document for episodes that are there already; nothing is rolled out.

    ``seeds``: those of the policies' own randomness. ``graded``: the episodes carry the first grader's rewards, so only the others have to
    grade them. ``pass_k``: for each k the figure ``pass@k``, from all episodes of a seed. ``looks_planned``: how often the episodes are looked
    at while they come in.
    """
    by_seed: JsonDict = {}
    for condition, policies in rollouts.items():
        by_seed[condition] = {name: {0: episodes} for name, episodes in policies.items()}
    method = Method(looks=looks_planned, power=power, pass_k=pass_k)
    document = _document(spec, by_seed, graders, pairs, method, graded=graded, checkpoint=checkpoint, seeds=seeds)
    if power is not None:
        document["power"] = {"difference": power, "power": 0.8, "alpha": 0.05}
    return document


def compare_seeds(
    spec: EnvironmentSpec,
    rollouts: BySeed,
    *,
    seeds: Sequence[int],
    graders: Sequence[str] | None = None,
    pairs: Sequence[Pair] | None = None,
    checkpoint: str | None = None,
) -> Results:
    """The document of :func:`compare` for policies with several training seeds; nothing is rolled out.

    A policy with one seed's episodes is one that no training seed changes. Two policies are paired over seeds if they have the same
    ones. Figures carry ``by_seed``, the mean of each seed. The episodes carry the first grader's rewards.
    """
    return _document(spec, rollouts, graders, pairs, Method(), graded=True, checkpoint=checkpoint, seeds=seeds)


def _document(
    spec: EnvironmentSpec,
    rollouts: BySeed,
    graders: Sequence[str] | None,
    pairs: Sequence[Pair] | None,
    method: Method,
    *,
    graded: bool,
    checkpoint: str | None,
    seeds: Sequence[int],
) -> Results:
    """The document of all graders, the main one first. ``graded``: the episodes carry its rewards."""
    names = dict.fromkeys(name for policies in rollouts.values() for name in policies)
    compared = _pairs(list(names), pairs)
    # All pairs under all conditions stand in one document, and a reader picks among them.
    method = replace(method, pairs=len(rollouts) * len(compared))
    by_grader: dict[str, ByCondition] = {}
    for grader in _graders(spec, graders):
        conditions: ByCondition = {}
        method = replace(method, reward_range=grader.range)
        for name, policies in rollouts.items():
            require_same_tasks(name, [episodes for runs in policies.values() for episodes in runs.values()])
            figures = _figures(spec, name, grader, policies, method, graded=graded)
            conditions[name] = condition_record(spec.conditions.get(name), figures, compared, method)
        by_grader[grader.name] = conditions
        graded = False  # the episodes carry no rewards of the next grader
    # Readers take the first grader and the first condition for the main ones.
    main, *further = by_grader
    document: Results = {
        "schema": SCHEMA,
        "environment": spec.name,
        "grader": main,
        "checkpoint": checkpoint,
        "true_reward_name": spec.true_reward_name,
        "level": 1 - ERROR,
        "seeds": list(seeds),
        "conditions": by_grader[main],
    }
    if further:
        document["graders"] = {grader: {"conditions": by_grader[grader]} for grader in further}
    return document


def _figures(
    spec: EnvironmentSpec,
    condition: str,
    grader: Grader,
    policies: _ByPolicy,
    method: Method,
    *,
    graded: bool,
) -> Mapping[str, Runs]:
    """The figures of each policy under one condition, by training seed. ``graded``: the episodes carry the grader's rewards."""
    declared = spec.conditions.get(condition)
    cluster = declared.cluster if declared else None
    figures: dict[str, dict[int, Figures]] = {name: {} for name in policies}
    for name, runs in policies.items():
        for seed, episodes in runs.items():
            if not graded:
                episodes = grade_episodes(spec, episodes, grader)
            figures[name][seed] = figures_of(spec, grader, episodes, cluster, method.pass_k)
    return figures


def condition_tasks(
    spec: EnvironmentSpec,
    conditions: Sequence[str],
    episodes: int | None,
) -> dict[str, list[Task]]:
    """Tasks per condition; ``episodes`` may exceed a condition's seeds only if another condition has as many."""
    for name in conditions:
        if name not in spec.conditions:
            spec.tasks(name)  # raises, naming the conditions there are
    if episodes is None or not conditions:
        return {name: spec.tasks(name) for name in conditions}
    sizes = {name: len(spec.conditions[name].seeds) for name in conditions}
    largest = max(sizes, key=lambda name: sizes[name])
    most = sizes[largest]
    if episodes > most:
        others = {name: len(other.seeds) for name, other in spec.conditions.items() if name not in sizes}
        larger = "".join(f", or condition {name} ({size})" for name, size in others.items() if size >= episodes)
        evidence = f"condition {largest!r} has {most} seeds, got episodes = {episodes}"
        raise ConfigError(f"{evidence}; ask for no more{larger}")
    return {name: spec.tasks(name, min(episodes, size)) for name, size in sizes.items()}


def _graders(spec: EnvironmentSpec, names: Sequence[str] | None) -> list[Grader]:
    """Returns the graders of these names, or the environment's default grader if ``names`` is empty."""
    return [spec.grader(name) for name in dict.fromkeys(names or [spec.default_grader])]


def _pairs(names: Sequence[str], pairs: Sequence[Pair] | None) -> list[Pair]:
    """The pairs that were chosen; each policy minus every one before it if None. Raises ConfigError for a name that is not there."""
    if pairs is None:
        return [(later, earlier) for place, later in enumerate(names) for earlier in names[:place]]
    for first, second in pairs:
        for name in (first, second):
            if name not in names:
                raise ConfigError(
                    f"pair {first!r} - {second!r}: {name!r} was not rolled out; there are {', '.join(names)}"
                )
    return list(pairs)
