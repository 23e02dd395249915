"""Running the rules: over a stored run, step by step as it happened, or live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from gradus.core.documents import SCHEMA, Diagnoses, DiagnosisRecord
from gradus.evidence.health.history import SEVERITIES, Finding, History
from gradus.evidence.health.rules import RULES, Rule

Records = Sequence[Mapping[str, Any]]
_FEW = 5  # steps that most rules look at
_EXIT = {"healthy": 0, "warn": 1, "stop": 2}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A rule that fired: how badly at worst, when first and last, how often, with the evidence of its worst moment."""

    rule: str
    severity: str
    evidence: str
    remedy: str
    first_step: int | None
    last_step: int | None
    steps: int
    ongoing: bool


def diagnose(records: Records, rules: Sequence[Rule] = RULES) -> list[Diagnosis]:
    """Runs the rules at every step of a stored run. The worst diagnoses come first, then those that appeared first."""
    diagnoses: list[Diagnosis] = []
    for rule in rules:
        history = History(records, rule.kind)
        fired = [
            (count, finding) for count in range(1, len(history) + 1) if (finding := rule.check(history.before(count)))
        ]
        if fired:
            diagnoses.append(_diagnosis(rule, history, fired))
    return worst_first(diagnoses)


def worst_first(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """By severity, then in order of first appearance."""
    return sorted(diagnoses, key=lambda each: (-SEVERITIES.index(each.severity), each.first_step or 0))


def _diagnosis(rule: Rule, history: History, fired: Sequence[tuple[int, Finding]]) -> Diagnosis:
    """One diagnosis from all the steps at which a rule fired."""
    worst = max(SEVERITIES.index(finding.severity) for _, finding in fired)
    count, finding = [each for each in fired if SEVERITIES.index(each[1].severity) == worst][-1]
    step = history.before(count).step  # an evaluation is of no step
    return Diagnosis(
        rule=rule.name,
        severity=finding.severity,
        evidence=finding.evidence if step is None else f"step {step}: {finding.evidence}",
        remedy=rule.remedy,
        first_step=history.before(fired[0][0]).step,
        last_step=history.before(fired[-1][0]).step,
        steps=len(fired),
        ongoing=fired[-1][0] == len(history),
    )


class Monitor:
    """The rules in a running run. Call it with new records, or with all so far; it knows what it has seen.

    It returns all that holds at the newest record of each kind: mappings with rule, severity, evidence, remedy and step. What was already told is for the caller to know, so that a resumed run reacts as the
    unbroken one does.
    """

    def __init__(self) -> None:
        self._histories = {rule.kind: History((), rule.kind) for rule in RULES}
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, records: Records) -> list[dict[str, Any]]:
        fresh = [record for record in records if _identity(record) not in self._seen]
        self._seen.update(_identity(record) for record in fresh)
        for history in self._histories.values():
            history.add(fresh)
        return [
            _alert(rule, finding, history.step)
            for rule in RULES
            if len(history := self._histories[rule.kind].now()) and (finding := rule.check(history))
        ]


def _alert(rule: Rule, finding: Finding, step: int | None) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "severity": finding.severity,
        "evidence": finding.evidence,
        "remedy": rule.remedy,
        "step": step,
    }


def _identity(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        record.get("kind", "step"),
        record.get("step"),
        record.get("decoding"),
        record.get("condition"),
        record.get("rule"),
    )


def status(diagnoses: Iterable[Diagnosis]) -> Literal["healthy", "warn", "stop"]:
    """healthy, warn or stop: the worst of the diagnoses; what is only explained counts as healthy."""
    worst = max((SEVERITIES.index(each.severity) for each in diagnoses), default=0)
    return ("healthy", "warn", "stop")[worst]


def exit_code(state: str) -> int:
    """0 healthy, 1 warnings, 2 stop."""
    return _EXIT[state]


def advice(diagnoses: Sequence[Diagnosis], records: Records = ()) -> str:
    """One line a person can act on. Of few steps of GRPO among ``records`` it says that they are few."""
    serious = [each for each in diagnoses if each.severity != "info"]
    if not serious:
        steps = len(History(records))
        few = f"{steps} step{'s' * (steps != 1)} of GRPO; most rules look at {_FEW} or more"
        return f"Nothing was found in {few}." if 0 < steps < _FEW else "Healthy: nothing to do."
    first = sorted(
        serious, key=lambda each: (-SEVERITIES.index(each.severity), not each.ongoing, each.first_step or 0)
    )[0]
    verb = "Stop" if first.severity == "stop" else "Look at this first"
    when = ""  # an evaluation is of no step
    if first.last_step is not None:
        when = ", still going on" if first.ongoing else f", last seen at step {first.last_step}"
    more = f" ({len(serious) - 1} more above)" if len(serious) > 1 else ""
    return f"{verb}: {first.rule}{when}. {first.remedy}{more}"


def report(diagnoses: Sequence[Diagnosis], records: Records = ()) -> Diagnoses:
    """The document of `gradus doctor --json`; ``records`` are those that were diagnosed."""
    return {
        "schema": SCHEMA,
        "status": status(diagnoses),
        "summary": advice(diagnoses, records),
        "diagnoses": [cast(DiagnosisRecord, asdict(each)) for each in diagnoses],
    }


def count_alarms(runs: Iterable[Records], rules: Sequence[Rule] = RULES) -> dict[str, dict[str, int]]:
    """Rule -> how many of ``runs`` it warned in and how many it stopped, each run counted once at its worst.

    Over healthy runs these are false alarms. Every rule is listed; ``runs`` is the number of runs under the key "".
    """
    counted: dict[str, dict[str, int]] = {"": {"runs": 0}}
    counted |= {rule.name: {"warn": 0, "stop": 0} for rule in rules}
    for records in runs:
        counted[""]["runs"] += 1
        for each in diagnose(records, rules):
            if each.severity in counted[each.rule]:
                counted[each.rule][each.severity] += 1
    return counted
