"""Curves as data: of a training run from keys of its metrics (docs/metrics.md), of an episode, and an audit's points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, isfinite
from typing import Any

from gradus.evidence.reports.results import figure, main_condition
from gradus.evidence.reports.score_tables import is_own

Json = Mapping[str, Any]
_DOTS = "; dots are validation"
LONGEST = 600  # points of a curve; more cannot be told apart on a screen
_FULL = 8  # curves of that length over each other whose points are all drawn


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line (``dots`` false) or single measurements. ``x`` are what the chart says, steps mostly; ``smooth`` is a centered running mean, or empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    smooth: Sequence[float | None] = ()
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A step at which something begins, drawn as an upright line: a stage of the rewards."""

    x: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One chart. ``x`` names what its series go along. ``top``: where the axis ends, if a few values lie far above all others."""

    title: str
    note: str
    series: Sequence[Series] = field(default=())
    marks: Sequence[Mark] = ()
    x: str = "step"
    top: float | None = None


SFT = (
    ("Loss", "nats per action token; lower is better", (("loss", "training"), ("validation_loss", "validation"))),
    (
        "Accuracy",
        "share of tokens where the student's first choice is the teacher's",
        (("accuracy", "training"), ("validation_accuracy", "validation")),
    ),
)
GRPO = (
    (
        "Spread within groups",
        "standard deviation of the reward; without spread nothing is learned",
        (("reward_std", "spread"),),
    ),
    ("Zero-variance groups", "share of groups whose rewards are all equal", (("zero_variance_groups", "share"),)),
    ("KL", "how far the policy is from where it is compared with, nats per token", (("kl", "kl"),)),
    ("Entropy", "nats per token", (("entropy", "entropy"),)),
    ("Loss", "near 0 by construction when training on-policy; watch reward and KL instead", (("loss", "loss"),)),
    ("Gradient norm", "before clipping", (("grad_norm", "norm"),)),
    (
        "Answers that were not understood, or cut",
        "share of turns, and of episodes",
        (("invalid_actions", "not understood"), ("truncated_episodes", "cut")),
    ),
    (
        "Log-prob difference",
        "largest difference of log-probs between sampling and training, nats",
        (("logp_diff_max", "largest"),),
    ),
    ("Speed", "action and context tokens per second", (("tokens_per_second", "tokens/s"),)),
)


def sft_curves(records: Sequence[Json]) -> list[Curve]:
    """The curves of SFT that have any values."""
    steps = [record for record in records if record.get("kind", "sft") in ("sft", "distill")]
    curves = _drawn([_keyed(steps, *spec) for spec in SFT])
    return [replace(each, top=_top(each)) if each.title == "Loss" else each for each in curves]


def grpo_curves(records: Sequence[Json], true_reward: str | None = None) -> list[Curve]:
    """The curves of GRPO that have any values; the reward, the true reward and the environment's metrics first.

    Where rewards follow a schedule, its weights are a curve of their own and the beginnings of its stages are marked in all.
    """
    steps = [record for record in records if record.get("kind") == "step"]
    validation = [record for record in records if record.get("kind") == "validation"]
    curves = [
        _with_validation("Reward", "mean reward", steps, "reward_mean", validation, "reward_mean"),
        _with_validation(
            true_reward or "True reward",
            "the true aim, which no grader may lower",
            steps,
            "true_reward_mean",
            validation,
            "true_reward_mean",
        ),
    ]
    metrics = _names(steps, "metrics")
    curves.extend(
        _nested(name.replace("_", " "), "metric of the environment", steps, validation, "metrics", name)
        for name in metrics
        if "/" not in name
        and name.replace("_", " ") != true_reward  # an environment may list its true reward as a metric too
    )
    families = dict.fromkeys(name.partition("/")[0] for name in metrics if "/" in name)
    curves.extend(_family(stem, steps, "metrics") for stem in families)
    curves.append(_grouped("Components of the reward", "mean of each, unweighted", steps, "components"))
    curves.append(
        _grouped("Weights of the components", "in force at each step, by the schedule", steps, "weights", smooth=False)
    )
    curves.append(
        _grouped(
            "What the learning signal is made of",
            "share of the reward's variance within groups",
            steps,
            "component_variance",
        )
    )
    curves.extend(_keyed(steps, *spec) for spec in GRPO)
    curves.append(_grouped("Seconds of a step", "split by what they were spent on", steps, "seconds"))
    marks = _stages(steps)
    return [replace(curve, marks=marks) for curve in _drawn(curves)]


def _top(curve: Curve) -> float | None:
    """Says where the axis ends so that the first steps do not press all others together; None if they do not."""
    values = sorted(value for series in curve.series for value in series.y if value is not None)
    if len(values) < 20:
        return None
    most = values[int(0.85 * len(values))]
    return 1.1 * most if values[-1] > 1.5 * most > 0 else None


def overlaid(runs: Mapping[str, Sequence[Curve]]) -> list[Curve]:
    """The curves of several runs over each other: of each chart that all have, the first line of every run."""
    titles = [[curve.title for curve in curves] for curves in runs.values()]
    charts: list[Curve] = []
    for title in titles[0] if titles else ():
        if all(title in each for each in titles):
            chosen = {name: next(curve for curve in curves if curve.title == title) for name, curves in runs.items()}
            series = _fewer([replace(curve.series[0], name=name) for name, curve in chosen.items()])
            first = next(iter(chosen.values()))
            charts.append(replace(first, note=first.note.removesuffix(_DOTS), series=series, marks=()))
    return [replace(each, top=_top(each)) if each.top is not None else each for each in charts]


def _fewer(lines: Sequence[Series]) -> list[Series]:
    """Every n-th point of many lines: a chart of 60 runs is as small as one of eight."""
    stride = max(1, -(-sum(len(each.x) for each in lines) // (_FULL * LONGEST)))
    return [replace(each, x=each.x[::stride], y=each.y[::stride], smooth=each.smooth[::stride]) for each in lines]


def running_mean(values: Sequence[float | None], window: int) -> list[float | None]:
    """Centered mean over ``window`` values; missing ones are left out of it."""
    half = window // 2
    means: list[float | None] = []
    for index in range(len(values)):
        near = [value for value in values[max(0, index - half) : index + half + 1] if value is not None]
        means.append(fsum(near) / len(near) if near else None)
    return means


def _keyed(records: Sequence[Json], title: str, note: str, keys: Sequence[tuple[str, str]]) -> Curve:
    series = [_series(name, records, lambda record, key=key: record.get(key)) for key, name in keys]
    return Curve(title=title, note=note, series=series)


def _grouped(title: str, note: str, records: Sequence[Json], group: str, *, smooth: bool = True) -> Curve:
    names = [name for name in _names(records, group) if name != "total"]
    series = [
        _series(name.replace("_", " "), records, lambda record, name=name: (record.get(group) or {}).get(name))
        for name in names
    ]
    return Curve(title=title, note=note, series=series if smooth else [replace(each, smooth=()) for each in series])


def _family(stem: str, records: Sequence[Json], group: str) -> Curve:
    """One chart for the figures ``stem/kind`` of a group, a line for each kind."""
    kinds = [
        name.partition("/")[2] for name in _names(records, group) if name.partition("/")[0] == stem and "/" in name
    ]
    series = [
        _series(
            kind.replace("_", " "), records, lambda record, kind=kind: (record.get(group) or {}).get(f"{stem}/{kind}")
        )
        for kind in kinds
    ]
    return Curve(title=f"{stem.replace('_', ' ')} by kind", note="metric of the environment", series=series)


def _nested(title: str, note: str, steps: Sequence[Json], validation: Sequence[Json], group: str, name: str) -> Curve:
    def value(record: Json) -> Any:
        return (record.get(group) or {}).get(name)

    return Curve(title=title, note=note, series=[_series("training", steps, value), *_decodings(validation, value)])


def _with_validation(
    title: str, note: str, steps: Sequence[Json], key: str, validation: Sequence[Json], validation_key: str
) -> Curve:
    training = _series("training", steps, lambda record: record.get(key))
    dots = _decodings(validation, lambda record: record.get(validation_key))
    return Curve(title=title, note=f"{note}{_DOTS}" if dots else note, series=[training, *dots])


def _decodings(validation: Sequence[Json], value: Callable[[Json], Any]) -> list[Series]:
    decodings = dict.fromkeys(str(record.get("decoding", "sampled")) for record in validation)
    return [
        _series(
            f"validation, {decoding}",
            [record for record in validation if str(record.get("decoding", "sampled")) == decoding],
            value,
            dots=True,
        )
        for decoding in decodings
    ]


def _stages(steps: Sequence[Json]) -> list[Mark]:
    """The first step of each stage of a schedule."""
    first: dict[str, float] = {}
    for index, record in enumerate(steps):
        if record.get("stage") is not None:
            first.setdefault(str(record["stage"]), float(record.get("step", index)))
    return [Mark(x=x, name=name) for name, x in first.items()]


def _names(records: Sequence[Json], group: str) -> list[str]:
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record.get(group) or {}))
    return list(names)


def _series(name: str, records: Sequence[Json], value: Callable[[Json], Any], *, dots: bool = False) -> Series:
    points = [(float(record.get("step", index)), _finite(value(record))) for index, record in enumerate(records)]
    # A resumed run may write a step twice; the later line is the one that counts.
    points = sorted(dict(points).items())
    measured = [point for point in points if point[1] is not None]
    if dots or 2 * len(measured) <= len(points):  # measured now and then: a line would have more gaps than stretches
        dots, points = True, measured
    points = _thinned(points)
    y = [each for _, each in points]
    known = sum(each is not None for each in y)
    smooth = running_mean(y, max(5, known // 10)) if known >= 20 and not dots else ()
    return Series(name=name, x=[x for x, _ in points], y=y, smooth=smooth, dots=dots)


def _thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """At most ``LONGEST`` of the points: of each stretch the first one that is known, of the last stretch the last one."""
    stride = max(1, -(-len(points) // LONGEST))
    stretches = [points[start : start + stride] for start in range(0, len(points), stride)]
    stretches = [*stretches[:-1], *(stretch[::-1] for stretch in stretches[-1:])]
    return [next((point for point in stretch if point[1] is not None), stretch[0]) for stretch in stretches]


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _drawn(curves: Sequence[Curve]) -> list[Curve]:
    """Curves with at least one known value, without the series that have none."""
    kept: list[Curve] = []
    for curve in curves:
        series = [each for each in curve.series if any(value is not None for value in each.y)]
        if series:
            kept.append(Curve(title=curve.title, note=curve.note, series=series))
    return kept


LONGEST_NAME = 28
MOST_LINES = 6  # a chart with more lines cannot be read


def outcome_curves(results: Mapping[str, Any] | None, condition: str | None = None) -> list[Json]:
    """Curves over an episode (for Rhythm: belief error by day) one line a policy; the main condition if none is named.

    A curve whose name ends in another's (``constant_belief_mae_by_day``) is what that one is held against: it becomes a line in
    its chart, called by the rest of its name.
    """
    condition = condition or (main_condition(results) if results else None)
    if results is None or condition not in (results.get("conditions") or {}):
        return []
    lines: dict[str, list[Json]] = {}
    for policy, stored in (results["conditions"][condition].get("policies") or {}).items():
        for name, points in (stored.get("curves") or {}).items():
            y = [value.mean if (value := figure(point)) else None for point in points]
            if any(value is not None for value in y):
                lines.setdefault(name, []).append({"name": policy, "x": list(range(1, len(y) + 1)), "y": y})
    charts: list[Json] = []
    for name, series in lines.items():
        if _home(name, lines):
            continue
        series = _fewest(series)
        against = [other for other in lines if _home(other, lines) == name]
        series += [{**lines[other][0], "name": _spaced(other.removesuffix(name))} for other in against]
        along = name.rpartition("_by_")[2] if "_by_" in name else "point"
        charts.append({"title": _spaced(name), "note": "mean over the episodes", "x": _spaced(along), "series": series})
    return charts


def _home(name: str, names: Iterable[str]) -> str | None:
    return next((other for other in names if name != other and name.endswith(f"_{other}")), None)


def _spaced(name: str) -> str:
    return name.replace("_", " ").strip()


def _fewest(series: Sequence[Json]) -> list[Json]:
    """At most as many lines as can be told apart: equal ones once, then the run's own first."""
    seen: dict[tuple[float | None, ...], Json] = {}
    for line in series:
        seen.setdefault(tuple(line["y"]), line)
    kept = sorted(seen.values(), key=lambda line: not is_own(line["name"]))
    return kept[:MOST_LINES]


def audit_points(audit: Mapping[str, Any] | None) -> list[Json]:
    """Reward (x) and true reward (y) of each policy of an audit; ``strong`` marks exploits and the plans of the search."""
    points: list[Json] = []
    for stored in (audit or {}).get("points") or ():
        reward, true_reward = figure(stored.get("reward")), figure(stored.get("true_reward"))
        if reward and true_reward:
            strong = stored.get("role") in ("exploit", "search")
            name = str(stored.get("policy"))
            short = name.partition(": ")[0] if len(name) > LONGEST_NAME else name  # the plan of a search is a paragraph
            points.append({"name": short, "x": reward.mean, "y": true_reward.mean, "strong": strong})
    return points
