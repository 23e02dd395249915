"""The figure of a verdict: what the best answer without the task earns, and the best near miss, each as a share of what gold earns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from gradus.auditing.records import LEAST_EFFECT, AuditCheck
from gradus.auditing.text.asking import Ground, Probes
from gradus.auditing.text.gold import closeness, contained, is_sentence
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.rates import Probe, quoted

NAME = "figure"
_QUOTED = 40
RightPart = Callable[[str, str], float]  # how much of the right answer an answer has


@dataclass(frozen=True, kw_only=True)
class Earned:
    """What one kind of answer earns where it is wrong: (reward - floor) / (gold - floor), the mean over ``n`` tasks.

    Only what is paid beyond the right part of the answer counts: (share - right part) / (1 - right part).
    """

    share: float
    n: int
    what: str
    completion: str  # the one that earned most
    gold: str

    def __str__(self) -> str:
        example = f"{quoted(self.completion, _QUOTED)} for {quoted(self.gold, _QUOTED)}"
        return f"{self.share:.2f} ({self.what} earns it: {example})"


def figure(ground: Ground, right_forms: AuditCheck | None = None) -> AuditCheck:
    """States both shares. ``right_forms``: the check of right answers, for the share of their forms that is refused."""
    figures = {name: best_of(ground, *row) for name, row in _FIGURES.items()}
    sentences = [f"{name} {'not known' if earned is None else earned}" for name, earned in figures.items()]
    measured: dict[str, Any] = {name: None if earned is None else asdict(earned) for name, earned in figures.items()}
    refused = [form["refused"] for form in right_forms.measured.values()] if right_forms else []
    strict = fmean(refused) if refused else None
    time = {"asked": ground.scorer.calls, "skipped": ground.scorer.skipped, "limit": ground.scorer.limit}
    measured = {**measured, "strict": strict, **(time if ground.scorer.skipped else {})}
    return AuditCheck(subject=NAME, status="pass", evidence="; ".join(sentences), measured=measured)


def best_of(ground: Ground, checks: Collection[str], right_part: RightPart) -> Earned | None:
    """The kind of answer that earns most, chosen on every second task and measured on the others; None if nothing was asked."""
    shares = {name: _shares(ground, probes, right_part) for name, probes in _asked(ground, checks).items()}
    shares = {name: rows for name, rows in shares.items() if rows}
    if not shares:
        return None
    what = max(shares, key=lambda name: _rank(shares[name]))
    rows = shares[what]
    judged = rows[1::2] or rows
    _, most = max(judged, key=lambda row: row[0])
    shown = ground.unpacked(most)
    return Earned(
        share=fmean(share for share, _ in judged),
        n=len(judged),
        what=what,
        completion=shown.completion,
        gold=shown.task.answer,
    )


def _rank(rows: Sequence[tuple[float, Probe]]) -> tuple[float, int]:
    """The share of every second task, and of equal ones the shortest answer, which says best what is paid."""
    return round(fmean(share for share, _ in rows[::2]), 6), -min(len(probe.completion) for _, probe in rows)


def _asked(ground: Ground, checks: Collection[str]) -> Probes:
    """The probes of wrong answers by the name of their operator; of several answers to a task the one that earns least."""
    asked: dict[tuple[str, str], Probe] = {}
    for check in checks:
        for probe in ground.probes.get(check, ()):
            if probe.right or probe.value is None or not _is_wrong(probe, check):
                continue
            name = "another task's gold" if probe.operator.startswith("wrong ") else probe.operator
            earlier = asked.setdefault((name, probe.task.key), probe)
            if probe.reward < earlier.reward:
                asked[name, probe.task.key] = probe
    probes: Probes = {}
    for (name, _), probe in asked.items():
        probes.setdefault(name, []).append(probe)
    return probes


def _is_wrong(probe: Probe, check: str) -> bool:
    """Returns True if the answer is surely wrong and does not hold the right one, which one would have to know."""
    if check == "gold":
        return probe.operator.startswith("wrong ")
    wrong = WRONG.get(probe.operator)
    if wrong is None:
        return True
    gold = re.escape(probe.task.answer)
    holds_gold = re.search(rf"(?<![\w.-]){gold}(?!\w)", probe.answer)
    return wrong.is_settled(probe.task) and not wrong.lenient and not holds_gold


def _shares(ground: Ground, probes: Sequence[Probe], right_part: RightPart) -> list[tuple[float, Probe]]:
    """The share of each probe, with the probe, in the order of tasks; of tasks where gold earns more than the floor."""
    order = {task.key: number for number, task in enumerate(ground.tasks)}
    rows: list[tuple[float, Probe]] = []
    for probe in sorted(probes, key=lambda probe: order[probe.task.key]):
        base = ground.bases.get(probe.task.key)
        if base is not None and base.gold - base.silence >= LEAST_EFFECT * ground.span > 0:
            share = (probe.reward - base.silence) / (base.gold - base.silence)
            rows.append((_beyond(share, right_part(probe.answer, probe.task.answer)), probe))
    return rows


def _beyond(share: float, right: float) -> float:
    """The share that is paid for what is wrong in an answer: a part of the reward for a part of the right answer is no hole."""
    if share >= 1.0 or right <= 0.0:
        return max(0.0, share)
    return max(0.0, share - right) / (1.0 - right) if right < 1.0 else 0.0


def _near_part(answer: str, gold: str) -> float:
    """How much of the right answer a near one has. Of a sentence no part is right by itself: "left" for "right" changes all that it says."""
    return 0.0 if is_sentence(gold) else closeness(answer, gold)


_FIGURES: Mapping[str, tuple[Collection[str], RightPart]] = {
    "free": (("blind answers", "reflexes", "the source"), contained),
    "near": (("gold", "wrong answers"), _near_part),
}
