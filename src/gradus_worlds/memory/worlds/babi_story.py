"""The small language of bAbI's moving people and things: what sentences mean, what questions ask, and a teacher that tracks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradus_worlds.memory.tools.writing import entry_name, write_insert, write_update
from gradus_worlds.memory.worlds.records import Evidence, Fact, Hop, Question, Slot

BANK = "spatiotemporal_context"
_MOVE = re.compile(r"(\w+) (?:went back|went|travelled|journeyed|moved) to the (\w+)\.?")
_TAKE = re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)(?: there)?\.?")
_DROP = re.compile(r"(\w+) (?:dropped|discarded|left|put down) the (\w+)(?: there)?\.?")
_PLACE_CUES = ("location", "went", "travelled", "journeyed", "moved")
_HOLD_CUES = ("holder", "got", "grabbed", "took", "picked")


def read_sentence(sentence: str) -> tuple[str, str, str] | None:
    """(verb, person, place or thing) of a sentence."""
    for verb, pattern in (("move", _MOVE), ("take", _TAKE), ("drop", _DROP)):
        match = pattern.fullmatch(sentence.strip())
        if match:
            return verb, match[1], match[2]
    return None


def _all(told: str, verbs: Sequence[str], which: int) -> tuple[str, ...]:
    read = [read_sentence(line) for line in told.splitlines()]
    return tuple(dict.fromkeys(sentence[which] for sentence in read if sentence is not None and sentence[0] in verbs))


def _place(entity: str, told: str) -> Slot:
    return Slot(entity=entity, cues=_PLACE_CUES, values=_all(told, ("move",), 2))


def _holder(entity: str, told: str) -> Slot:
    return Slot(entity=entity, cues=_HOLD_CUES, values=_all(told, ("take", "drop"), 1))


def _held(entity: str, told: str) -> Slot:
    return Slot(entity=entity, cues=_HOLD_CUES, values=_all(told, ("take", "drop"), 2))


def question(text: str, answer: str, told: str, *, kind: str, after: int, evidence: tuple[Evidence, ...]) -> Question:
    """A bAbI question with the ways to answer it. ``told`` is the whole story: its words are the possible values."""
    carried = re.fullmatch(r"What is (\w+) carrying\?", text)
    former = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", text)
    where = re.fullmatch(r"Where is (?:the )?(\w+)\?", text)
    hops: tuple[Hop, ...] = ()
    wanted, of = "value", None
    if carried:
        hops = (Hop(slot=_held(carried[1], told), query="{} holder"),)
        wanted = "list"
    elif former:
        hops = (Hop(slot=_place(former[1], told), query="{} location"),)
        wanted, of = "former", former[2]
    elif where:
        then = Hop(slot=_place("", told), query="{} location")
        hops = (
            Hop(slot=_place(where[1], told), query="{} location"),
            Hop(slot=_holder(where[1], told), query="{} holder", then=then),
        )
    return Question(
        text=text, answers=(answer,), kind=kind, wanted=wanted, hops=hops, of=of, evidence=evidence, after=after
    )


def sentence_facts(chunks: Sequence[Sequence[str]]) -> list[tuple[Fact, ...]]:
    """Returns what each chunk asks of a memory: the last place of everyone who moved, the holder of what was taken, the place of what
    was dropped if it is known."""
    told = "\n".join(line for chunk in chunks for line in chunk)
    places: dict[str, str] = {}
    facts: list[tuple[Fact, ...]] = []
    for chunk in chunks:
        slots: dict[str, Fact] = {}
        for sentence in chunk:
            read = read_sentence(sentence)
            if read is None:
                continue
            verb, person, what = read
            if verb == "move":
                kind = "update" if person in places else "insert"
                places[person] = what
                slots[person] = Fact(kind=kind, slot=_place(person, told), value=what)
            elif verb == "take":
                slots[what] = Fact(kind="insert", slot=_holder(what, told), value=person)
            elif person in places:
                slots[what] = Fact(kind="insert", slot=_place(what, told), value=places[person])
        facts.append(tuple(slots.values()))
    return facts


def teach_story(data: Mapping[str, Any]) -> list[str]:
    """Keep one entry for each person and thing: ``Mary location kitchen``, ``milk holder Mary``."""
    shown = {entry["content"].split()[0]: entry for entry in data["entries"]}
    notes = {name: entry["content"] for name, entry in shown.items()}
    changed: dict[str, str] = {}
    for sentence in data["chunk"].splitlines():
        read = read_sentence(sentence)
        if read is None:
            continue
        verb, person, what = read
        if verb == "drop":
            place = re.fullmatch(rf"{person} location (\w+)", notes.get(person, ""))
            name, note = what, f"{what} location {place[1] if place else 'unknown'}"
        else:
            name, note = (person, f"{person} location {what}") if verb == "move" else (what, f"{what} holder {person}")
        notes[name] = changed[name] = note
    calls: list[str] = []
    for name, note in changed.items():
        if name not in shown:
            calls.append(write_insert(BANK, note))
        elif shown[name]["content"] != note:
            calls.append(write_update(shown[name]["bank"], entry_name(shown[name]["content"]), note))
    return calls


def append_facts(data: Mapping[str, Any]) -> list[str]:
    """The same notes, never changed: an entry for each sentence that moves somebody or something."""
    calls: list[str] = []
    for sentence in data["chunk"].splitlines():
        read = read_sentence(sentence)
        if read is not None and read[0] != "drop":
            verb, person, what = read
            calls.append(
                write_insert(BANK, f"{person} location {what}" if verb == "move" else f"{what} holder {person}")
            )
    return calls
