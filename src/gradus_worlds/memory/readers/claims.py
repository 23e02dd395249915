"""Reads what an entry says of a slot, by one strict rule for the strict reader and for judging stored facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradus_worlds.memory.store.memory import Entry
from gradus_worlds.memory.text import contains, index_tokens, plain_words, substring_match
from gradus_worlds.memory.tools.running import CallResult
from gradus_worlds.memory.worlds.records import Fact, Slot

_CLAUSES = re.compile(r"[.,;:!?()]+|\bbut\b")
_FORMER = frozenset({"formerly", "before", "previously", "earlier", "once", "was", "were", "used"})
_DENIED = frozenset({"not", "no", "never", "isn", "wasn"})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Values that an entry gives a slot now, and values that it says the slot had before; in the order of the text."""

    now: tuple[str, ...]
    former: tuple[str, ...]


def claim_of(content: str, slot: Slot) -> Claim | None:
    """Returns what ``content`` says of ``slot``; None if it does not name entity and attribute.

    A value counts as former behind a word such as *formerly* in its clause, and not at all behind a *not*.
    """
    named = plain_words(content)
    if not contains(named, plain_words(slot.entity)) or not any(cue in named for cue in slot.cues):
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


def facts_right(
    facts: Sequence[Fact], before: Mapping[int, Entry], after: Mapping[int, Entry], results: Sequence[CallResult]
) -> int:
    """Returns how many of a chunk's facts the calls stored, updated or deleted rightly.

    A stored or updated value is right if an entry written now gives it, alone, as what holds, and no other entry gives the
    slot another value. A deletion is right if an entry gave the slot a value before and none does after.
    """
    written = [
        after[result.entry_id]
        for result in results
        if result.ok and result.name in ("memory_insert", "memory_update") and result.entry_id is not None
        if result.entry_id in after
    ]
    return sum(_right(fact, before.values(), after.values(), written) for fact in facts)


def _right(fact: Fact, before: Iterable[Entry], after: Iterable[Entry], written: Sequence[Entry]) -> bool:
    if fact.slot is None:
        return any(substring_match(entry.content, fact.value or "") for entry in written)
    if fact.value is None:
        return bool(_values(before, fact.slot)) and not _values(after, fact.slot)
    return _values(written, fact.slot) == {fact.value} == _values(after, fact.slot)


def _values(entries: Iterable[Entry], slot: Slot) -> set[str]:
    """All values that entries give a slot as what holds now."""
    name = slot.entity.lower()
    claims = (claim_of(entry.content, slot) for entry in entries if name in entry.content.lower())
    return {value for claim in claims if claim is not None for value in claim.now}


def grounded(results: Sequence[CallResult], chunk: str, shown: Sequence[Entry]) -> tuple[int, int]:
    """(entries written that are valid, entries written): at least half of a valid entry's words stand in what was read."""
    read = set(index_tokens(chunk)).union(*(index_tokens(entry.content) for entry in shown))
    written = [
        index_tokens(result.content or "")
        for result in results
        if result.ok and result.entry_id is not None and result.name != "memory_delete"
    ]
    return sum(bool(words) and 2 * sum(word in read for word in words) >= len(words) for words in written), len(written)
