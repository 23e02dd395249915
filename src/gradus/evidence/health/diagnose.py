"""Running the rules: over a stored run, step by step as it happened, or live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from gradus.core.documents import SCHEMA, Diagnoses
from gradus.core.findings import SCALE, Finding, Status
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.evidence.health.history import History, Record
from gradus.evidence.health.rules import RULES

Severity = Literal["info", "warn", "stop"]
# The words of doctor.json and of alerts for the scale that all checks share.
SEVERITY: dict[Status, Severity] = {
    "pass": "info",
    "note": "info",
    "open": "info",
    "warn": "warn",
    "fail": "stop",
}
_STATE: dict[Severity, Literal["healthy", "warn", "stop"]] = {
    "info": "healthy",
    "warn": "warn",
    "stop": "stop",
}
_FEW = 5  # steps that most rules look at, at least
TOO_SHORT = "Too short to judge"
Records = Sequence[Record]


@frozen_record
class Diagnosis:
    """A rule that fired."""

    rule: str
    severity: Severity  # at worst
    evidence: str  # of its worst moment
    remedy: str
    # Of its first and its last moment; None in an evaluation, which is of no step.
    first_step: int | None
    last_step: int | None
    steps: int  # at which it fired
    ongoing: bool  # it fired at the newest record


def diagnose(records: Records) -> list[Diagnosis]:
    """Runs the rules at every step of a stored run. The worst diagnoses come first, then those that appeared first."""
    diagnoses: list[Diagnosis] = []
    for rule in RULES:
        history = History(records, rule.kind)
        findings: dict[int, Finding] = {}  # by the number of records that the rule had seen
        # As the run saw it: a fault that went away again is a finding too.
        for count in range(1, len(history) + 1):
            finding = rule.look(history.before(count))
            if finding is not None:
                findings[count] = finding
        if findings:
            diagnoses.append(_diagnosis(history, findings))
    return worst_first(diagnoses)


def worst_first(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """By severity, then in order of first appearance."""
    severities = list(_STATE)
    return sorted(diagnoses, key=lambda diagnosis: (-severities.index(diagnosis.severity), diagnosis.first_step or 0))


def _diagnosis(history: History, findings: dict[int, Finding]) -> Diagnosis:
    """One diagnosis from all the steps at which a rule fired, with the evidence of the latest of the worst."""
    first, last = min(findings), max(findings)
    worst = max(findings, key=lambda count: (SCALE.index(findings[count].status), count))
    step = history.before(worst).step  # an evaluation is of no step
    finding = findings[worst]
    return Diagnosis(
        rule=finding.subject,
        severity=SEVERITY[finding.status],
        evidence=finding.evidence if step is None else f"step {step}: {finding.evidence}",
        remedy=finding.remedy,
        first_step=history.before(first).step,
        last_step=history.before(last).step,
        steps=len(findings),
        ongoing=last == len(history),
    )


class Monitor:
    """The rules in a running run. Call it with new records, or with all so far; it keeps those that it has seen.

    It returns all that holds at the newest record of each kind: mappings with rule, severity, evidence, remedy and step. The caller
    keeps what it has shown before, so that a resumed run reacts as the unbroken one does.
    """

    def __init__(self) -> None:
        self._histories = {rule.kind: History((), rule.kind) for rule in RULES}
        self._identities: set[tuple[Any, ...]] = set()

    def __call__(self, records: Records) -> list[JsonDict]:
        # A resumed run passes all of its records again.
        fresh = [record for record in records if _identity(record) not in self._identities]
        self._identities.update(map(_identity, fresh))
        for history in self._histories.values():
            history.add(fresh)
        alerts: list[JsonDict] = []
        for rule in RULES:
            history = self._histories[rule.kind].now()
            finding = rule.look(history) if len(history) else None
            if finding is not None:
                alert = {
                    "rule": finding.subject,
                    "severity": SEVERITY[finding.status],
                    "evidence": finding.evidence,
                    "remedy": finding.remedy,
                    "step": history.step,
                }
                alerts.append(alert)
        return alerts


def _identity(record: Record) -> tuple[Any, ...]:
    # Two validations of one step differ by decoding, two alerts by rule.
    return (record.get("kind", "step"), *map(record.get, ("step", "decoding", "condition", "rule")))


def status_words(document: Diagnoses) -> str:
    """Returns a document's status for a reader: a run of a few steps in which nothing was found is not called healthy."""
    return TOO_SHORT.lower() if document["summary"].startswith(TOO_SHORT) else document["status"]


def status(diagnoses: Iterable[Diagnosis]) -> Literal["healthy", "warn", "stop"]:
    """healthy, warn or stop: the worst of the diagnoses; what is only explained counts as healthy."""
    worst = worst_first(diagnoses)[:1]
    return _STATE[worst[0].severity] if worst else "healthy"


def advice(diagnoses: Sequence[Diagnosis], records: Records = ()) -> str:
    """One line a person can act on. Of few steps of GRPO among ``records`` it says that they are few."""
    serious = [diagnosis for diagnosis in diagnoses if diagnosis.severity != "info"]
    if not serious:
        steps = len(History(records))
        if not 0 < steps <= _FEW:
            return "Healthy: nothing to do."
        plural = "" if steps == 1 else "s"
        return f"{TOO_SHORT}: nothing was found in {steps} step{plural} of GRPO; most rules look at more."
    # Of equally bad ones first what still goes on.
    worst = [diagnosis for diagnosis in serious if diagnosis.severity == serious[0].severity]
    first = min(worst, key=lambda diagnosis: not diagnosis.ongoing)
    verb = "Stop" if first.severity == "stop" else "Look at this first"
    when = ""  # an evaluation is of no step
    if first.last_step is not None:
        when = ", still going on" if first.ongoing else f", last seen at step {first.last_step}"
    more = f" ({len(serious) - 1} more above)" if len(serious) > 1 else ""
    return f"{verb}: {first.rule}{when}. {first.remedy}{more}"


def report(diagnoses: Sequence[Diagnosis], records: Records = ()) -> Diagnoses:
    """The document of `gradus doctor --json`; ``records`` are those that were diagnosed."""
    rows: Any = [asdict(diagnosis) for diagnosis in diagnoses]
    summary = advice(diagnoses, records)
    return {"schema": SCHEMA, "status": status(diagnoses), "summary": summary, "diagnoses": rows}
