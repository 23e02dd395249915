"""The truth of a synthetic world, and questions on it: current and former values, dates, two hops, and what is not known."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, Attribute
from gradus_worlds.memory.worlds.records import Evidence, Hop, Question, Slot

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


@dataclass(frozen=True, kw_only=True)
class Told:
    """A value that holds since a date, and where it was said."""

    value: str
    since: str
    chunk: int
    text: str

    @property
    def evidence(self) -> Evidence:
        return Evidence(chunk=self.chunk, text=self.text)


class Timeline:
    """The values that hold now, and in ``before`` those just before them, if that was a change and not a mistake set right.

    ``rewritten`` slots have had another value. ``retracted``: what was taken back, and has not been told again.
    """

    def __init__(self) -> None:
        self.current: dict[Key, Told] = {}
        self.before: dict[Key, Told] = {}
        self.rewritten: set[Key] = set()
        self.retracted: dict[Key, Told] = {}
        self._spoken: dict[str, dict[str, None]] = defaultdict(dict)

    def set(self, key: Key, told: Told | None, *, changed: bool) -> None:
        """A new value, or None to take it back. ``changed``: the value before held until now, and was not a mistake."""
        old = self.current.pop(key, None)
        self.before.pop(key, None)
        self.retracted.pop(key, None)
        if told is not None:
            self.current[key] = told
        if old is None:
            return
        if told is None:
            self.retracted[key] = old
            return
        self.rewritten.add(key)
        if changed:
            self.before[key] = old

    def spoken(self, noun: str, value: str) -> None:
        """Note that a value was spoken of, true or not."""
        self._spoken[noun][value] = None

    def slot(self, person: str, attribute: Attribute) -> Slot:
        """The slot with the values that were spoken of so far."""
        return Slot(
            entity=person,
            cues=attribute.cues,
            values=tuple(self._spoken[attribute.noun]),
            directed=attribute.noun == "friend",
        )


def ask(timeline: Timeline, people: Sequence[str], number: int, rng: random.Random) -> list[Question]:
    """Up to ``number`` different questions, of kinds that the world allows, drawn by the weights of the kinds."""
    candidates = _candidates(timeline, people)
    for keys in candidates.values():
        rng.shuffle(keys)
    asked: list[Question] = []
    while len(asked) < number:
        left = [kind for kind in KINDS if candidates[kind]]
        if not left:
            break
        kind = rng.choices(left, [KINDS[one] for one in left])[0]
        asked.append(_QUESTIONS[kind](timeline, candidates[kind].pop(), kind))
    return asked


def _candidates(timeline: Timeline, people: Sequence[str]) -> dict[str, list[Key]]:
    """For each kind what can be asked; for two hops (person, noun) such that the noun is known of the person's friend."""
    known = list(timeline.current)
    slots = [(person, noun) for person in people for noun in ATTRIBUTES]
    friends = {person: timeline.current[person, "friend"].value for person, noun in known if noun == "friend"}
    return {
        "changed": [key for key in known if key in timeline.rewritten],
        "current": [key for key in known if key not in timeline.rewritten],
        "former": [key for key in known if key in timeline.before],
        "date": [*known],
        "two-hop": [
            (person, noun)
            for person, noun in slots
            if noun != "friend" and (friends.get(person), noun) in timeline.current
        ],
        "never-said": [key for key in slots if key not in timeline.current and key not in timeline.retracted],
        "retracted": [*timeline.retracted],
    }


def _hop(timeline: Timeline, key: Key, then: Hop | None = None) -> Hop:
    person, noun = key
    return Hop(slot=timeline.slot(person, ATTRIBUTES[noun]), query=f"{{}} {noun}", then=then)


def _value_question(timeline: Timeline, key: Key, kind: str) -> Question:
    """Returns what holds now; nothing does if it was never said or taken back."""
    told: Told | None = timeline.current.get(key)
    said = told or timeline.retracted.get(key)
    return Question(
        text=f"What is {key[0]}'s {key[1]} now?",
        answers=(told.value,) if told else (),
        kind=kind,
        hops=(_hop(timeline, key),),
        evidence=(said.evidence,) if said else (),
    )


def _former_question(timeline: Timeline, key: Key, kind: str) -> Question:
    told, before = timeline.current[key], timeline.before[key]
    return Question(
        text=f"What was {key[0]}'s {key[1]} before {told.value}?",
        answers=(before.value,),
        kind=kind,
        wanted="former",
        hops=(_hop(timeline, key),),
        of=told.value,
        evidence=(before.evidence,),
    )


def _date_question(timeline: Timeline, key: Key, kind: str) -> Question:
    told = timeline.current[key]
    return Question(
        text=f"On which day did we hear that {key[0]}'s {key[1]} is {told.value}?",
        answers=(told.since,),
        kind=kind,
        wanted="date",
        hops=(_hop(timeline, key),),
        of=told.value,
        evidence=(told.evidence,),
    )


def _two_hop_question(timeline: Timeline, key: Key, kind: str) -> Question:
    person, noun = key
    friend = timeline.current[person, "friend"]
    told = timeline.current[friend.value, noun]
    return Question(
        text=f"What is the {noun} of {person}'s friend?",
        answers=(told.value,),
        kind=kind,
        hops=(_hop(timeline, (person, "friend"), then=_hop(timeline, (friend.value, noun))),),
        evidence=(friend.evidence, told.evidence),
    )


_QUESTIONS: Mapping[str, Callable[[Timeline, Key, str], Question]] = {
    "changed": _value_question,
    "current": _value_question,
    "former": _former_question,
    "date": _date_question,
    "two-hop": _two_hop_question,
    "never-said": _value_question,
    "retracted": _value_question,
}
