"""Figures for documents, drawn with matplotlib from what a run stored; PNG or SVG by the file's ending.

They use matplotlib's figure objects and no pyplot: no global state, no display, and the same file for the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import ConfigError
from gradus.core.files import replacing
from gradus.reports.curves import Curve, grpo_curves
from gradus.reports.evaluation_charts import audit_points, outcome_curves
from gradus.reports.results import figure, main_condition, measures_of, ranked
from gradus.reports.score_tables import is_own

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["audit_figure", "grpo_figure", "outcome_figure", "scores_figure", "view_figure"]

# Okabe and Ito's colors (2008), which can be told apart with any common color blindness; dashes tell them apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A87900", "#56B4E9", "#555555")
DASHES = ("-", "--", ":", "-.", (0, (4, 1)), (0, (1, 2)), (0, (8, 3)))
STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "gradus",
}


def scores_figure(results: Mapping[str, Any], path: Path, *, measure: str = "reward") -> Path:
    """Scores by condition: one panel each, a dot and its 95 % interval per policy, best on top."""
    conditions = results.get("conditions") or {}
    known = measures_of(conditions)
    if measure not in known:
        raise ConfigError(f"unknown figure {measure!r}; the results have {', '.join(known) or 'none'}")

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots(1, len(conditions), squeeze=False, sharex=True)[0]
        for axis, (name, stored) in zip(axes, conditions.items(), strict=True):
            _dots(axis, stored["policies"], ranked(conditions, name, measure), measure)
            axis.set_title(f"{name} ({stored.get('episodes', '?')})")
        canvas.supxlabel(_measure_label(results, measure), fontsize=9)

    rows = max(len(stored.get("policies") or {}) for stored in conditions.values())
    return _save(path, (3.1 * len(conditions), 1.1 + 0.27 * rows), draw)


def outcome_figure(results: Mapping[str, Any], path: Path, *, condition: str | None = None) -> Path:
    """Curves in the course of an episode, one line a policy: for Rhythm the belief error by day, against the constant belief."""
    condition = condition or main_condition(results)
    charts = outcome_curves(results, condition)
    if not charts:
        raise ConfigError(f"the results hold no curves for {condition!r}; evaluate an environment that has some")

    def draw(canvas: Figure) -> None:
        for axis, chart in zip(canvas.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            for index, line in enumerate(chart["series"]):
                _line(axis, index, line["x"], line["y"], line["name"])
            axis.set_title(chart["title"])
            axis.legend(fontsize=8)

    return _save(path, (5.2 * len(charts), 3.2), draw)


def view_figure(view: Mapping[str, Any], path: Path) -> Path:
    """The pictures of an episode (``shown_view``): its lines with the truth they should reach, and its strips."""
    panels = [panel for panel in view["panels"] if panel["kind"] in ("lines", "strip")]
    if not panels:
        raise ConfigError("this episode's view has no lines and no strips to draw")

    def draw(canvas: Figure) -> None:
        heights = [1.0 if panel["kind"] == "lines" else 0.28 for panel in panels]
        axes = canvas.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            (_lines if panel["kind"] == "lines" else _strip)(axis, panel)
            axis.set_title(panel["title"])
        axes[-1].set_xlabel("turn")
        canvas.suptitle(view["title"], fontsize=10, x=0.01, ha="left")

    return _save(path, (7.2, 0.9 + sum(1.7 if panel["kind"] == "lines" else 0.8 for panel in panels)), draw)


def audit_figure(audit: Mapping[str, Any], path: Path, *, aim: str = "true_reward") -> Path:
    """Reward against the true aim over all policies of an audit: a sound grader's points rise from left to right."""
    points = audit_points(audit)
    if not points:
        raise ConfigError("the audit holds no policies with both a reward and a true reward")

    def draw(canvas: Figure) -> None:
        axis = canvas.subplots()
        for point in points:
            axis.plot(
                point["x"], point["y"], "D" if point["strong"] else "o", color=COLORS[point["strong"]], markersize=5
            )
        axis.set_xlabel(f"reward {audit.get('grader', '')}".strip())
        axis.set_ylabel(aim)
        axis.margins(0.12)
        canvas.draw_without_rendering()  # names are placed by where the layout has put the points
        _name_points(axis, points)

    return _save(path, (6.0, 4.2), draw)


def grpo_figure(
    records: Sequence[Mapping[str, Any]], path: Path, *, titles: Sequence[str] = (), true_reward: str | None = None
) -> Path:
    """Curves of a GRPO run from its metrics' lines; ``titles`` choose among them, the first six otherwise."""
    drawn = grpo_curves(records, true_reward)
    curves = [curve for curve in drawn if curve.title in titles] if titles else drawn[:6]
    if not curves:
        raise ConfigError(f"no such curves; the metrics have {', '.join(curve.title for curve in drawn) or 'none'}")
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots(rows, columns, squeeze=False).ravel()
        for axis, curve in zip(axes, curves, strict=False):
            for index, series in enumerate(curve.series):
                if series.dots:
                    axis.plot(series.x, series.y, "o", color=COLORS[index % 7], markersize=4, label=series.name)
                    continue
                if series.smooth:
                    axis.plot(series.x, _gaps(series.y), color=COLORS[index % 7], linewidth=0.8, alpha=0.3)
                _line(axis, index, series.x, series.smooth or series.y, series.name)
            _marks(axis, curve)
            axis.set_title(curve.title)
            if len(curve.series) > 1:
                axis.legend(fontsize=7)
        for axis in axes[len(curves) :]:
            axis.set_visible(False)

    return _save(path, (3.4 * columns, 2.3 * rows), draw)


