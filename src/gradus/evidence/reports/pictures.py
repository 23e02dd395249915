"""Figures for documents, drawn with matplotlib from what a run stored; PNG or SVG by the file's ending.

They use matplotlib's figure objects and no pyplot: no global state, no display, and the same file for the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import ConfigError
from gradus.core.documents import AuditRecord, Results
from gradus.core.files import replacing
from gradus.core.values import Json
from gradus.evidence.reports.curves import audit_points
from gradus.evidence.reports.results import ConditionScores, main_scores, measures_of
from gradus.evidence.reports.run_files import read_run
from gradus.evidence.reports.score_tables import is_own

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito (2008), which can be told apart with any common color blindness.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_RADIUS = 5  # of a point, in pixels
# Of a name beside its point: the offset in points, and the end of the text that lies there.
_PLACES = (((6, -3), "left"), ((-6, -3), "right"), ((0, 6), "center"), ((0, -12), "center"))
STYLE: Json = {
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


def scores_figure(results: Results, path: Path) -> Path:
    """Rewards by condition: one panel each, a dot and its 95 % interval per policy, best on top."""
    conditions = main_scores(results)

    def draw(canvas: Figure) -> None:
        axes = canvas.subplots(1, len(conditions), squeeze=False, sharex=True)[0]
        for axis, scores in zip(axes, conditions.values(), strict=True):
            _draw_dots(axis, scores)
            axis.set_title(f"{scores.condition} ({scores.stored['episodes']})")
        canvas.supxlabel(f"reward, {results['grader']}", fontsize=9)

    rows = max(len(scores.policies) for scores in conditions.values())
    return _save(path, (3.1 * len(conditions), 1.1 + 0.27 * rows), draw)


def _draw_dots(axis: Axes, scores: ConditionScores) -> None:
    """One row a policy: its mean, with the interval as a line."""
    names = scores.ranked()
    for row, name in enumerate(names):
        value = scores.policies[name].get("reward")
        if value is None:
            continue
        color = COLORS[is_own(name)]
        if value.low is not None and value.high is not None:
            axis.plot([value.low, value.high], [row, row], color=color, linewidth=1.6, alpha=0.6)
        axis.plot(value.mean, row, "D" if is_own(name) else "o", color=color, markersize=5)
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=False, axis="y")


def run_figures(folder: Path) -> list[Path]:
    """Draws ``figures/scores.png`` of a run, for its card; the report has the curves. Returns the files."""
    results = read_run(folder).results
    if results is None or "reward" not in measures_of(main_scores(results)):
        return []
    return [scores_figure(results, folder / "figures" / "scores.png")]


def audit_figure(audit: AuditRecord, path: Path, *, aim: str = "true_reward") -> Path:
    """Reward against the true aim over all policies of an audit: a sound grader's points rise from left to right."""
    points = audit_points(audit)
    if not points:
        raise ConfigError("the audit holds no policies with both a reward and a true reward")

    def draw(canvas: Figure) -> None:
        axis = canvas.subplots()
        for point in points:
            strong = bool(point["strong"])
            axis.plot(point["x"], point["y"], "D" if strong else "o", color=COLORS[strong], markersize=5)
        axis.set_xlabel(f"reward {audit['grader']}")
        axis.set_ylabel(aim)
        axis.margins(0.12)
        canvas.draw_without_rendering()  # names are placed by where the layout has put the points
        _name_points(axis, points)

    return _save(path, (6.0, 4.2), draw)


def _name_points(axis: Axes, points: Sequence[Json]) -> None:
    """Write each name beside its point if it hides no point and no other name, honest policies first; else leave it out."""
    from matplotlib.transforms import Bbox

    centers = axis.transData.transform([(point["x"], point["y"]) for point in points])
    occupied = [Bbox.from_bounds(x - _RADIUS, y - _RADIUS, 2 * _RADIUS, 2 * _RADIUS) for x, y in centers]
    for point in sorted(points, key=lambda point: (point["strong"], -point["y"])):
        for offset, side in _PLACES:
            name = axis.annotate(
                point["name"],
                (point["x"], point["y"]),
                xytext=offset,
                textcoords="offset points",
                ha=side,
                fontsize=7.5,
            )
            box = name.get_window_extent()
            is_inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1
            if is_inside and not box.count_overlaps(occupied):
                occupied.append(box)
                break
            name.remove()


def _save(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> Path:
    """Draw and write."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a figure is written as .png or .svg, got {path.name!r}")
    style: Any = STYLE
    with mpl.rc_context(style):
        canvas = Figure(figsize=size, layout="constrained")
        draw(canvas)
        # Without a date the same data give the same bytes.
        stamp: Any = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replacing(path) as aside:
            canvas.savefig(aside, format=path.suffix[1:], dpi=160, metadata=stamp)
    return path
