"""Reads what an entry says of a slot, by one strict rule that the strict reader and the grader of stored facts share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradus_worlds.memory.text import contains, plain_words
from gradus_worlds.memory.worlds.records import Slot

_CLAUSES = re.compile(r"[.,;:!?()]+|\bbut\b")
_FORMER = frozenset({"formerly", "before", "previously", "earlier", "once", "was", "were", "used"})
_DENIED = frozenset({"not", "no", "never", "isn", "wasn"})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Values that an entry gives a slot now, and values that it says the slot had before; in the order of the text."""

    now: tuple[str, ...]
    former: tuple[str, ...]


def names_slot(content: str, slot: Slot) -> bool:
    """Says whether a text names the slot's entity and its attribute."""
    words = plain_words(content)
    return contains(words, plain_words(slot.entity)) and any(cue in words for cue in slot.cues)


def claim_of(content: str, slot: Slot) -> Claim | None:
    """Returns what ``content`` says of ``slot``; None if it does not name entity and attribute.

    A value counts as former behind a word such as *formerly* in its clause, and not at all behind a *not*.
    """
    if not names_slot(content, slot):
        return None
    values = {plain_words(value): value for value in slot.values if value.lower() != slot.entity.lower()}
    entity = plain_words(slot.entity)
    now: list[str] = []
    former: list[str] = []
    entity_named = not slot.directed
    for clause in _CLAUSES.split(content):
        words = plain_words(clause)
        before, denied = False, False
        for place, word in enumerate(words):
            entity_named = entity_named or words[place : place + len(entity)] == entity
            before = before or word in _FORMER
            denied = denied or word in _DENIED
            for value, spelled in values.items():
                if words[place : place + len(value)] == value and entity_named and not denied:
                    values_said = former if before else now
                    if spelled not in values_said:
                        values_said.append(spelled)
    return Claim(now=tuple(now), former=tuple(former))