def _save(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> Path:
    """Draw and write."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a figure is written as .png or .svg, got {path.name!r}")
    style: Any = dict(STYLE)
    with mpl.rc_context(style):
        canvas = Figure(figsize=size, layout="constrained")
        draw(canvas)
        # Without a date the same data give the same bytes.
        stamp: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replacing(path) as aside:
            canvas.savefig(aside, format=path.suffix[1:], dpi=160, metadata=stamp)
    return path


def _name_points(axis: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    """Write each name beside its point where it hides no point and no other name, honest policies first; else leave it out."""
    scale = 72 / axis.figure.dpi  # pixels to points
    at = [axis.transData.transform((point["x"], point["y"])) * scale for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    for index in sorted(range(len(points)), key=lambda index: (points[index]["strong"], -points[index]["y"])):
        name, (x, y) = points[index]["name"], at[index]
        wide = 4.5 * len(name)
        for dx, dy in ((6, -3), (-6 - wide, -3), (-wide / 2, 6), (-wide / 2, -12)):
            box = (x + dx, y + dy, x + dx + wide, y + dy + 8)
            if any(
                box[0] < right and box[2] > left and box[1] < top and box[3] > low for left, low, right, top in taken
            ):
                continue
            taken.append(box)
            spot = (points[index]["x"], points[index]["y"])
            axis.annotate(name, spot, xytext=(dx, dy), textcoords="offset points", fontsize=7.5)
            break


def _dots(axis: Axes, policies: Mapping[str, Any], order: Sequence[str], measure: str) -> None:
    for place, name in enumerate(order):
        value = figure(policies[name].get(measure))
        if value is None:
            continue
        color = COLORS[is_own(name)]
        if value.low is not None and value.high is not None:
            axis.plot([value.low, value.high], [place, place], color=color, linewidth=1.6, alpha=0.6)
        axis.plot(value.mean, place, "D" if is_own(name) else "o", color=color, markersize=5)
    axis.set_yticks(range(len(order)), order)
    axis.grid(visible=False, axis="y")


def _line(axis: Axes, index: int, x: Sequence[float], y: Sequence[float | None], name: str) -> None:
    axis.plot(x, _gaps(y), color=COLORS[index % 7], linestyle=DASHES[index % 7], linewidth=1.5, label=name)


def _marks(axis: Axes, curve: Curve) -> None:
    """Upright lines where something begins."""
    for place, mark in enumerate(curve.marks):  # names of short stages stand below each other
        axis.axvline(mark.x, color=COLORS[-1], linewidth=0.8, linestyle=":")
        at: Any = {
            "xy": (mark.x, 1),
            "xycoords": ("data", "axes fraction"),
            "xytext": (2, -8 - 9 * (place % 3)),
            "textcoords": "offset points",
        }
        axis.annotate(mark.name, **at, fontsize=7, color=COLORS[-1])


def _lines(axis: Axes, panel: Mapping[str, Any]) -> None:
    for index, (name, values) in enumerate((panel.get("series") or {}).items()):
        _line(axis, index, range(1, len(values) + 1), values, name)
        if (truth := (panel.get("truth") or {}).get(name)) is not None:
            axis.axhline(truth, color=COLORS[index % 7], linewidth=1, alpha=0.5)
    if limits := panel.get("limits"):
        axis.set_ylim(*limits)
    axis.set_xlim(0.5, _length(panel) + 0.5)
    if len(panel.get("series") or {}) > 1 or panel.get("truth"):
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _strip(axis: Axes, panel: Mapping[str, Any]) -> None:
    labels = list(panel.get("labels") or ())
    kinds = sorted(set(labels))
    for place, kind in enumerate(kinds):
        at = [index + 1 for index, label in enumerate(labels) if label == kind]
        hatch = "////" if place >= len(COLORS) else None
        axis.bar(at, 1, width=0.92, color=COLORS[place % 7], hatch=hatch, edgecolor="white", linewidth=0, label=kind)
    axis.set_yticks([])
    axis.grid(visible=False)
    axis.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.4))


def _length(panel: Mapping[str, Any]) -> int:
    return max((len(values) for values in (panel.get("series") or {}).values()), default=1)


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _measure_label(results: Mapping[str, Any], measure: str) -> str:
    if measure == "reward":
        return f"reward, {results.get('grader', '')}"
    return str(results.get("true_reward_name") or measure) if measure == "true_reward" else measure.replace("_", " ")
