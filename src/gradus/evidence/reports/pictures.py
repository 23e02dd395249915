"""Figures for documents, drawn with matplotlib from what a run stored; PNG or SVG by the file's ending.

They use matplotlib's figure objects and no pyplot: no global state, no display, and the same file for the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import ConfigError
from gradus.core.files import replacing
from gradus.evidence.reports.curves import audit_points
from gradus.evidence.reports.results import figure, measures_of, ranked
from gradus.evidence.reports.run_files import read_run
from gradus.evidence.reports.score_tables import is_own

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
    """Draws ``figures/scores.png`` of a run, for its card; the report has the curves. Returns the files."""
    record = read_run(folder)
    if not record.results or "reward" not in measures_of(record.results.get("conditions") or {}):
        return []
    return [scores_figure(record.results, folder / "figures" / "scores.png")]


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
