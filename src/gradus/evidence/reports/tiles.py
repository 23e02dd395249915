"""The four figures under the headline of a report: the gain, the distance to the teacher, the audit, and the run's health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradus.core.documents import AuditRecord, Diagnoses, Results
from gradus.evidence.reports.results import BEFORE, Figure, Scores, headline_condition, scores_of
from gradus.evidence.reports.run_files import RunRecord
from gradus.evidence.reports.verdict import State, state_of
from gradus.stats import format_signed

_STUDENT = "grpo"
_STATES: dict[str, State] = {
    "healthy": "shown",
    "stop": "refuted",
    "pass": "shown",
    "fail": "refuted",
}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure: its label, the value, what is known of it, and the section that has more."""

    label: str
    value: str
    note: str
    section: str
    state: State = "open"


def tiles(record: RunRecord) -> list[Tile]:
    """The tiles of a run, as far as it stored what they show."""
    row: list[Tile] = []
    if record.results is not None:
        row += _gains(record.results, record.teacher)
    if record.audit is not None:
        row.append(_audit(record.audit))
    if record.doctor is not None:
        row.append(_health(record.doctor))
    return row


def _gains(results: Results, teacher: str) -> list[Tile]:
    """How far GRPO's student is above the one before it, and above its teacher."""
    condition = headline_condition(results)
    if condition is None:
        return []
    scores = scores_of(results)[results["grader"]][condition]
    gains = [_gain("gain of GRPO", scores, BEFORE), _gain("distance to the teacher", scores, [teacher])]
    return [gain for gain in gains if gain]


def _gain(label: str, scores: Scores, policies: Sequence[str]) -> Tile | None:
    """The student's reward minus that of the first of ``policies`` that has one."""
    for policy in policies:
        change = _change(scores, policy)
        if change is None:
            continue
        bounds = ""
        if change.low is not None and change.high is not None:
            bounds = f", {format_signed(change.low, 2)} to {format_signed(change.high, 2)}"
        return Tile(
            label=label,
            value=format_signed(change.mean, 2),
            note=f"grpo − {policy} on {scores.condition}{bounds}",
            section="proven",
            state=state_of(change),
        )
    return None


def _change(scores: Scores, policy: str) -> Figure | None:
    """The student's reward minus another policy's: paired if that was stored, else of the means alone."""
    pair = scores.against(_STUDENT).get(policy)
    if pair is not None and "reward" in pair.figures:
        return pair.figures["reward"]
    student = scores.policies.get(_STUDENT, {}).get("reward")
    reward = scores.policies.get(policy, {}).get("reward")
    return Figure(mean=student.mean - reward.mean) if student and reward else None


def _audit(audit: AuditRecord) -> Tile:
    failed = [check["name"].replace("_", " ") for check in audit["checks"] if check["status"] == "fail"]
    note = f"failed: {', '.join(failed)}" if failed else f"{len(audit['checks'])} checks of the grader"
    verdict = audit["verdict"]
    return Tile(label="audit", value=verdict, note=note, section="audit", state=_STATES.get(verdict, "open"))


def _health(doctor: Diagnoses) -> Tile:
    status = doctor["status"]
    rules = dict.fromkeys(diagnosis["rule"] for diagnosis in doctor["diagnoses"][:2])
    note = ", ".join(rules) or "no rule fired"
    return Tile(label="health", value=status, note=note, section="health", state=_STATES.get(status, "open"))
