"""The four figures under the headline of a report: the gain, the distance to the teacher, the audit, and the run's health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.evidence.reports.results import BEFORE, Figure, differences, figure, headline_condition
from gradus.evidence.reports.run_files import RunRecord
from gradus.evidence.reports.verdict import state_of
from gradus.stats import format_number, format_signed

_STUDENT = "grpo"
_HEALTH = {"healthy": "shown", "stop": "refuted"}
_AUDIT = {"pass": "shown", "fail": "refuted"}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure: its label, the value, what is known of it, the section that has more, and ``shown``, ``refuted`` or ``open``."""

    label: str
    value: str
    note: str
    section: str
    state: str = "open"


def tiles(record: RunRecord, recipe: Mapping[str, Any]) -> Sequence[Tile]:
    """The tiles of a run, as far as it stored what they show."""
    return [*_scores(record.results, (recipe.get("teach") or {}).get("policy")), *_verdicts(record)]


def _scores(results: Mapping[str, Any] | None, teacher: str | None) -> Iterator[Tile]:
    condition = headline_condition(results) if results else None
    if results is None or condition is None:
        return
    for label, other in (("gain of GRPO", BEFORE), ("distance to the teacher", (teacher,))):
        found = next((each for name in other if (each := _against(results, condition, name)) is not None), None)
        if found is None:
            continue
        name, change = found
        bounds = (
            ""
            if change.low is None or change.high is None
            else f", {format_signed(change.low, 2)} to {format_signed(change.high, 2)}"
        )
        yield Tile(
            label=label,
            value=format_signed(change.mean, 2),
            note=f"grpo − {name} on {condition}{bounds}",
            section="proven",
            state=state_of(change) if bounds else "open",
        )


def _against(results: Mapping[str, Any], condition: str, other: str | None) -> tuple[str, Figure] | None:
    """The student's reward minus another policy's: paired if that was stored, else of the means alone."""
    for pair in differences(results["conditions"], condition):
        for each in (pair, pair.reversed()):
            change = each.figures.get("reward")
            if (each.first, each.second) == (_STUDENT, other) and change is not None:
                return each.second, change
    policies = results["conditions"][condition].get("policies") or {}
    means = [figure((policies.get(name) or {}).get("reward")) for name in (_STUDENT, other)]
    if other is None or means[0] is None or means[1] is None:
        return None
    return other, Figure(mean=means[0].mean - means[1].mean)


def _verdicts(record: RunRecord) -> Iterator[Tile]:
    if record.audit is not None:
        verdict = str(record.audit.get("verdict", "unknown"))
        checks = record.audit.get("checks") or []
        failed = [str(each.get("name", "")).replace("_", " ") for each in checks if each.get("status") == "fail"]
        note = f"failed: {', '.join(failed)}" if failed else f"{format_number(len(checks), 0)} checks of the grader"
        yield Tile(label="audit", value=verdict, note=note, section="audit", state=_AUDIT.get(verdict, "open"))
    if record.doctor is not None:
        status, diagnoses = str(record.doctor.get("status", "unknown")), record.doctor.get("diagnoses") or []
        named = ", ".join(dict.fromkeys(str(each.get("rule")) for each in diagnoses[:2]))
        yield Tile(
            label="health",
            value=status,
            note=named or "no rule fired",
            section="health",
            state=_HEALTH.get(status, "open"),
        )
