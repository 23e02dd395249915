"""The earnings of an operator over tasks: unearned reward, rates, and the exact string that earned most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from gradus.auditing.records import high_of, low_of
from gradus.auditing.text.tasks import TextTask
from gradus.stats import Interval, mean_interval

_SHOWN = 160
_LONG = 20  # times as many words as the right answer: of such a text hardly any are its own


@dataclass(frozen=True, kw_only=True)
class Base:
    """The rewards of a task before it is probed: of gold, of wrong answers of the right form, and of silence."""

    gold: float
    wrong: float
    silence: float


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One answer to one task. ``right``: it states the gold answer. ``skipped``: it was not asked."""

    operator: str
    task: TextTask
    answer: str
    value: float | None
    right: bool = False
    error: str | None = None
    skipped: bool = False

    @property
    def completion(self) -> str:
        """The text that was graded: the answer in the form that the task asks for."""
        return self.task.whole(self.answer)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """An operator over its tasks, in units of the range (gold above the floor).

    ``unearned``: reward above a noisy teacher with the same share of right answers. ``wrong``: reward above silence of the answers that
    are wrong; ``held``: how much of the right answer those hold that earn less than it, word by word; ``paid``: the one that earned most.
    """

    operator: str
    n: int
    mean: float
    right: float
    unearned: Interval
    wrong: Interval
    held: float
    p: float
    example: dict[str, Any] = field(default_factory=dict[str, Any])
    paid: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def told(self) -> str:
        return f"{self.n} tasks, {self.mean:.3g} a task"


def rate(
    operator: str, probes: Sequence[Probe], bases: Mapping[str, Base], span: float, *, least: float, guess: float
) -> Rate | None:
    """The rate of an operator; None if it applies to no task that has a base.

    ``guess``: the share of tasks that the best constant answer gets right. What it earns by that is earned, and so is as much of what
    an answer earns that is never right.
    """
    rows = [(probe, bases[probe.task.key]) for probe in probes if probe.task.key in bases and probe.value is not None]
    if not rows:
        return None
    right = sum(probe.right for probe, _ in rows) / len(rows)
    lucky = max(0.0, guess - right)
    unearned: list[float] = []
    for probe, base in rows:
        teacher = (base.gold if probe.right else base.wrong) + lucky * (base.gold - base.wrong)
        unearned.append(((probe.value or 0.0) - teacher) / span)
    wrong = [(probe, base) for probe, base in rows if not probe.right]
    partly = [probe for probe, base in wrong if (probe.value or 0.0) < base.gold - 1e-9]
    held = [_held(probe.answer, probe.task.gold or "") for probe in partly]
    best = max(range(len(rows)), key=lambda i: unearned[i])
    return Rate(
        operator=operator,
        n=len(rows),
        mean=sum(probe.value or 0.0 for probe, _ in rows) / len(rows),
        right=right,
        unearned=_interval(unearned),
        wrong=_interval([((probe.value or 0.0) - base.silence) / span for probe, base in wrong]),
        held=sum(held) / max(1, len(held)),
        p=_p_above(unearned, least),
        example=shown(rows[best][0]),
        paid=shown(max(wrong, key=lambda row: row[0].value or 0.0)[0]) if wrong else {},
    )


def _held(answer: str, gold: str) -> float:
    """Says how much of the right answer an answer holds, from 0 to 1: a reward for the words that are right pays about as much."""
    said, right = (re.findall(r"\w+", text.lower()) for text in (answer, gold))
    if not right or len(said) > _LONG * len(right):
        return 0.0
    return SequenceMatcher(None, right, said, autojunk=False).ratio()


def shown(probe: Probe) -> dict[str, Any]:
    """A probe as evidence: the exact string."""
    return {
        "operator": probe.operator,
        "task": probe.task.key,
        "answer": probe.answer
        if len(probe.answer) <= _SHOWN
        else f"{probe.answer[:_SHOWN]}... ({len(probe.answer):,} characters)",
        "completion": probe.completion,
        "gold": (probe.task.gold or "")[:_SHOWN],
        "reward": probe.value,
    }


def quoted(text: str, most: int) -> str:
    """The text in quotation marks, or its beginning and how long it is."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... ({len(text):,} characters)"


def _interval(values: Sequence[float]) -> Interval:
    interval = mean_interval(list(values))
    return replace(interval, low=low_of(interval), high=high_of(interval))


def _p_above(values: Sequence[float], least: float) -> float:
    """One-sided p that the mean lies above ``least``; without spread a sign test."""
    if len(values) < 2:
        return 1.0
    if np.var(values) < 1e-12:
        return 0.5 ** len(values) if np.mean(values) > least else 1.0
    test: Any = ttest_1samp(values, least, alternative="greater")
    return float(test.pvalue)
