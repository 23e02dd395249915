"""The document as rows for people. The row functions know no terminal; :func:`tables` renders them with rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["component_rows", "curve_rows", "pair_rows", "policy_rows", "tables"]

Document = Mapping[str, Any]
Rows = tuple[list[str], list[list[str]]]

_COUNTS = (
    "episodes",
    "failed",
    "ungraded",
    "truncated",
    "invalid_actions",
    "failures",
    "usage",
    "components",
    "curves",
)
_MAIN = ("reward", "true_reward", "pass@")  # beginnings of the names of figures that are shown with intervals
_MOST_PAIRS = 15


def policy_rows(document: Document, condition: str, grader: str | None = None) -> Rows:
    """Header and one row a policy: reward and true reward with intervals, other metrics as means, counts of what is missing."""
    policies = _condition(document, condition, grader)["policies"]
    figures = _union(policies.values(), leave=_COUNTS)
    header = ["policy", *[_title(document, name) for name in figures], "episodes"]
    rows: list[list[str]] = []
    for name, record in policies.items():
        cells = [(_interval if figure.startswith(_MAIN) else _mean)(record.get(figure)) for figure in figures]
        rows.append([name, *cells, _count(record)])
    return header, rows


def component_rows(document: Document, condition: str, grader: str | None = None) -> Rows:
    """Header and one row a policy: the mean of each unweighted component."""
    policies = _condition(document, condition, grader)["policies"]
    components = _union([record["components"] for record in policies.values()])
    rows = [
        [name, *[_mean(record["components"].get(each)) for each in components]] for name, record in policies.items()
    ]
    return ["policy", *[each.replace("_", " ") for each in components]], rows


def pair_rows(document: Document, condition: str, grader: str | None = None, *, most: int | None = None) -> Rows:
    """Header and one row a pair: differences with paired intervals, wins, Holm's p, and episodes needed if asked for.

    ``most``: with more pairs than that, only neighbors and differences to the first policy are kept.
    """
    stored = _condition(document, condition, grader)
    names = list(stored["policies"])
    pairs: Mapping[str, Any] = stored["pairs"]
    if most is not None and len(pairs) > most:
        kept = {f"{later} - {earlier}" for earlier, later in pairwise(names)}
        kept |= {f"{name} - {names[0]}" for name in names[1:]}
        pairs = {name: record for name, record in pairs.items() if name in kept}
    figures = [name for name in _union(pairs.values(), leave=("components",)) if name.startswith(_MAIN)]
    power = document.get("power")
    header = ["difference", *[_title(document, name) for name in figures], "wins", "win rate", "p (Holm)"]
    if power:
        header.append(f"episodes for {power['difference']:g}")
    rows: list[list[str]] = []
    for name, record in pairs.items():
        reward = record["reward"]
        cells = [_interval(record.get(figure), sign=True) for figure in figures]
        rate = f"[{_share(reward['win_low'])}, {_share(reward['win_high'])}]" if reward["win_low"] is not None else "-"
        row = [name, *cells, f"{reward['wins']} of {reward['episodes']}", rate, _p(reward.get("p_holm"))]
        rows.append([*row, str(reward.get("episodes_needed") or "-")] if power else row)
    return header, rows


def curve_rows(document: Document, condition: str, curve: str, grader: str | None = None) -> Rows:
    """Header and one row a policy: the mean of ``curve`` at each of its points (for Rhythm, belief error by day)."""
    policies = _condition(document, condition, grader)["policies"]
    curves = {name: record["curves"][curve] for name, record in policies.items() if curve in record["curves"]}
    length = max((len(points) for points in curves.values()), default=0)
    header = ["policy", *[str(point + 1) for point in range(length)]]
    rows = [
        [name, *[_mean(points[i]) if i < len(points) else "-" for i in range(length)]]
        for name, points in curves.items()
    ]
    return header, [row for row in rows if any(cell != "-" for cell in row[1:])]


def tables(document: Document) -> list[Any]:
    """Everything as rich renderables: per grader and condition the policies, the pairs and the curves."""
    shown: list[Any] = []
    for grader in [document["grader"], *document.get("graders", {})]:
        for condition, stored in _conditions(document, grader).items():
            shown.append(_policy_table(document, condition, grader, stored))
            rows = component_rows(document, condition, grader)
            if len(rows[0]) > 1:
                shown.append(_rich(f"components of {grader} · {condition}", rows, "unweighted means"))
            if stored["pairs"]:
                shown.append(_pair_table(document, condition, grader, stored))
    for condition, stored in document["conditions"].items():
        curves = _union([record["curves"] for record in stored["policies"].values()])
        shown += [
            _rich(f"{curve} · {condition}", curve_rows(document, condition, curve))
            for curve in curves
            if curve_rows(document, condition, curve)[1]
        ]
    return shown


def _policy_table(document: Document, condition: str, grader: str, stored: Mapping[str, Any]) -> Any:
    title = f"{document['environment']} · {condition} · grader {grader} · {stored['episodes']} episodes"
    samples = document.get("samples", 1)
    over = "episodes" if samples == 1 else f"tasks ({samples} samples each)"
    caption = f"mean and 95 % interval over {over} of these checkpoints"
    if stored.get("clustered"):
        caption += ", clustered on the hidden unit that episodes share"
    failures = {name: record["failures"] for name, record in stored["policies"].items() if record["failures"]}
    if failures:
        told = "; ".join(f"{name} {kind} x {n}" for name, kinds in failures.items() for kind, n in kinds.items())
        caption += f"\nfailed: {told}"
    return _rich(title, policy_rows(document, condition, grader), caption)


def _pair_table(document: Document, condition: str, grader: str, stored: Mapping[str, Any]) -> Any:
    rows = pair_rows(document, condition, grader, most=_MOST_PAIRS)
    caption = "same seeds, mean difference and paired 95 % interval; a claim about an algorithm needs 5 training seeds"
    if left := len(stored["pairs"]) - len(rows[1]):
        caption += f"\n{left} more pairs are in the JSON"
    return _rich(f"differences · {condition} · grader {grader}", rows, caption)


def _rich(title: str, rows: Rows, caption: str | None = None) -> Any:
    from rich.table import Table

    table = Table(title=title, caption=caption, box=None, pad_edge=False, title_justify="left", caption_justify="left")
    for index, column in enumerate(rows[0]):
        table.add_column(column, justify="left" if index == 0 else "right", style="bold" if index == 0 else None)
    for row in rows[1]:
        table.add_row(*row)
    return table


def _conditions(document: Document, grader: str | None) -> Mapping[str, Any]:
    if grader is None or grader == document["grader"]:
        return document["conditions"]
    return document["graders"][grader]["conditions"]


def _condition(document: Document, condition: str, grader: str | None) -> Mapping[str, Any]:
    return _conditions(document, grader)[condition]


def _union(records: Any, leave: Sequence[str] = ()) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record if name not in leave))


def _title(document: Document, figure: str) -> str:
    return document["true_reward_name"] if figure == "true_reward" else figure.replace("_", " ")


def _interval(figure: Mapping[str, Any] | None, *, sign: bool = False) -> str:
    if not figure or figure["mean"] is None:
        return "-"
    form = "+.3f" if sign else ".3f"
    bounds = f" [{figure['low']:{form}}, {figure['high']:{form}}]" if figure["low"] is not None else ""
    return f"{figure['mean']:{form}}{bounds}"


def _mean(figure: Mapping[str, Any] | None) -> str:
    return "-" if not figure or figure["mean"] is None else f"{figure['mean']:.3f}"


def _count(record: Mapping[str, Any]) -> str:
    """How many were rolled out, with what went missing: never silently."""
    missing = [f"{record[kind]} {kind}" for kind in ("failed", "ungraded", "truncated") if record[kind]]
    return f"{record['episodes']}" + (f" ({', '.join(missing)})" if missing else "")


def _share(value: float) -> str:
    return f"{value:.0%}"


def _p(value: float | None) -> str:
    return "-" if value is None else ("<0.001" if value < 0.001 else f"{value:.3f}")
