"""Curves as data: of a training run from keys of its metrics (docs/metrics.md), of an episode, and an audit's points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from gradus.core.documents import AuditRecord, Results
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.evidence.reports.score_tables import is_own
from gradus.stats import mean_of

_DOTS = "; dots are validation"
_METRIC = "metric of the environment"
LONGEST = 600  # points of a curve; more cannot be told apart on a screen


@frozen_record
class Series:
    """A line, or single measurements."""

    name: str
    x: Sequence[float]  # what the chart says, steps mostly
    y: Sequence[float | None]
    smooth: Sequence[float | None] = ()  # a centered running mean, or empty
    dots: bool = False


@frozen_record
class Mark:
    """A step at which something begins, drawn as an upright line: a stage of the rewards."""

    x: float
    name: str


@frozen_record
class Curve:
    """One chart."""

    title: str
    note: str
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    x: str = "step"  # what its series go along
    top: float | None = None  # where the axis ends, if a few values lie far above all others


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


GROUPS = (
    ("Components of the reward", "mean of each, unweighted", "components"),
    ("Weights of the components", "in force at each step, by the schedule", "weights"),
    ("What the learning signal is made of", "share of the reward's variance within groups", "component_variance"),
)


def sft_curves(records: Sequence[Json]) -> list[Curve]:
    """The curves of SFT that have any values."""
    steps = _of_kinds(records, "sft", "distill")
    curves = _drawn(_chart(title, note, steps, dict(lines)) for title, note, lines in SFT)
    return [replace(curve, top=_top(curve)) if curve.title == "Loss" else curve for curve in curves]


def grpo_curves(records: Sequence[Json], true_reward: str = "True reward") -> list[Curve]:
    """The curves of GRPO that have any values; the reward, the true reward and the environment's metrics first.

    Where rewards follow a schedule, its weights are a curve of their own and the beginnings of its stages are marked in all.
    """
    steps = _of_kinds(records, "step")
    validation = _of_kinds(records, "validation")
    curves = [
        _with_validation("Reward", "mean reward", steps, validation, "reward_mean"),
        _with_validation(true_reward, "the true aim, which no grader may lower", steps, validation, "true_reward_mean"),
    ]
    families: dict[str, dict[str, str]] = {}  # stem -> figures called ``stem/kind`` -> kind
    for name in _keys(steps, "metrics"):
        stem, _, kind = name.partition("/")
        if kind:
            families.setdefault(stem, {})[name] = _spaced(kind)
        elif _spaced(name) != true_reward:  # an environment may list its true reward as a metric too
            curves.append(_with_validation(_spaced(name), _METRIC, steps, validation, name, "metrics"))
    for stem, kinds in families.items():
        curves.append(_chart(f"{_spaced(stem)} by kind", _METRIC, steps, kinds, "metrics"))
    curves += [_grouped(title, note, steps, group) for title, note, group in GROUPS]
    curves += [_chart(title, note, steps, dict(lines)) for title, note, lines in GRPO]
    curves.append(_grouped("Seconds of a step", "split by what they were spent on", steps, "seconds"))
    marks = _stages(steps)
    return [replace(curve, marks=marks) for curve in _drawn(curves)]


def _of_kinds(records: Sequence[Json], *kinds: str) -> list[Json]:
    return [record for record in records if record.get("kind") in kinds]


def _top(curve: Curve) -> float | None:
    """Says where the axis ends so that the first steps do not press all others together; None if they do not."""
    values = sorted(value for series in curve.series for value in series.y if value is not None)
    # With few values nothing is an outlier.
    if len(values) < 20:
        return None
    most = values[int(0.85 * len(values))]  # above it lie the first steps, if the curve falls
    return 1.1 * most if values[-1] > 1.5 * most > 0 else None


def overlaid(runs: Mapping[str, Sequence[Curve]]) -> list[Curve]:
    """The curves of several runs over each other: of each chart that all have, the first line of every run."""
    by_title: dict[str, dict[str, Curve]] = {}
    for name, curves in runs.items():
        by_title[name] = {curve.title: curve for curve in curves}
    charts: list[Curve] = []
    for title, first in next(iter(by_title.values()), dict[str, Curve]()).items():
        if all(title in curves for curves in by_title.values()):
            lines = [replace(curves[title].series[0], name=name) for name, curves in by_title.items()]
            chart = replace(first, note=first.note.removesuffix(_DOTS), series=lines, marks=())
            # The axis of all runs, not that of the first.
            charts.append(chart if chart.top is None else replace(chart, top=_top(chart)))
    return charts


def _chart(
    title: str,
    note: str,
    records: Sequence[Json],
    lines: Mapping[str, str],
    group: str = "",
) -> Curve:
    """One chart with a line for each key of ``lines``, called by its value. ``group``: the mapping that holds the keys, if one does."""
    series = [_series(name, records, key, group) for key, name in lines.items()]
    return Curve(title=title, note=note, series=series)


def _grouped(title: str, note: str, records: Sequence[Json], group: str) -> Curve:
    """One chart with a line for each key of a group."""
    lines = {key: _spaced(key) for key in _keys(records, group) if key != "total"}
    curve = _chart(title, note, records, lines, group)
    if group != "weights":
        return curve
    return replace(curve, series=[replace(series, smooth=()) for series in curve.series])  # they change in steps


def _with_validation(
    title: str, note: str, steps: Sequence[Json], validation: Sequence[Json], key: str, group: str = ""
) -> Curve:
    """One chart of a figure in training, with dots for each decoding in validation."""
    series = [_series("training", steps, key, group)]
    for decoding in dict.fromkeys(record["decoding"] for record in validation):
        records = [record for record in validation if record["decoding"] == decoding]
        series.append(_series(f"validation, {decoding}", records, key, group, dots=True))
    has_note = len(series) > 1 and not group
    return Curve(title=title, note=f"{note}{_DOTS}" if has_note else note, series=series)


def _stages(steps: Sequence[Json]) -> list[Mark]:
    """The first step of each stage of a schedule."""
    first: dict[str, float] = {}
    for record in steps:
        if record.get("stage") is not None:
            first.setdefault(str(record["stage"]), float(record["step"]))
    return [Mark(x=x, name=name) for name, x in first.items()]


def _keys(records: Sequence[Json], group: str) -> list[str]:
    groups: list[Json] = [record.get(group, {}) for record in records]
    return list(dict.fromkeys(key for mapping in groups for key in mapping))


def _series(
    name: str,
    records: Sequence[Json],
    key: str,
    group: str,
    *,
    dots: bool = False,
) -> Series:
    # A resumed run may write a step twice; the later line is the one that counts.
    values: dict[float, float | None] = {}
    for record in records:
        figures: Json = record.get(group, {}) if group else record
        values[float(record["step"])] = _finite(figures.get(key))
    points = sorted(values.items())
    measured = [point for point in points if point[1] is not None]
    # Of a figure that is measured now and then a line would have more gaps than stretches.
    if dots or 2 * len(measured) <= len(points):
        dots, points = True, measured
    # The last point stays: it is what a reader looks for.
    stride = len(points) // LONGEST + 1
    points = [*points[:-1:stride], *points[-1:]]
    y = [value for _, value in points]
    count = sum(value is not None for value in y)
    smooth: Sequence[float | None] = ()
    if count >= 20 and not dots:
        half = max(5, count // 10) // 2
        smooth = [mean_of(y[max(0, place - half) : place + half + 1]) for place in range(len(y))]
    return Series(name=name, x=[x for x, _ in points], y=y, smooth=smooth, dots=dots)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _drawn(curves: Iterable[Curve]) -> list[Curve]:
    """Curves with at least one known value, without the series that have none."""
    drawn: list[Curve] = []
    for curve in curves:
        series = [line for line in curve.series if set(line.y) - {None}]
        if series:
            drawn.append(replace(curve, series=series))
    return drawn


LONGEST_NAME = 28
MOST_LINES = 6  # a chart with more lines cannot be read


def outcome_curves(results: Results, condition: str) -> list[Json]:
    """Curves over an episode (for Rhythm: belief error by day) one line a policy.

    A curve whose name ends in another's (``constant_belief_mae_by_day``) is what that one is held against: it becomes a line in
    its chart, called by the rest of its name.
    """
    lines: dict[str, list[Json]] = {}
    for policy, stored in results["conditions"][condition]["policies"].items():
        for name, points in stored["curves"].items():
            y = [point["mean"] for point in points]
            if set(y) - {None}:
                line = {"name": policy, "x": list(range(1, len(y) + 1)), "y": y}
                lines.setdefault(name, []).append(line)
    homes: dict[str, str] = {}  # the curve in whose chart a curve stands: its own, or the one that its name ends in
    for name in lines:
        homes[name] = next((curve for curve in lines if name.endswith(f"_{curve}")), name)
    charts: dict[str, Json] = {}
    # First the charts, then what is held against them: the order of curves is the environment's.
    for name in sorted(lines, key=lambda name: homes[name] != name):
        home = homes[name]
        if home == name:
            along = name.rpartition("_by_")[2] if "_by_" in name else "point"
            charts[name] = {
                "title": _spaced(name),
                "note": "mean over the episodes",
                "x": _spaced(along),
                "series": _fewest(lines[name]),
            }
        elif home in charts:
            # A policy's line is enough: what its figure is held against is the same for all.
            label = _spaced(name.removesuffix(home))
            charts[home]["series"].append({**lines[name][0], "name": label})
    return list(charts.values())


def _spaced(name: str) -> str:
    return name.replace("_", " ").strip()


def _fewest(series: Sequence[Json]) -> list[Json]:
    """At most as many lines as can be told apart: equal ones once, then the run's own first."""
    different: dict[tuple[float | None, ...], Json] = {}
    for line in series:
        different.setdefault(tuple(line["y"]), line)
    return sorted(different.values(), key=lambda line: not is_own(line["name"]))[:MOST_LINES]


def audit_points(audit: AuditRecord) -> list[JsonDict]:
    """Reward (x) and true reward (y) of each policy of an audit; ``strong`` marks exploits and the plans of the search."""
    points: list[JsonDict] = []
    for point in audit["points"]:
        reward, true_reward = point["reward"]["mean"], point["true_reward"]["mean"]
        if reward is None or true_reward is None:
            continue
        name = point["policy"]
        if len(name) > LONGEST_NAME:  # the plan of a search is a paragraph
            name = name.partition(": ")[0]
        strong = point["role"] in ("exploit", "search")
        points.append({"name": name, "x": reward, "y": true_reward, "strong": strong})
    return points
