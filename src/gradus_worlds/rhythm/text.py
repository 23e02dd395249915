"""The text of a week: the rules said once, one terse line per observation, and a strict parser of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.core import Span, Vocabulary, beginning, blank_thoughts
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import (
    ACTION_INDEX,
    ACTIONS,
    ANOMALY_GRID,
    DAYS,
    EVENTS,
    LETTERS,
    METER_GRID,
    REWARD_GRID,
    REWARD_LIMIT,
    SLOTS,
)

SYSTEM_PROMPT = (
    "Plan one week for a person you do not know: each day has morning afternoon evening night . "
    "Meters 0 to 1 : V vitality C cognition P progress S serenity K connection . They fade; below 0.1 is a crash . "
    "A line shows day slot meters , then of your last step: event , action , r reward , and with a sign how far each meter "
    "moved otherwise than an average person's . Reward is the change of the meters in the person's own hidden weights . "
    "People differ: what helps one drains another . Find out whom you have . "
    "Answer each line with three digits 0-9 and one action: "
    "company ( 0 hates 9 loves ) morning ( 0 night owl 9 morning person ) work ( 0 avoids 9 lives for it ) . "
    "Actions: deep_work admin_work learn sleep exercise meditate family_time socialize me_time binge_watch . "
    "Example: 5 5 5 sleep . You may think first in <reasoning> </reasoning> ."
)

_NO_EVENT = "calm"
_NOTHING = "nothing"  # what was done if the answer could not be understood
_LEVELS = round(1 / METER_GRID)
_ODD_LEVELS = 12  # anomalies are shown up to this many grid steps
_REWARD_LEVELS = round(REWARD_LIMIT / REWARD_GRID)

_METER_WORDS = [[f"{letter}{level * METER_GRID:.2f}" for level in range(_LEVELS + 1)] for letter in LETTERS]
_ODD_WORDS = [
    {level: f"{letter}{level * ANOMALY_GRID:+.2f}" for level in range(-_ODD_LEVELS, _ODD_LEVELS + 1)}
    for letter in LETTERS
]
_REWARD_WORDS = {level: f"r{level * REWARD_GRID:+.1f}" for level in range(-_REWARD_LEVELS, _REWARD_LEVELS + 1)}


def _level(value: float, grid: float, limit: int) -> int:
    return max(-limit, min(limit, round(value / grid)))


def shown(data: Mapping[str, Any]) -> tuple[list[float], list[float], float]:
    """Meters (5), anomalies (5) and reward as the line shows them: what a reader of the text can know."""
    reward = data["reward"] or 0.0
    return (
        [round(value / METER_GRID) * METER_GRID for value in data["meters"]],
        [_level(value, ANOMALY_GRID, _ODD_LEVELS) * ANOMALY_GRID for value in data["anomaly"]],
        _level(reward, REWARD_GRID, _REWARD_LEVELS) * REWARD_GRID,
    )


def observation_text(data: Mapping[str, Any]) -> str:
    """One line, for example ``tue evening V0.65 C0.50 P0.30 S0.60 K0.40 calm learn r+1.2 V-0.08 C+0.00 P+0.00 S+0.00 K+0.04``.

    Every line after the first has the same words in the same places, zeros too: for a small transformer what it said and
    saw a turn ago is then always equally far away. Monday's first line ends with the meters; nothing has happened yet.
    """
    words = ["over"] if data["done"] else [data["day"], data["slot"]]
    words += [table[round(value / METER_GRID)] for table, value in zip(_METER_WORDS, data["meters"], strict=True)]
    if data["reward"] is not None:
        event = data["active_event"]
        words.append(_NO_EVENT if event == "none" else event)
        words.append(data["history"][-1]["action"] or _NOTHING)
        words.append(_REWARD_WORDS[_level(data["reward"], REWARD_GRID, _REWARD_LEVELS)])
        levels = [_level(value, ANOMALY_GRID, _ODD_LEVELS) for value in data["anomaly"]]
        words += [table[level] for table, level in zip(_ODD_WORDS, levels, strict=True)]
    return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The meaning of an answer. ``error`` says what was wrong, and then nothing else is set."""

    action: str | None = None
    digits: tuple[int, ...] | None = None
    spans: tuple[Span, ...] = ()
    error: str | None = None

    @property
    def belief(self) -> list[float] | None:
        """Digits as numbers in [0, 1]; None if no belief was stated."""
        return None if self.digits is None else [digit / 9 for digit in self.digits]


