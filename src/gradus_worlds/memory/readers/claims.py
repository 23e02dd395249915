"""Reads what an entry says of a slot, by one strict rule for the strict reader and for judging stored facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gradus.core import frozen_record
from gradus_worlds.memory.store.memory import Entry
from gradus_worlds.memory.text import contains, index_tokens, plain_words, substring_match
from gradus_worlds.memory.tools.running import CallResult
from gradus_worlds.memory.worlds.records import Fact, Slot

_CLAUSES = re.compile(r"[.,;:!?()]+|\bbut\b")
_FORMER = frozenset({"formerly", "before", "previously", "earlier", "once", "was", "were", "used"})
_DENIED = frozenset({"not", "no", "never", "isn", "wasn"})


@frozen_record
class SlotClaim:
    """What a text says of a slot; values in the order of the text."""

    # Values that it gives the slot now.
    now: tuple[str, ...]
    # Values that it says the slot had before.
    former: tuple[str, ...]


def claim_of(content: str, slot: Slot) -> SlotClaim | None:
    """Returns what ``content`` says of ``slot``; None if it does not name entity and attribute.

    A value counts as former behind a word such as *formerly* in its clause, and not at all behind a *not*.
    """
    content_words = plain_words(content)
    # The cheap test first: this is asked of every entry for every fact.
    has_cue = any(cue in content_words for cue in slot.cues)
    if not has_cue or not contains(content_words, plain_words(slot.entity)):
        return None
    return values_of(content, slot, entity_named=not slot.directed)


def values_of(text: str, slot: Slot, *, entity_named: bool = True) -> SlotClaim:
    """Returns the values of ``slot`` that a text names; without ``entity_named`` only those behind the entity."""
    entity = plain_words(slot.entity)
    # A friend's own name is among the values of friends, and stands in every entry on that friend.
    others = [value for value in slot.values if value.lower() != slot.entity.lower()]
    values = {plain_words(value): value for value in others}
    now: dict[str, None] = {}
    former: dict[str, None] = {}
    # A "not" or a "formerly" reaches to the end of its clause.
    for clause in _CLAUSES.split(text):
        words = plain_words(clause)
        claimed = now
        denied = False
        for place, word in enumerate(words):
            entity_named = entity_named or words[place : place + len(entity)] == entity
            denied = denied or word in _DENIED
            if word in _FORMER:
                claimed = former
            if denied or not entity_named:
                continue
            for value, spelled in values.items():
                if words[place : place + len(value)] == value:
                    claimed[spelled] = None
    return SlotClaim(now=tuple(now), former=tuple(former))


def facts_right(
    facts: Sequence[Fact], before: Mapping[int, Entry], after: Mapping[int, Entry], results: Sequence[CallResult]
) -> int:
    """Returns how many of a chunk's facts the calls stored, updated or deleted rightly.

    A stored or updated value is right if an entry written now gives it, alone, as what holds, and no other entry gives the
    slot another value. A deletion is right if an entry gave the slot a value before and none does after.
    """
    ids = {result.entry_id for result in results if result.wrote}
    written = [entry for entry in after.values() if entry.id in ids]
    return sum(_is_right(fact, before.values(), after.values(), written) for fact in facts)


def _is_right(fact: Fact, before: Iterable[Entry], after: Iterable[Entry], written: Sequence[Entry]) -> bool:
    if fact.slot is None:
        return any(substring_match(entry.content, fact.value or "") for entry in written)
    if fact.value is None:
        return bool(_values(before, fact.slot)) and not _values(after, fact.slot)
    return _values(written, fact.slot) == {fact.value} == _values(after, fact.slot)


def _values(entries: Iterable[Entry], slot: Slot) -> set[str]:
    """All values that entries give a slot as what holds now."""
    values: set[str] = set()
    for entry in entries:
        claim = claim_of(entry.content, slot)
        values.update(claim.now if claim else ())
    return values


def grounded(results: Sequence[CallResult], chunk: str, entries: Sequence[Entry]) -> list[bool | None]:
    """For each call whether it wrote a valid entry, at least half of whose words stand in what was read; None if it wrote none."""
    read = set(index_tokens(chunk))
    for entry in entries:
        read.update(index_tokens(entry.content))
    valid: list[bool | None] = []
    for result in results:
        tokens = index_tokens(result.content or "")
        share = sum(token in read for token in tokens) / max(1, len(tokens))
        valid.append(share >= 0.5 if result.wrote else None)
    return valid
