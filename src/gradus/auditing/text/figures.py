"""The figure of a verdict: what the best answer without the task earns, and the best near miss, each as a share of what gold earns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from gradus.auditing.records import LEAST_EFFECT, AuditCheck
from gradus.auditing.text.asking import Ground, Probes
from gradus.auditing.text.gold import closeness, contained, is_sentence
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.rates import Probe, quoted
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict

NAME = "figure"
_QUOTED = 40
RightPart = Callable[[str, str], float]  # how much of the right answer an answer has


@frozen_record
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
        if self.share < 0.005:
            return "0.00"
        example = quoted(self.completion, _QUOTED)
        if self.gold:
            example += f" for {quoted(self.gold, _QUOTED)}"
        return f"{self.share:.2f} ({self.what} earns it: {example})"


def figure(ground: Ground, paying: Sequence[AuditCheck]) -> AuditCheck:
    """States both shares, and of the check of right answers, if it was made, the share of their forms that is refused."""
    measured: JsonDict = {"of": "what gold earns" if ground.others.golds else "the most"}
    sentences: list[str] = []
    for name, (checks, right_part) in _FIGURES.items():
        earned = best_of(ground, checks, right_part)
        measured[name] = asdict(earned) if earned else None
        sentences.append(f"{name} {earned or 'not known'}")
    refused: list[float] = []
    for check in paying:
        if check.subject == "right answers":
            refused = [form["refused"] for form in check.measured.values()]
    measured["strict"] = fmean(refused) if refused else None
    scorer = ground.scorer
    if scorer.skipped:
        measured |= {"asked": scorer.calls, "skipped": scorer.skipped, "limit": scorer.limit}
    return AuditCheck(subject=NAME, status="pass", evidence="; ".join(sentences), measured=measured)


def best_of(ground: Ground, checks: Collection[str], right_part: RightPart) -> Earned | None:
    """The kind of answer that earns most, chosen on every second task and measured on the others; None if nothing was asked."""
    shares: dict[str, list[tuple[float, Probe]]] = {}
    for name, probes in _asked(ground, checks).items():
        rows = _shares(ground, probes, right_part)
        if rows:
            shares[name] = rows
    if not shares:
        return None
    what = max(shares, key=lambda name: _rank(shares[name]))
    rows = shares[what]
    # The best of many kinds is best by luck too: the tasks that chose it do not measure it, unless there is only one.
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
    share = fmean(share for share, _ in rows[::2])
    shortest = min(len(probe.completion) for _, probe in rows)
    return round(share, 6), -shortest


def _asked(ground: Ground, checks: Collection[str]) -> Probes:
    """The probes of wrong answers by the name of their operator; of several answers to a task the one that earns least."""
    asked: dict[str, dict[str, Probe]] = {}
    for probe in ground.probes:
        if probe.check not in checks or probe.value is None or probe.right or not _is_wrong(probe):
            continue
        # "wrong 0" and "wrong 1" are two draws of one operator, see :func:`find_bases`.
        name = "another task's gold" if probe.operator.startswith("wrong ") else probe.operator
        by_task = asked.setdefault(name, {})
        earlier = by_task.setdefault(probe.task.key, probe)
        if probe.reward < earlier.reward:
            by_task[probe.task.key] = probe
    return {name: list(by_task.values()) for name, by_task in asked.items()}


def _is_wrong(probe: Probe) -> bool:
    """Returns True if the answer is surely wrong and does not hold the right one, which one would have to know."""
    if probe.check == "gold":
        return probe.operator.startswith("wrong ")
    wrong = WRONG.get(probe.operator)
    if wrong is None:
        return True
    if wrong.lenient or not wrong.is_settled(probe.task):
        return False
    gold = re.escape(probe.task.answer)
    # As a word of its own: the wrong answer 117 does not hold 17.
    return not re.search(rf"(?<![\w.-]){gold}(?!\w)", probe.answer)


def _shares(ground: Ground, probes: Sequence[Probe], right_part: RightPart) -> list[tuple[float, Probe]]:
    """The share of each probe, with the probe, in the order of tasks; of tasks where gold earns more than the floor."""
    # Probes come by operator and by check; halves of tasks must be the same for all kinds.
    order = {task.key: number for number, task in enumerate(ground.tasks)}
    rows: list[tuple[float, Probe]] = []
    for probe in sorted(probes, key=lambda probe: order[probe.task.key]):
        task = probe.task
        base = ground.bases.get(task.key)
        if base is None:
            continue
        gain = base.gold - base.silence
        if gain >= LEAST_EFFECT * ground.span > 0:
            share = max(0.0, (probe.reward - base.silence) / gain)
            right = right_part(probe.answer, task.answer)
            # A part of the reward for a part of the right answer is no hole.
            if share < 1.0:
                share = max(0.0, share - right) / (1.0 - right) if right < 1.0 else 0.0
            rows.append((share, probe))
    return rows


def _near_part(answer: str, gold: str) -> float:
    """How much of the right answer a near one has. Of a sentence no part is right by itself: "left" for "right" changes all that it says."""
    return 0.0 if is_sentence(gold) else closeness(answer, gold)


# What each share is taken from: answers that know nothing of the task, and those that are made of or near the right one.
_FIGURES: Mapping[str, tuple[Collection[str], RightPart]] = {
    "free": (("blind answers", "reflexes", "the source"), contained),
    "near": (("gold", "wrong answers"), _near_part),
}
