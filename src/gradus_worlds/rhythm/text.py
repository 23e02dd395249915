"""The text of a week: the rules said once, one terse line per observation, and a strict parser of answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any

from gradus.core import Span, Vocabulary, beginning, blank_thoughts, frozen_record
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import (
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


@frozen_record
class _Levels:
    """The figures of an observation in steps of their grids, which is all that a line shows of them."""

    meters: list[int]  # (5,)
    anomalies: list[int]  # (5,)
    reward: int


def _levels(data: Mapping[str, Any]) -> _Levels:
    return _Levels(
        meters=[round(value / METER_GRID) for value in data["meters"]],
        anomalies=[_level(value, ANOMALY_GRID, _ODD_LEVELS) for value in data["anomaly"]],
        reward=_level(data["reward"] or 0.0, REWARD_GRID, _REWARD_LEVELS),
    )


def _level(value: float, grid: float, limit: int) -> int:
    # What lies beyond has no word of its own.
    return max(-limit, min(limit, round(value / grid)))


@frozen_record
class ShownFigures:
    """The numbers of a line, rounded as it shows them: what a reader of the text can know."""

    meters: list[float]  # (5,)
    anomalies: list[float]  # (5,)
    reward: float


def shown_figures(data: Mapping[str, Any]) -> ShownFigures:
    """Rounds an observation's figures as its line does."""
    levels = _levels(data)
    return ShownFigures(
        meters=[level * METER_GRID for level in levels.meters],
        anomalies=[level * ANOMALY_GRID for level in levels.anomalies],
        reward=levels.reward * REWARD_GRID,
    )


def observation_text(data: Mapping[str, Any]) -> str:
    """One line, for example ``tue evening V0.65 C0.50 P0.30 S0.60 K0.40 calm learn r+1.2 V-0.08 C+0.00 P+0.00 S+0.00 K+0.04``.

    Every line after the first has the same words in the same places, zeros too: for a small transformer what it said and
    saw a turn ago is then always equally far away. Monday's first line ends with the meters; nothing has happened yet.
    """
    levels = _levels(data)
    words = ["over"] if data["done"] else [data["day"], data["slot"]]
    words += map(_meter_word, LETTERS, levels.meters)
    if data["reward"] is not None:
        event = data["active_event"]
        action = data["history"][-1]["action"]
        words.append(_NO_EVENT if event == "none" else event)
        words.append(action or _NOTHING)
        words.append(_reward_word(levels.reward))
        words += map(_odd_word, LETTERS, levels.anomalies)
    return " ".join(words)


COMPACT_PROMPT = (
    "Plan a week for a stranger: each day morning, afternoon, evening, night. A letter is a level: A 0, B one step, up to Z; small "
    "letters are below zero. Each line: vitality cognition progress serenity connection in [A, U], below C a crash; then of your last "
    "step the reward, and how much more each meter moved than an average person's; an event; the slot. People differ: find out whom "
    "you have. Answer: company morning work, A hates to J loves, and work admin learn sleep exercise meditate family friends alone watch."
)


def _letter(level: int) -> str:
    """A level of -25 to 25 as one letter, which most tokenizers write as one token: A is 0, a small letter is below it."""
    return ascii_uppercase[level] if level >= 0 else ascii_lowercase[-level]


def compact_observation(data: Mapping[str, Any]) -> str:
    """One line of letters, for example ``N K G M I M c A A A B evening``, with what :func:`observation_text` shows.

    The day stands where it begins, an event where there was one, and the last action only if it was not understood.
    """
    levels = _levels(data)
    words = list(map(_letter, levels.meters))
    if data["reward"] is not None:
        words.append(_letter(levels.reward))
        words += map(_letter, levels.anomalies)
        if data["active_event"] != "none":
            words.append(data["active_event"])
        if data["history"][-1]["action"] is None:
            words.append(_NOTHING)
    words.append("over" if data["done"] else data["slot"])
    if data["slot"] == SLOTS[0]:
        words.append(data["day"])
    return " ".join(words)


@frozen_record
class Wording:
    """The words of rules, lines and answers. What they say is the same in each."""

    prompt: str
    observation: Callable[[Mapping[str, Any]], str]
    # The characters of a belief's levels 0 to 9.
    levels: str
    # Digits or letters.
    kind: str
    # In the order of ACTIONS.
    actions: tuple[str, ...]

    @property
    def expected(self) -> str:
        """The form of an answer, for errors."""
        first = self.levels[0]
        middle = self.levels[5]
        last = self.levels[-1]
        return f"expected three {self.kind} {first}-{last} and an action, like '{middle} {middle} {middle} sleep'"

    def reword(self, answer: str) -> str:
        """Returns an answer of the plain wording in the words of this one."""
        return " ".join(self._words.get(word, word) for word in answer.split())

    @cached_property
    def _words(self) -> Mapping[str, str]:
        plain = (*PLAIN.levels, *PLAIN.actions)
        return dict(zip(plain, (*self.levels, *self.actions), strict=True))

    @cached_property
    def forms(self) -> tuple[re.Pattern[str], ...]:
        """Levels before the action, and behind it."""
        level = f"[{self.levels[0]}-{self.levels[-1]}]"
        beliefs = r"\s+".join(f"(?P<{name}>{level})" for name in BELIEFS)
        before = rf"\s*{beliefs}\s+{_ACTION}\s*"
        behind = rf"\s*{_ACTION}(?:\s+{beliefs})?\s*"
        return re.compile(before, re.IGNORECASE), re.compile(behind, re.IGNORECASE)


