"""The earnings of an operator over tasks: unearned reward, rates, and the exact string that earned most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from gradus.auditing.records import LEAST_EFFECT, high_of, low_of
from gradus.auditing.text.gold import contained, states
from gradus.auditing.text.scoring import AnswerScore
from gradus.auditing.text.tasks import TextTask
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.stats import Interval, mean_interval, wilson

_SHOWN = 160
_LONG = 20  # times as many words as the right answer: of such a text hardly any are its own

Shown = JsonDict  # a probe as evidence
Values = npt.NDArray[np.float64]


@frozen_record
class Base:
    """The rewards of a task before it is probed: of gold, of wrong answers of the right form, and of silence."""

    gold: float
    wrong: float
    silence: float


@frozen_record
class Probe:
    """One answer to one task, and its score."""

    check: str  # that asked
    operator: str
    task: TextTask
    answer: str
    score: AnswerScore

    @property
    def value(self) -> float | None:
        """The reward, None if the grader gave none."""
        return self.score.value

    @property
    def reward(self) -> float:
        """The reward, 0 if there is none."""
        return self.value or 0.0

    @cached_property
    def right(self) -> bool:
        """The answer states the gold answer."""
        return states(self.answer, self.task.answer)

    @property
    def completion(self) -> str:
        """The text that was graded: the answer in the form that the task asks for."""
        return self.task.completion(self.answer)


@frozen_record
class Rate:
    """An operator over its tasks, in units of the range (gold above the floor)."""

    operator: str
    n: int
    mean: float
    right: float
    unearned: Interval  # reward above a noisy teacher with the same share of right answers
    wrong: Interval  # reward above silence of the answers that are wrong
    held: float  # how much of the right answer those hold that earn less than it, word by word
    p: float
    example: Shown  # the answer that earned most above the teacher
    paid: Shown  # the wrong answer that earned most

    @property
    def share(self) -> str:
        """What it earned, in words."""
        return f"{self.n} tasks, {self.mean:.3g} a task"


def rate(
    operator: str,
    probes: Sequence[Probe],
    bases: Mapping[str, Base],
    span: float,
    *,
    guess: float,
) -> Rate | None:
    """The rate of an operator; None if it applies to no task that has a base.

    ``guess``: the share of tasks that the best constant answer gets right. What it earns by that is earned, and so is as much of what
    an answer earns that is never right.
    """
    probes = [probe for probe in probes if probe.value is not None and probe.task.key in bases]
    if not probes:
        return None
    rewards: Values = np.array([probe.reward for probe in probes])
    is_right = np.array([probe.right for probe in probes])
    earned: Values = np.array([astuple(bases[probe.task.key]) for probe in probes], dtype=np.float64)
    gold, wrong, silence = earned[:, 0], earned[:, 1], earned[:, 2]
    lucky = max(0.0, guess - float(is_right.mean()))
    teacher: Values = np.where(is_right, gold, wrong) + lucky * (gold - wrong)
    unearned: list[float] = ((rewards - teacher) / span).tolist()
    above_silence: list[float] = ((rewards - silence) / span)[~is_right].tolist()
    mistakes = [probe for probe in probes if not probe.right]
    held = [_held(probe) for probe in mistakes if probe.reward < bases[probe.task.key].gold - 1e-9]
    return Rate(
        operator=operator,
        n=len(probes),
        mean=sum(rewards.tolist()) / len(probes),
        right=float(is_right.mean()),
        unearned=_interval(unearned),
        wrong=_interval(above_silence),
        held=sum(held) / max(1, len(held)),
        p=_p_above_least_effect(unearned),
        example=shown(probes[int(np.argmax(unearned))]),
        paid=shown(max(mistakes, key=lambda probe: probe.reward)) if mistakes else {},
    )


def _held(probe: Probe) -> float:
    """Says how much of the right answer an answer holds, from 0 to 1: a reward for the words that are right pays about as much.

    Of all options in a row a share is right, however they are joined.
    """
    part = contained(probe.answer, probe.task.answer)
    words = re.findall(r"\w+", probe.answer.lower())
    right = re.findall(r"\w+", probe.task.answer.lower())
    if not right or len(words) > _LONG * len(right):  # it would take as long as both are long
        return part
    return max(part, SequenceMatcher(None, right, words, autojunk=False).ratio())


def shown(probe: Probe) -> Shown:
    """A probe as evidence: the exact string."""
    answer = probe.answer
    if len(answer) > _SHOWN:
        answer = f"{answer[:_SHOWN]}... ({len(answer):,} characters)"
    return {
        "operator": probe.operator,
        "task": probe.task.key,
        "answer": answer,
        "completion": probe.completion,
        "gold": probe.task.answer[:_SHOWN],
        "reward": probe.value,
    }


def counted(what: str, count: int, n: int) -> tuple[Interval, JsonDict]:
    """The share of ``count`` in ``n`` tasks, and its figures as evidence. ``what``: what happened on these tasks."""
    share = wilson(count, n)
    return share, {"n": share.n, what: share.mean, "low": share.low, "high": share.high}


def quoted(text: str, most: int) -> str:
    """The text in quotation marks, or its beginning and how long it is."""
    if len(text) <= most:
        return repr(text)
    return f"{text[:most]!r}... ({len(text):,} characters)"


def _interval(values: Sequence[float]) -> Interval:
    """The interval of a mean, whose bounds are the mean itself if all values are the same."""
    interval = mean_interval(values)
    return replace(interval, low=low_of(interval), high=high_of(interval))


def _p_above_least_effect(values: Sequence[float]) -> float:
    """One-sided p that the mean lies above the least effect; without spread a sign test."""
    if len(values) < 2:
        return 1.0
    if np.var(values) < 1e-12:  # the t-test divides by it
        return 0.5 ** len(values) if np.mean(values) > LEAST_EFFECT else 1.0
    test: Any = stats.ttest_1samp(values, LEAST_EFFECT, alternative="greater")
    return float(test.pvalue)
