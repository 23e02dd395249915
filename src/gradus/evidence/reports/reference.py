"""Published figures of an original beside a run's own, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.evidence.reports.results import figure, graders_of
from gradus.evidence.reports.score_tables import Cell, Row, figure_cell
from gradus.stats import format_number

Json = dict[str, Any]


_SPELLED = {"sft": "SFT", "grpo": "GRPO", "llm": "LLM", "3b": "3B", "mae": "error"}  # in headings


def reference_table(reference: Mapping[str, Any] | None, results: Mapping[str, Any] | None) -> Json | None:
    """Two rows a condition, the original's and ours under the same grader; columns are the original's policies. None if we have no such figure.

    ``reference`` holds ``conditions`` (condition -> policy -> figures), and may hold ``source``, ``grader``, ``note`` (why it is
    not the same environment) and ``ours``: the original's column -> the run's ``policy`` or ``policy/figure``.
    """
    conditions = (reference or {}).get("conditions") or {}
    if reference is None or not conditions:
        return None
    graded = graders_of(results) if results else {}
    grader = reference.get("grader")
    mine = graded.get(str(grader)) if grader else next(iter(graded.values()), None)
    header = list(dict.fromkeys(policy for policies in conditions.values() for policy in policies))
    rows: list[Row] = []
    for condition, policies in conditions.items():
        published = [_published(policies.get(name)) for name in header]
        rows.append(Row(name=f"{condition}, original", cells=published))
        policies = ((mine or {}).get(condition) or {}).get("policies") or {}
        if policies:
            names = reference.get("ours") or {}
            cells = [_ours(policies, names.get(name, name)) for name in header]
            rows.append(Row(name=f"{condition}, here", cells=cells, own=True))
    if not any(row.own for row in rows):
        return None
    under = f"grader {grader}; " if grader else ""
    source = f" Original: {reference['source']}" if reference.get("source") else ""
    return {
        "header": [" ".join(_SPELLED.get(word) or word for word in name.split("_")) for name in header],
        "rows": rows,
        "note": reference.get("note")
        or "The original is another environment: compare the order of policies, not the numbers.",
        "caption": f"{under}mean reward, further figures below it.{source}",
    }


def _published(stored: Any) -> Cell:
    if isinstance(stored, Mapping):
        reward = figure(stored.get("reward"))
        return Cell(text=format_number(reward.mean if reward else None), note=_notes(stored))
    value = figure(stored)
    return Cell(text=format_number(value.mean if value else None))


def _ours(policies: Mapping[str, Any], column: str) -> Cell:
    policy, _, measure = column.partition("/")
    stored = policies.get(policy)
    return figure_cell(figure(stored.get(measure or "reward")) if isinstance(stored, Mapping) else None)


def _notes(stored: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in stored.items():
        if name == "reward" or value is None:
            continue
        known = figure(value)
        shown = str(value) if known is None else (f"{value}" if isinstance(value, int) else format_number(known.mean))
        parts.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(parts)