_ACTION = "(?P<action>[a-z_]+)"
PLAIN = Wording(prompt=SYSTEM_PROMPT, observation=observation_text, levels=digits, kind="digits", actions=ACTIONS)
COMPACT = Wording(
    prompt=COMPACT_PROMPT,
    observation=compact_observation,
    levels=ascii_uppercase[:10],
    kind="letters",
    actions=("work", "admin", "learn", "sleep", "exercise", "meditate", "family", "friends", "alone", "watch"),
)


@frozen_record
class ParsedAnswer:
    """The meaning of an answer."""

    action: str | None = None
    # The belief's levels; None if it states none.
    digits: tuple[int, ...] | None = None
    spans: tuple[Span, ...] = ()
    # What was wrong; then nothing else is set.
    error: str | None = None

    @property
    def belief(self) -> list[float] | None:
        """Digits as numbers in [0, 1]; None if no belief was stated."""
        return None if self.digits is None else [digit / 9 for digit in self.digits]


_REASONING = re.compile(r"\s*<reasoning>.*?</reasoning>", re.IGNORECASE | re.DOTALL)


def parse_answer(text: str, wording: Wording = PLAIN) -> ParsedAnswer:
    """Read ``S M W ACTION``, ``ACTION S M W`` or ``ACTION`` (no belief), after an optional thought and ``<reasoning>`` block.

    Nothing is guessed: words inside the reasoning are never read as an answer.
    """
    aloud = blank_thoughts(text)
    reasoning = _REASONING.match(aloud)
    if reasoning is None and "<reasoning>" in aloud.lower():
        return ParsedAnswer(
            error=f"a <reasoning> block is not closed or not first; {wording.expected} after </reasoning>"
        )
    # blank_thoughts leaves spaces in place of a thought, so that characters keep their places.
    thought = text[: len(aloud) - len(aloud.lstrip())]
    start = reasoning.end() if reasoning else len(thought.rstrip())
    levels_first, action_first = wording.forms
    match = levels_first.fullmatch(aloud, start) or action_first.fullmatch(aloud, start)
    if match is None:
        words = " ".join(aloud[start:].split()) or "nothing"
        return ParsedAnswer(error=f"{wording.expected}, got {beginning(words, 60)}")
    action = match["action"].lower()
    if action not in wording.actions:
        return ParsedAnswer(error=f"unknown action {action!r}; the actions are {', '.join(wording.actions)}")
    names = ("action",) if match["work"] is None else (*BELIEFS, "action")
    spans = [Span(name=name, start=match.start(name), end=match.end(name)) for name in names]
    if start:
        spans.append(Span(name="reasoning", start=len(text) - len(text.lstrip()), end=start))
    return ParsedAnswer(
        action=ACTIONS[wording.actions.index(action)],
        digits=tuple(wording.levels.index(match[name].upper()) for name in names[:-1]) or None,
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


def vocabulary(wording: Wording = PLAIN) -> Vocabulary:
    """Every word that a prompt, a line, an answer or the teacher's reasoning can hold; one token each."""
    # The order fixes token ids, and so what a stored model means.
    words = [*"0123456789", *ACTIONS, *DAYS, *SLOTS, _NO_EVENT, _NOTHING, "over"]
    words += [event for event in EVENTS if event != "none"]
    words += [_meter_word(letter, level) for letter in LETTERS for level in range(_LEVELS + 1)]
    words += [_odd_word(letter, level) for letter in LETTERS for level in range(-_ODD_LEVELS, _ODD_LEVELS + 1)]
    words += [_reward_word(level) for level in range(-_REWARD_LEVELS, _REWARD_LEVELS + 1)]
    words += [level + mark for level in _BELIEF_LEVELS for mark in ("", "?")]
    words += ["values", "must", "probe", *SYSTEM_PROMPT.split()]
    if wording is not PLAIN:
        words += [*ascii_letters, *wording.actions, *wording.prompt.split()]
    return Vocabulary(words=tuple(dict.fromkeys(words)), pieces=tuple(ascii_letters + digits))
