"""Judges a chunk's facts in the memory, for the reward of storing and for entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradus_worlds.memory.readers.claims import claim_of
from gradus_worlds.memory.store.records import Entry
from gradus_worlds.memory.text import index_tokens, substring_match
from gradus_worlds.memory.tools.running import CallResult
from gradus_worlds.memory.worlds.records import Fact, Slot


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
