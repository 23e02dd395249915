"""The small language of bAbI's moving people and things: what sentences mean, what questions ask, and a teacher that tracks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradus_worlds.memory.tools.writing import entry_name, write_insert, write_update
from gradus_worlds.memory.worlds.records import Evidence, Fact, Hop, Question, Slot

BANK = "spatiotemporal_context"
_MOVE = re.compile(r"(\w+) (?:went back|went|travelled|journeyed|moved) to the (\w+)\.?")
_TAKE = re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)(?: there)?\.?")
_DROP = re.compile(r"(\w+) (?:dropped|discarded|left|put down) the (\w+)(?: there)?\.?")
_LOCATED = re.compile(r"(\w+) location (\w+)")


def read_sentence(sentence: str) -> tuple[str, str, str] | None:
    """(verb, person, place or thing) of a sentence."""
    for verb, pattern in (("move", _MOVE), ("take", _TAKE), ("drop", _DROP)):
        match = pattern.fullmatch(sentence.strip())
        if match:
            return verb, match[1], match[2]
    return None


# What a slot is about: the words that name it, and which part of which sentences are its values.
_SLOTS = {
    "location": (("location", "went", "travelled", "journeyed", "moved"), ("move",), 2),
    "holder": (("holder", "got", "grabbed", "took", "picked"), ("take", "drop"), 1),
    "held": (("holder", "got", "grabbed", "took", "picked"), ("take", "drop"), 2),
}


def _slot(kind: str, entity: str, told: str) -> Slot:
    cues, verbs, part = _SLOTS[kind]
    read = [read_sentence(line) for line in told.splitlines()]
    values = dict.fromkeys(sentence[part] for sentence in read if sentence is not None and sentence[0] in verbs)
    return Slot(entity=entity, cues=cues, values=tuple(values))


def question(text: str, answer: str, told: str, *, kind: str, after: int, evidence: tuple[Evidence, ...]) -> Question:
    """A bAbI question with the ways to answer it. ``told`` is the whole story: its words are the possible values."""
    carried = re.fullmatch(r"What is (\w+) carrying\?", text)
    former = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", text)
    where = re.fullmatch(r"Where is (?:the )?(\w+)\?", text)
    hops: tuple[Hop, ...] = ()
    wanted, of = "value", None
    if carried:
        hops = (Hop(slot=_slot("held", carried[1], told), query="{} holder"),)
        wanted = "list"
    elif former:
        hops = (Hop(slot=_slot("location", former[1], told), query="{} location"),)
        wanted, of = "former", former[2]
    elif where:
        then = Hop(slot=_slot("location", "", told), query="{} location")
        hops = (
            Hop(slot=_slot("location", where[1], told), query="{} location"),
            Hop(slot=_slot("holder", where[1], told), query="{} holder", then=then),
        )
    return Question(
        text=text, answers=(answer,), kind=kind, wanted=wanted, hops=hops, of=of, evidence=evidence, after=after
    )


def _track(sentences: Iterable[str], places: dict[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Returns what each sentence says: a name, its attribute and the value, None if it is not known.

    ``places``: where people are, which is kept up to date.
    """
    for verb, person, what in filter(None, map(read_sentence, sentences)):
        if verb == "move":
            places[person] = what
            yield person, "location", what
        elif verb == "take":
            yield what, "holder", person
        else:
            yield what, "location", places.get(person)


def sentence_facts(chunks: Sequence[Sequence[str]]) -> list[tuple[Fact, ...]]:
    """Returns what each chunk asks of a memory: the last place of everyone who moved, the holder of what was taken, the place of what
    was dropped if it is known."""
    told = "\n".join(line for chunk in chunks for line in chunk)
    places: dict[str, str] = {}
    facts: list[tuple[Fact, ...]] = []
    for chunk in chunks:
        known = {
            name: Fact(value=value, slot=_slot(attribute, name, told))
            for name, attribute, value in _track(chunk, places)
            if value is not None
        }
        facts.append(tuple(known.values()))
    return facts


def teach_story(data: Mapping[str, Any]) -> list[str]:
    """Keep one entry for each person and thing: ``Mary location kitchen``, ``milk holder Mary``."""
    shown = {entry["content"].split()[0]: entry for entry in data["entries"]}
    located = filter(None, (_LOCATED.fullmatch(entry["content"]) for entry in shown.values()))
    places = {match[1]: match[2] for match in located}
    notes = {
        name: f"{name} {attribute} {value or 'unknown'}"
        for name, attribute, value in _track(data["chunk"].splitlines(), places)
    }
    calls: list[str] = []
    for name, note in notes.items():
        if name not in shown:
            calls.append(write_insert(BANK, note))
        elif shown[name]["content"] != note:
            calls.append(write_update(shown[name]["bank"], entry_name(shown[name]["content"]), note))
    return calls


def append_facts(data: Mapping[str, Any]) -> list[str]:
    """The same notes, never changed: an entry for each sentence that moves somebody or something."""
    read = filter(None, map(read_sentence, data["chunk"].splitlines()))
    return [
        write_insert(BANK, f"{person} location {what}" if verb == "move" else f"{what} holder {person}")
        for verb, person, what in read
        if verb != "drop"
    ]
