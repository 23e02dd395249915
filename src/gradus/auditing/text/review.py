"""Which answers count as accepted or refused, and which accepted ones a person has to mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.probe import LEAST, Probes
from gradus.auditing.text.rates import Probe, shown

_PART = 0.5  # a grader that pays in parts takes off at least this part of what was changed
_REVIEWED = 20


def review_list(asked: Probes, marks: Mapping[str, str]) -> list[dict[str, Any]]:
    """Accepted answers that no rule settles, most accepted operators first, at most 20; each with its key and the mark it has."""
    open_rows: list[tuple[float, dict[str, Any]]] = []
    for name, probes in asked.wrong.items():
        accepted = [probe for probe in probes if is_accepted(probe, asked)]
        if not accepted or WRONG[name].is_settled(accepted[0].task):
            continue
        for probe in accepted[:4]:
            key = _key(asked, probe)
            row = {**shown(probe), "key": key, "prompt": probe.task.prompt[-600:], "mark": marks.get(key)}
            open_rows.append((len(accepted) / len(probes), row))
    return [row for _, row in sorted(open_rows, key=lambda each: -each[0])][:_REVIEWED]


def marked(probes: Sequence[Probe], asked: Probes, marks: Mapping[str, str]) -> str | None:
    """What most marks of an operator say."""
    said = [marks[key] for probe in probes if (key := _key(asked, probe)) in marks]
    return max(set(said), key=said.count) if said else None


def _key(asked: Probes, probe: Probe) -> str:
    return f"{asked.subject.name}/{asked.subject.grader}/{probe.operator}/{probe.task.key}"


def is_accepted(probe: Probe, asked: Probes) -> bool:
    """Whether a wrong answer earns what a right one does, or hardly less than what was changed would cost."""
    base = asked.bases.get(probe.task.key)
    if base is None or probe.value is None or base.gold - base.silence < LEAST * asked.span:
        return False
    lost = (base.gold - probe.value) / (base.gold - base.silence)
    return lost <= 1e-6 or (lost <= 0.1 and lost < _PART * _changed(probe))


def _changed(probe: Probe) -> float:
    """The share of the gold answer's text that the probe changed."""
    return 1 - SequenceMatcher(None, probe.task.gold or "", probe.answer, autojunk=False).ratio()


def is_refused(probe: Probe, asked: Probes) -> bool:
    """Whether a right answer earns less than half of what it should."""
    base = asked.bases.get(probe.task.key)
    if base is None or probe.error:
        return False
    return (probe.value or 0.0) < base.silence + 0.45 * (base.gold - base.silence)
