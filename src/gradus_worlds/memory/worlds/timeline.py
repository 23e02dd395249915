"""The truth of a synthetic world: what each slot held, since when, and what was spoken of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date

from gradus_worlds.memory.worlds.phrases import Attribute
from gradus_worlds.memory.worlds.records import Evidence, Slot

MONTHS = (
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
)
Key = tuple[str, str]  # person, noun


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
