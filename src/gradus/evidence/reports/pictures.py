"""Figures for documents, drawn with matplotlib from what a run stored; PNG or SVG by the file's ending. Curves are those of the page.

They use matplotlib's figure objects and no pyplot: no global state, no display, and the same file for the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import ConfigError
from gradus.core.files import replacing
from gradus.evidence.reports.curves import Curve, Series
from gradus.evidence.reports.evaluation_charts import audit_points, outcome_curves
from gradus.evidence.reports.page_data import training_curves
from gradus.evidence.reports.results import figure, main_condition, measures_of, ranked
from gradus.evidence.reports.run_files import read_run
from gradus.evidence.reports.score_tables import is_own
from gradus.stats import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # of Okabe and Ito (2008), which can be told apart with any common color blindness
DASHES = ("-", "--", ":")
MOST_PANELS = 6  # the page has all curves
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
    "text.parse_math": False,  # a name may hold dollar signs
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


def run_figures(folder: Path) -> list[Path]:
    """The figures of a run as PNG in ``figures``: scores, the curves of SFT and GRPO, and those in the course of an episode."""
    record = read_run(folder)
    grpo, sft = training_curves(record)
    written: list[Path] = []
    if record.results and "reward" in measures_of(record.results.get("conditions") or {}):
        written.append(scores_figure(record.results, folder / "figures" / "scores.png"))
    condition = main_condition(record.results) if record.results else None
    outcome = [
        Curve(
            title=f"{each['title']}, {condition}",
            note=each["note"],
            x=each["x"],
            series=[Series(**line) for line in each["series"]],
        )
        for each in outcome_curves(record.results)
    ]
    for name, curves in (("sft", sft), ("grpo", grpo), ("episode", outcome)):
        if curves := [
            each for each in curves if any(len({round(y or 0.0, 9) for y in line.y}) > 1 for line in each.series)
        ]:
            written.append(curves_figure(curves[:MOST_PANELS], folder / "figures" / f"{name}.png"))
    return written


def curves_figure(curves: Sequence[Curve], path: Path) -> Path:
    """Curves side by side, up to three in a row, each with its lines by name."""

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots(rows, wide, squeeze=False).ravel()
        named = {tuple(line.name for line in curve.series) for curve in curves}
        for axis, curve in zip(axes, curves, strict=False):
            for place, line in enumerate(curve.series):
                color, dash = COLORS[place % len(COLORS)], DASHES[place // len(COLORS) % len(DASHES)]
                y, smooth = ([float("nan") if v is None else v for v in each] for each in (line.y, line.smooth))
                alpha = 0.3 if smooth else 1.0
                axis.plot(line.x, y, dash, marker="o" if line.dots else "", color=color, markersize=3, alpha=alpha)
                axis.plot(line.x if smooth else [], smooth, dash, color=color, linewidth=1.8)
                axis.plot([], [], dash, color=color, label=line.name)
            axis.set_title(curve.title)
            axis.set_xlabel(curve.x, fontsize=8)
            if curve.top is not None:
                known = [y for line in curve.series for y in line.y if y is not None]
                axis.set_ylim(min(known) - 0.05 * (curve.top - min(known)), curve.top)
                axis.set_title(f"up to {format_number(max(known), 2)}", loc="right", fontsize=8, fontweight="normal")
            if len(named) > 1 and len(curve.series) > 1:  # below the panel, where it hides no line
                axis.legend(fontsize=7, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.2))
        if len(named) == 1 and len(curves[0].series) > 1:  # once for all panels with the same lines
            handles, names = axes[0].get_legend_handles_labels()
            canvas.legend(handles, names, fontsize=7, ncols=3 * wide, loc="outside lower center")
        for axis in axes[len(curves) :]:
            axis.set_visible(False)

    wide = min(len(curves), 3)
    rows = -(-len(curves) // wide)
    return _save(path, (3.6 * wide, 2.6 * rows), draw)


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
    """Write each name beside its point if it hides no point and no other name, honest policies first; else leave it out."""
    scale = 72 / axis.figure.dpi  # pixels to points
    at = [axis.transData.transform((point["x"], point["y"])) * scale for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    left_edge, right_edge = (edge * scale for edge in (axis.bbox.x0, axis.bbox.x1))
    for index in sorted(range(len(points)), key=lambda index: (points[index]["strong"], -points[index]["y"])):
        name, (x, y) = points[index]["name"], at[index]
        wide = 4.5 * len(name)
        for dx, dy in ((6, -3), (-6 - wide, -3), (-wide / 2, 6), (-wide / 2, -12)):
            box = (x + dx, y + dy, x + dx + wide, y + dy + 8)
            if (box[0] < left_edge or box[2] > right_edge) or any(
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


def _measure_label(results: Mapping[str, Any], measure: str) -> str:
    if measure == "reward":
        return f"reward, {results.get('grader', '')}"
    return str(results.get("true_reward_name") or measure) if measure == "true_reward" else measure.replace("_", " ")
