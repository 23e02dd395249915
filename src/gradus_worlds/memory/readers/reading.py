"""Frozen readers: they answer questions from the memory alone, so that only what was written can help.

``strict`` is a lower bound that a rule can judge where the values are known: few entries, few words, and no benefit of the doubt.
``generous`` is an upper bound on what any reader could find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradus_worlds.memory.readers.claims import claim_of
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import (
    content_words,
    count_words,
    exact_match,
    normalize,
    substring_match,
    token_f1,
)
from gradus_worlds.memory.worlds.records import NOTHING, UNKNOWN, Hop, Question, Slot

STRICT_ENTRIES, STRICT_WORDS, GENEROUS_ENTRIES = 4, 48, 20
BANKS, ENTRIES = 3, 5


@dataclass(frozen=True, kw_only=True)
class Note:
    """One text that a reader was shown: an entry, or the core with id None."""

    id: int | None
    text: str
    timestamp: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An answer with its judgement. ``f1`` is None for a question without a gold answer; ``why`` says why it is right or wrong."""

    prediction: str
    correct: bool
    f1: float | None
    why: str
    notes: tuple[Note, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the episode's outcome and the report."""
        return {
            "prediction": self.prediction,
            "correct": self.correct,
            "f1": self.f1,
            "why": self.why,
            "entries": [note.id for note in self.notes],
        }


Reader = Callable[[Memory, Question], Reading]


def judge(question: Question, prediction: str, why: str, notes: Sequence[Note]) -> Reading:
    """Compare a prediction with the gold answers."""
    f1 = None
    if question.unknown:
        right = normalize(prediction) == UNKNOWN
    else:
        right = any(_same(prediction, gold, question.wanted) for gold in question.answers)
        f1 = max(token_f1(prediction, gold) for gold in question.answers)
    return Reading(prediction=prediction, correct=right, f1=f1, why=why, notes=tuple(notes))


def _same(prediction: str, gold: str, wanted: str) -> bool:
    if wanted == "list":
        said = {normalize(part) for part in prediction.split(",")}
        return any(said) and said == {normalize(part) for part in gold.split(",")}
    return exact_match(prediction, gold)


def read_strict(memory: Memory, question: Question) -> Reading:
    """At most 4 entries and 48 words in all, with the core if it fits beside them; an answer counts only from an entry that names entity and
    attribute; two different values make it wrong; nothing makes it "unknown". Free text has a rule of its own."""
    if not question.hops:
        return _read_free_text(memory, question)
    shown: list[Note] = []
    why = "no entry names entity and attribute"
    for hop in question.hops:
        notes, prediction, why = _follow(memory, question, hop)
        shown = notes or shown
        if prediction != UNKNOWN:
            return judge(question, prediction, why, notes)
    return judge(question, NOTHING if question.wanted == "list" else UNKNOWN, why, shown)


def read_generous(memory: Memory, question: Question) -> Reading:
    """Says whether the gold answer stands anywhere in the top 20 entries (or the core); "unknown" is granted where it is right."""
    notes = _search_kindly(memory, question)
    if question.silence_answers:
        return judge(question, UNKNOWN if question.unknown else NOTHING, "a kind reader does not invent", notes)
    for gold in question.answers:
        parts = gold.split(",") if question.wanted == "list" else [gold]
        held = [note for note in notes if any(_says(note, part) for part in parts)]
        if all(any(_says(note, part) for note in held) for part in parts):
            return judge(question, gold, f"{gold} stands in what was retrieved", held)
    return judge(question, UNKNOWN, f"{question.answers[0]} is not in the top {GENEROUS_ENTRIES}", notes[:ENTRIES])


def _search_kindly(memory: Memory, question: Question) -> list[Note]:
    """The top 20 for the question, and for a question of two hops the top 20 for each way that the first hop may lead."""
    banks = len(memory.schema.banks)
    notes = search_notes(memory, question.text, banks=banks, entries=GENEROUS_ENTRIES)
    ways = [
        (value, hop.then)
        for hop in question.hops
        if hop.then is not None
        for value in hop.slot.values
        if any(substring_match(note.text, value) for note in notes)
    ]
    for value, then in ways:
        notes += search_notes(memory, then.query.format(value), banks=banks, entries=GENEROUS_ENTRIES)
    return list({note.id: note for note in notes}.values())


READERS: Mapping[str, Reader] = {"strict": read_strict, "generous": read_generous}


def _follow(memory: Memory, question: Question, hop: Hop) -> tuple[list[Note], str, str]:
    """Walk a hop and those behind it; returns (notes shown, prediction, why). The budget is shared between the hops."""
    length = 1 + (hop.then is not None)
    shown: list[Note] = []
    entity, current, step = hop.slot.entity, hop, 0
    while True:
        step += 1
        query = question.text if step == 1 and length == 1 else current.query.format(entity)
        notes = _within_budget(search_notes(memory, query), STRICT_ENTRIES // length, STRICT_WORDS // length)
        shown.extend(notes)
        slot = replace(current.slot, entity=entity)
        wanted = question.wanted if current.then is None else "value"
        prediction, why = _look_up(notes, slot, wanted, question.of)
        if current.then is None or prediction == UNKNOWN or "two values" in why:
            return shown, prediction, why
        entity, current = prediction, current.then


def _look_up(notes: Sequence[Note], slot: Slot, wanted: str, of: str | None) -> tuple[str, str]:
    """Returns (prediction, why)."""
    claims = [(note, claim) for note in notes if (claim := claim_of(note.text, slot)) is not None]
    if not claims:
        return UNKNOWN, f"no entry names {slot.entity} and {slot.cues[0]}"
    if wanted == "date":
        values = _distinct(note.timestamp for note, claim in claims if of in claim.now and note.timestamp)
    elif wanted == "former":
        values = _distinct(value for _, claim in claims for value in claim.former)
    else:
        values = _distinct(value for _, claim in claims for value in claim.now)
    if not values:
        return UNKNOWN, f"an entry names {slot.entity} and {slot.cues[0]} but gives no {wanted}"
    if wanted == "list":
        return ",".join(values), f"an entry lists {' and '.join(values)}"
    if len(values) > 1:
        return " and ".join(values), f"the entries give two values: {' and '.join(values)}"
    return values[0], f"one entry or more gives {values[0]}"


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def search_notes(memory: Memory, query: str, *, banks: int = BANKS, entries: int = ENTRIES) -> list[Note]:
    """Returns the core, if there is one, and the entries that the two-layer search finds."""
    core = [Note(id=None, text=memory.core)] if memory.core else []
    hits = memory.search(query, banks=banks, entries=entries)
    return core + [Note(id=hit.entry.id, text=hit.entry.content, timestamp=hit.entry.timestamp) for hit in hits]


def _within_budget(notes: Sequence[Note], entries: int, words: int) -> list[Note]:
    """The first entries that fit together; reading stops at the first that does not. The core is read if it fits beside them.

    A core may be longer than all that is read, so it takes no entry's place.
    """
    kept: list[Note] = []
    left = words
    for note in [note for note in notes if note.id is not None][:entries]:
        size = count_words(note.text)
        if size > left:
            break
        kept.append(note)
        left -= size
    return [note for note in notes if note.id is None and count_words(note.text) <= left] + kept


def _says(note: Note, answer: str) -> bool:
    return any(substring_match(text, answer) for text in (note.text, note.timestamp or ""))


def _read_free_text(memory: Memory, question: Question) -> Reading:
    """Says whether the gold answer stands in an entry that shares a content word with the question. Of a question without an answer, whether
    there is no such entry. Nobody knows the values of free text, so this is an upper bound for what these entries say."""
    notes = _within_budget(search_notes(memory, question.text), STRICT_ENTRIES, STRICT_WORDS)
    near = [note for note in notes if shares_word(note, question.text)]
    for gold in question.answers:
        if any(_says(note, gold) for note in near):
            return judge(question, gold, f"{gold} stands in an entry that shares a word with the question", near)
    if near and question.unknown:
        return judge(question, near[0].text, "an entry shares a word with the question", near)
    return judge(question, UNKNOWN, "no entry that shares a word with the question holds the answer", near)


def shares_word(note: Note, question: str) -> bool:
    """Says whether a note has a content word of the question. The core may have none."""
    return bool(content_words(note.text) & content_words(question))
