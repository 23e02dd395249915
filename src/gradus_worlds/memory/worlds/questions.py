"""The truth of a synthetic world, and questions on it: current and former values, dates, two hops, and what is not known."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date

from gradus.core import frozen_record
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES
from gradus_worlds.memory.worlds.records import Evidence, Hop, Question, Slot

# Not the calendar's: its names depend on the machine's language.
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
Key = tuple[str, str]  # person, noun

# Kinds of questions and their weights, where a world allows one. The current value of what has changed comes most often: keeping up is
# the point of a memory.
KINDS: Mapping[str, float] = {
    "changed": 4.0,
    "current": 2.0,
    "former": 1.0,
    "date": 1.0,
    "two-hop": 1.0,
    "never-said": 0.8,
    "retracted": 0.8,
}


def day_text(day: date) -> str:
    """A date as the dialogue has it, on every machine alike: 3 May 2030."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


@frozen_record
class HeldValue:
    """A value that a slot holds."""

    value: str
    # The date since which it holds.
    since: str
    # Where it was said.
    evidence: Evidence


class Timeline:
    """The truth of a world, as far as it was told."""

    def __init__(self) -> None:
        # What holds now.
        self.current: dict[Key, HeldValue] = {}
        # What held just before it, if that was a change and not a mistake set right.
        self.before: dict[Key, HeldValue] = {}
        # Slots that have had another value.
        self.rewritten: set[Key] = set()
        # What was taken back, and has not been told again.
        self.retracted: dict[Key, HeldValue] = {}
        # Noun -> the values that were spoken of, each once and in order.
        self._spoken: dict[str, dict[str, None]] = defaultdict(dict)

    def set(self, key: Key, new: HeldValue | None, *, changed: bool) -> None:
        """A new value, or None to take it back. ``changed``: the value before held until now, and was not a mistake."""
        old = self.current.pop(key, None)
        self.before.pop(key, None)
        self.retracted.pop(key, None)
        if new is not None:
            self.current[key] = new
        if old is None:
            return
        if new is None:
            self.retracted[key] = old
            return
        self.rewritten.add(key)
        if changed:
            self.before[key] = old

    def spoken(self, key: Key, value: str) -> None:
        """Note that a value was spoken of, true or not."""
        self._spoken[key[1]][value] = None

    def slot(self, key: Key) -> Slot:
        """The slot with the values that were spoken of so far."""
        person, noun = key
        values = tuple(self._spoken[noun])
        return Slot(entity=person, cues=ATTRIBUTES[noun].cues, values=values, directed=noun == "friend")


def ask(timeline: Timeline, people: Sequence[str], number: int, rng: random.Random) -> list[Question]:
    """Up to ``number`` different questions, of kinds that the world allows, drawn by the weights of the kinds."""
    candidates = _candidates(timeline, people)
    # Shuffled once, then taken from the end: no question is asked twice.
    for keys in candidates.values():
        rng.shuffle(keys)
    questions: list[Question] = []
    while len(questions) < number:
        kinds = [kind for kind in KINDS if candidates[kind]]
        if not kinds:
            break
        (kind,) = rng.choices(kinds, [KINDS[kind] for kind in kinds])
        questions.append(_QUESTIONS[kind](timeline, candidates[kind].pop(), kind))
    return questions


def _candidates(timeline: Timeline, people: Sequence[str]) -> dict[str, list[Key]]:
    """For each kind what can be asked; for two hops (person, noun) such that the noun is known of the person's friend."""
    current = timeline.current
    slots = [(person, noun) for person in people for noun in ATTRIBUTES]
    two_hops: list[Key] = []
    for person, noun in slots:
        friend = current.get((person, "friend"))
        is_known = friend is not None and (friend.value, noun) in current
        if is_known and noun != "friend":
            two_hops.append((person, noun))
    return {
        "changed": [key for key in current if key in timeline.rewritten],
        "current": [key for key in current if key not in timeline.rewritten],
        "former": [key for key in current if key in timeline.before],
        "date": [*current],
        "two-hop": two_hops,
        "never-said": [key for key in slots if key not in current and key not in timeline.retracted],
        "retracted": [*timeline.retracted],
    }


def _hop(timeline: Timeline, key: Key, then: Hop | None = None) -> Hop:
    return Hop(slot=timeline.slot(key), query=f"{{}} {key[1]}", then=then)


def _value_question(timeline: Timeline, key: Key, kind: str) -> Question:
    """Returns what holds now; nothing does if it was never said or taken back."""
    person, noun = key
    held = timeline.current.get(key)
    last = held or timeline.retracted.get(key)
    return Question(
        text=f"What is {person}'s {noun} now?",
        answers=(held.value,) if held else (),
        kind=kind,
        hops=(_hop(timeline, key),),
        evidence=(last.evidence,) if last else (),
    )


def _history_question(timeline: Timeline, key: Key, kind: str) -> Question:
    """The value before the one that holds now, or the date since which that one holds."""
    person, noun = key
    held = timeline.current[key]
    source = timeline.before[key] if kind == "former" else held
    texts = {
        "former": f"What was {person}'s {noun} before {held.value}?",
        "date": f"On which day did we hear that {person}'s {noun} is {held.value}?",
    }
    return Question(
        text=texts[kind],
        answers=(source.value if kind == "former" else held.since,),
        kind=kind,
        aspect=kind,
        hops=(_hop(timeline, key),),
        of=held.value,
        evidence=(source.evidence,),
    )


def _two_hop_question(timeline: Timeline, key: Key, kind: str) -> Question:
    person, noun = key
    friend = timeline.current[person, "friend"]
    second = friend.value, noun
    held = timeline.current[second]
    return Question(
        text=f"What is the {noun} of {person}'s friend?",
        answers=(held.value,),
        kind=kind,
        hops=(_hop(timeline, (person, "friend"), then=_hop(timeline, second)),),
        evidence=(friend.evidence, held.evidence),
    )


_QUESTIONS: Mapping[str, Callable[[Timeline, Key, str], Question]] = {
    "changed": _value_question,
    "current": _value_question,
    "former": _history_question,
    "date": _history_question,
    "two-hop": _two_hop_question,
    "never-said": _value_question,
    "retracted": _value_question,
}
