"""The teacher: it tracks slots by reading the dialogue's own grammar, and needs nothing that a model does not see.

It inserts what is new, updates what has changed and keeps the former value, sets mistakes right, deletes what was taken back, and
lets rumours, jokes, repeats and small talk pass. ``append_only`` reads as well, but only ever inserts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus_worlds.memory.tools.writing import entry_name, write_delete, write_insert, write_update
from gradus_worlds.memory.worlds.phrases import Said, read_line


def note_of(entity: str, cue: str, value: str, former: str | None = None) -> str:
    """Says how the teacher writes an entry.

    >>> note_of("Tavo", "city", "Reku", "Mila")
    'Tavo city Reku , formerly Mila'
    """
    return f"{entity} {cue} {value}" + (f" , formerly {former}" if former else "")


def read_chunk(text: str) -> list[Said]:
    """Returns what the lines of a chunk say; rumours, jokes, repeats and small talk say nothing.

    >>> [said.value for said in read_chunk("Tavo: my city is now Reku.\\nMila: well, I have to think about that.")]
    ['Reku']
    """
    read = [read_line(line) for line in text.splitlines()]
    return [said for said in read if said is not None and said.kind not in ("rumour", "joke", "repeat")]


def append_only(data: Mapping[str, Any]) -> list[str]:
    """An entry for every statement that gives a value."""
    return [_insert(said, said.value) for said in read_chunk(data["chunk"]) if said.value]


def teach(data: Mapping[str, Any]) -> list[str]:
    """The calls for one chunk, given the entries that are shown with it."""
    return [call for said in _last_word(read_chunk(data["chunk"])) for call in _calls(said, data["entries"])]


def _last_word(statements: Sequence[Said]) -> list[Said]:
    """One statement per slot: a correction in the same chunk takes the place of what it corrects."""
    slots: dict[tuple[str, str], Said] = {}
    for said in statements:
        key = said.entity, said.attribute.noun
        slots.pop(key, None)
        slots[key] = said
    return list(slots.values())


def _insert(said: Said, value: str) -> str:
    return write_insert(said.attribute.bank, note_of(said.entity, said.attribute.noun, value))


def _calls(said: Said, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [said.entity, said.attribute.noun]
    known = next((entry for entry in entries if entry["content"].split()[:2] == head), None)
    if said.value is None:
        return [write_delete(known["bank"], entry_name(known["content"]))] if known else []
    if known is None:
        return [_insert(said, said.value)]
    held = known["content"].split(" , ")[0].split(" ", 2)[2]
    if held == said.value:
        return []
    former = None if said.kind == "correct" else held
    note = note_of(said.entity, said.attribute.noun, said.value, former)
    return [write_update(known["bank"], entry_name(known["content"]), note)]
