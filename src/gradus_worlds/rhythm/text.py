"""The text of a week: the rules said once, one terse line per observation, and a strict parser of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters, digits
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
_NOTHING = "nothing"  # the word for an answer that could not be understood
_LEVELS = round(1 / METER_GRID)
_ODD_LEVELS = 12  # anomalies are shown up to this many grid steps
_REWARD_LEVELS = round(REWARD_LIMIT / REWARD_GRID)


def _meter_word(letter: str, level: int) -> str:
    return f"{letter}{level * METER_GRID:.2f}"


def _odd_word(letter: str, level: int) -> str:
    return f"{letter}{level * ANOMALY_GRID:+.2f}"


def _reward_word(level: int) -> str:
    return f"r{level * REWARD_GRID:+.1f}"


def _level(value: float, grid: float, limit: int) -> int:
    return max(-limit, min(limit, round(value / grid)))


@dataclass(frozen=True, kw_only=True)
class ShownFigures:
    """The numbers of a line, rounded as it shows them: what a reader of the text can know."""

    meters: list[float]  # (5,)
    anomalies: list[float]  # (5,)
    reward: float


def shown_figures(data: Mapping[str, Any]) -> ShownFigures:
    """Rounds an observation's figures as its line does."""
    return ShownFigures(
        meters=[round(value / METER_GRID) * METER_GRID for value in data["meters"]],
        anomalies=[_level(value, ANOMALY_GRID, _ODD_LEVELS) * ANOMALY_GRID for value in data["anomaly"]],
        reward=_level(data["reward"] or 0.0, REWARD_GRID, _REWARD_LEVELS) * REWARD_GRID,
    )


def observation_text(data: Mapping[str, Any]) -> str:
    """One line, for example ``tue evening V0.65 C0.50 P0.30 S0.60 K0.40 calm learn r+1.2 V-0.08 C+0.00 P+0.00 S+0.00 K+0.04``.

    Every line after the first has the same words in the same places, zeros too: for a small transformer what it said and
    saw a turn ago is then always equally far away. Monday's first line ends with the meters; nothing has happened yet.
    """
    words = ["over"] if data["done"] else [data["day"], data["slot"]]
    for letter, value in zip(LETTERS, data["meters"], strict=True):
        words.append(_meter_word(letter, round(value / METER_GRID)))
    if data["reward"] is not None:
        event, action = data["active_event"], data["history"][-1]["action"]
        words.append(_NO_EVENT if event == "none" else event)
        words.append(action or _NOTHING)
        words.append(_reward_word(_level(data["reward"], REWARD_GRID, _REWARD_LEVELS)))
        for letter, value in zip(LETTERS, data["anomaly"], strict=True):
            words.append(_odd_word(letter, _level(value, ANOMALY_GRID, _ODD_LEVELS)))
    return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class ParsedAnswer:
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
_DIGITS = r"(?P<social>[0-9])\s+(?P<morning>[0-9])\s+(?P<work>[0-9])"
_ACTION = r"(?P<action>[a-z_]+)"
_DIGITS_FIRST = re.compile(rf"\s*{_DIGITS}\s+{_ACTION}\s*", re.IGNORECASE)
_ACTION_FIRST = re.compile(rf"\s*{_ACTION}(?:\s+{_DIGITS})?\s*", re.IGNORECASE)
_EXPECTED = "expected three digits 0-9 and an action, like '5 5 5 sleep'"


def parse_answer(text: str) -> ParsedAnswer:
    """Read ``S M W ACTION``, ``ACTION S M W`` or ``ACTION`` (no belief), after an optional thought and ``<reasoning>`` block.

    Nothing is guessed: words inside the reasoning are never read as an answer.
    """
    aloud = blank_thoughts(text)
    reasoning = _REASONING.match(aloud)
    if reasoning is None and "<reasoning>" in aloud.lower():
        return ParsedAnswer(error=f"a <reasoning> block is not closed or not first; {_EXPECTED} after </reasoning>")
    # blank_thoughts leaves spaces in place of a thought, so that characters keep their places.
    thought = text[: len(aloud) - len(aloud.lstrip())]
    start = reasoning.end() if reasoning else len(thought.rstrip())
    match = _DIGITS_FIRST.fullmatch(aloud, start) or _ACTION_FIRST.fullmatch(aloud, start)
    if match is None:
        words = " ".join(aloud[start:].split()) or "nothing"
        return ParsedAnswer(error=f"{_EXPECTED}, got {beginning(words, 60)}")
    action = match["action"].lower()
    if action not in ACTION_INDEX:
        return ParsedAnswer(error=f"unknown action {action!r}; the actions are {', '.join(ACTIONS)}")
    names = ("action",) if match["work"] is None else (*BELIEFS, "action")
    spans = [Span(name=name, start=match.start(name), end=match.end(name)) for name in names]
    if start:
        spans.append(Span(name="reasoning", start=len(text) - len(text.lstrip()), end=start))
    return ParsedAnswer(
        action=action,
        digits=tuple(int(match[name]) for name in names[:-1]) or None,
        spans=tuple(sorted(spans, key=lambda span: span.start)),
    )


def answer_text(action: str, belief: Sequence[float] | None = None, reasoning: str | None = None) -> str:
    """An answer in words; each belief in [0, 1] becomes the nearest digit."""
    words = [f"<reasoning> {reasoning} </reasoning>"] if reasoning else []
    for value in belief or ():
        digit = int(9 * min(1.0, max(0.0, value)) + 0.5)
        words.append(str(digit))
    return " ".join([*words, action])


_BELIEF_WORDS = ("company", "morning", "work")
_BELIEF_LEVELS = ("low", "mid", "high")


def reasoning_text(belief: Sequence[float], unsure: Sequence[bool], meter: str, *, probing: bool) -> str:
    """The teacher's numbers in eight words, for example ``company low? morning high work mid values serenity``.

    A question mark says that the belief may still move; the end says what the person seems to value, or that it is too
    early to tell.
    """
    words: list[str] = []
    for name, value, doubt in zip(_BELIEF_WORDS, belief, unsure, strict=True):
        level = _BELIEF_LEVELS[min(2, int(3 * value))]
        words += [name, f"{level}?" if doubt else level]
    words += ["must", "probe"] if probing else ["values", meter]
    return " ".join(words)


def vocabulary() -> Vocabulary:
    """Every word that a prompt, a line, an answer or the teacher's reasoning can hold; one token each."""
    # The order fixes token ids, and so what a stored model means.
    words = [*"0123456789", *ACTIONS, *DAYS, *SLOTS, _NO_EVENT, _NOTHING, "over"]
    words += [event for event in EVENTS if event != "none"]
    words += [_meter_word(letter, level) for letter in LETTERS for level in range(_LEVELS + 1)]
    words += [_odd_word(letter, level) for letter in LETTERS for level in range(-_ODD_LEVELS, _ODD_LEVELS + 1)]
    words += [_reward_word(level) for level in range(-_REWARD_LEVELS, _REWARD_LEVELS + 1)]
    words += [level + mark for level in _BELIEF_LEVELS for mark in ("", "?")]
    words += ["values", "must", "probe", *SYSTEM_PROMPT.split()]
    return Vocabulary(words=tuple(dict.fromkeys(words)), pieces=tuple(ascii_letters + digits))
