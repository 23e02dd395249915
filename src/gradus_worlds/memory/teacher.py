"""The teacher: it tracks slots by reading the dialogue's own grammar, and needs nothing that a model does not see.

It inserts what is new, updates what has changed and keeps the former value, sets mistakes right, deletes what was taken back, and
lets rumours, jokes, repeats and small talk pass. ``append_only`` reads as well, but only ever inserts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus_worlds.memory.tools.writing import entry_name, write_delete, write_insert, write_update


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a line of dialogue says of a slot.

    ``kind``: tell (holds now), correct (holds, and what was said before never did), retract (is to be forgotten). ``cue`` is the
    word of an entry that names the attribute.
    """

    kind: str
    entity: str
    cue: str
    bank: str
    value: str | None = None


ReadChunk = Callable[[str], Sequence[Statement]]


def note_of(entity: str, cue: str, value: str, former: str | None = None) -> str:
    """How the teacher writes an entry.

    >>> note_of("Tavo", "city", "Reku", "Mila")
    'Tavo city Reku , formerly Mila'
    """
    return f"{entity} {cue} {value}" + (f" , formerly {former}" if former else "")


def append_only(read: ReadChunk, data: Mapping[str, Any]) -> list[str]:
    """An entry for every statement that gives a value."""
    return [
        write_insert(said.bank, note_of(said.entity, said.cue, said.value))
        for said in read(data["chunk"])
        if said.value
    ]


def teach(read: ReadChunk, data: Mapping[str, Any]) -> list[str]:
    """The calls for one chunk, given the entries that are shown with it."""
    return [call for said in _last_word(read(data["chunk"])) for call in _calls(said, data["entries"])]


def _last_word(statements: Sequence[Statement]) -> list[Statement]:
    """One statement per slot: a correction in the same chunk takes the place of what it corrects."""
    slots: dict[tuple[str, str], Statement] = {}
    for said in statements:
        slots.pop((said.entity, said.cue), None)
        slots[(said.entity, said.cue)] = said
    return list(slots.values())


def _calls(said: Statement, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [said.entity, said.cue]
    known = next((entry for entry in entries if entry["content"].split()[:2] == head), None)
    if said.value is None:
        return [write_delete(known["bank"], entry_name(known["content"]))] if known else []
    if known is None:
        return [write_insert(said.bank, note_of(said.entity, said.cue, said.value))]
    held = known["content"].split(" , ")[0].split(" ", 2)[2]
    if held == said.value:
        return []
    former = held if said.kind == "tell" else None
    note = note_of(said.entity, said.cue, said.value, former)
    return [write_update(known["bank"], entry_name(known["content"]), note)]