_REASONING = re.compile(r"\s*<reasoning>.*?</reasoning>", re.IGNORECASE | re.DOTALL)
_DIGITS_FIRST = re.compile(r"\s*([0-9]\s+[0-9]\s+[0-9])\s+([a-z_]+)\s*", re.IGNORECASE)
_ACTION_FIRST = re.compile(r"\s*([a-z_]+)(?:\s+([0-9]\s+[0-9]\s+[0-9]))?\s*", re.IGNORECASE)
_EXPECTED = "expected three digits 0-9 and an action, like '5 5 5 sleep'"


def parse_answer(text: str) -> Answer:
    """Read ``S M W ACTION``, ``ACTION S M W`` or ``ACTION`` (no belief), after an optional thought and ``<reasoning>`` block.

    Nothing is guessed: words inside the reasoning are never read as an answer.
    """
    aloud = blank_thoughts(text)
    reasoning = _REASONING.match(aloud)
    if reasoning is None and "<reasoning>" in aloud.lower():
        return Answer(error=f"a <reasoning> block is not closed or not first; {_EXPECTED} after </reasoning>")
    start = reasoning.end() if reasoning else len(text[: len(aloud) - len(aloud.lstrip())].rstrip())
    spans = [Span(name="reasoning", start=len(text) - len(text.lstrip()), end=start)] if start else []
    match = _DIGITS_FIRST.fullmatch(aloud, start)
    belief, action = 1, 2
    if match is None:
        match = _ACTION_FIRST.fullmatch(aloud, start)
        belief, action = 2, 1
    if match is None:
        return Answer(error=f"{_EXPECTED}, got {beginning(' '.join(aloud[start:].split()) or 'nothing', 60)}")
    name = match.group(action).lower()
    if name not in ACTION_INDEX:
        return Answer(error=f"unknown action {name!r}; the actions are {', '.join(ACTIONS)}")
    digits = match.group(belief)
    if digits is not None:
        spans += [
            Span(name=name, start=match.start(belief) + place.start(), end=match.start(belief) + place.end())
            for name, place in zip(BELIEFS, re.finditer("[0-9]", digits), strict=True)
        ]
    spans.append(Span(name="action", start=match.start(action), end=match.end(action)))
    return Answer(
        action=name,
        digits=None if digits is None else tuple(int(digit) for digit in digits.split()),
        spans=tuple(sorted(spans, key=lambda span: span.start)),
    )


def answer_text(action: str, belief: Sequence[float] | None = None, reasoning: str | None = None) -> str:
    """An answer in words; each belief in [0, 1] becomes the nearest digit."""
    words = [] if belief is None else [str(int(9 * min(1.0, max(0.0, value)) + 0.5)) for value in belief]
    head = [f"<reasoning> {reasoning} </reasoning>"] if reasoning else []
    return " ".join([*head, *words, action])


_BELIEF_WORDS = ("company", "morning", "work")
_BELIEF_LEVELS = ("low", "mid", "high")


def reasoning_text(belief: Sequence[float], unsure: Sequence[bool], meter: str, *, probing: bool) -> str:
    """The teacher's numbers in eight words, for example ``company low? morning high work mid values serenity``.

    A question mark says that the belief may still move; the end says what the person seems to value, or that it is too
    early to tell.
    """
    words: list[str] = []
    for name, value, doubt in zip(_BELIEF_WORDS, belief, unsure, strict=True):
        words += [name, _BELIEF_LEVELS[min(2, int(3 * value))] + ("?" if doubt else "")]
    return " ".join([*words, *(("must", "probe") if probing else ("values", meter))])


def vocabulary() -> Vocabulary:
    """Every word that a prompt, a line, an answer or the teacher's reasoning can hold; one token each."""
    words: list[str] = [*(str(digit) for digit in range(10)), *ACTIONS, *DAYS, *SLOTS, _NO_EVENT, _NOTHING, "over"]
    words += [event for event in EVENTS if event != "none"]
    words += [word for table in _METER_WORDS for word in table]
    words += [word for table in _ODD_WORDS for word in table.values()]
    words += list(_REWARD_WORDS.values())
    words += [level + mark for level in _BELIEF_LEVELS for mark in ("", "?")] + ["values", "must", "probe"]
    words += SYSTEM_PROMPT.split()
    return Vocabulary(
        words=tuple(dict.fromkeys(words)),
        pieces=tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
    )
