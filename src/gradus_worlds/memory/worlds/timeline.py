"""The truth of a synthetic world: what each slot held, since when, and what was spoken of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
    """Current and former values by slot. ``changed`` slots have had a value before; ``retracted`` ones hold none any more."""

    def __init__(self) -> None:
        self._current: dict[Key, Told] = {}
        self._before: dict[Key, Told] = {}
        self._rewritten: set[Key] = set()
        self._retracted: dict[Key, Told] = {}
        self._spoken: dict[str, list[str]] = defaultdict(list)

    def current(self, key: Key) -> Told | None:
        return self._current.get(key)

    def before(self, key: Key) -> Told | None:
        """What held just before the current value, if that was a change and not a mistake set right."""
        return self._before.get(key)

    def set(self, key: Key, told: Told | None, *, former: str | None) -> None:
        """A new value, or None to take it back."""
        old = self._current.pop(key, None)
        self._before.pop(key, None)
        self._retracted.pop(key, None)
        if told is None:
            if old is not None:
                self._retracted[key] = old
            return
        self._current[key] = told
        if old is not None:
            self._rewritten.add(key)
            if former is not None:
                self._before[key] = old

    def spoken(self, noun: str, value: str) -> None:
        """Note that a value was spoken of, true or not."""
        if value not in self._spoken[noun]:
            self._spoken[noun].append(value)

    def values(self, noun: str) -> Sequence[str]:
        return self._spoken[noun]

    def slot(self, person: str, attribute: Attribute) -> Slot:
        """The slot with the values that were spoken of so far."""
        return Slot(
            entity=person,
            cues=attribute.cues,
            values=tuple(self._spoken[attribute.noun]),
            directed=attribute.noun == "friend",
        )

    def known(self) -> list[Key]:
        return list(self._current)

    def rewritten(self, key: Key) -> bool:
        return key in self._rewritten

    def retracted(self) -> list[Key]:
        return list(self._retracted)

    def retracted_evidence(self, key: Key) -> Evidence:
        return self._retracted[key].evidence
