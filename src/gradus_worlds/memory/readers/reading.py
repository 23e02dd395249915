"""Readers by rule: they answer questions from the memory alone, so that only what was written can help.

``strict`` is a lower bound that a rule can judge where the values are known: few entries, few words, and no benefit of the doubt.
``generous`` is an upper bound on what any reader could find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.core import frozen_record
from gradus_worlds.memory.readers.claims import claim_of, values_of
from gradus_worlds.memory.store.memory import Entry, Memory
from gradus_worlds.memory.text import (
    content_words,
    count_words,
    exact_match,
    normalize,
    substring_match,
    token_f1,
)
from gradus_worlds.memory.worlds.records import UNKNOWN, Hop, Question, Slot

# What a reader sees at most; of two hops each has half.
STRICT_ENTRIES = 4
STRICT_WORDS = 48
GENEROUS_ENTRIES = 20
# What the two-layer search brings back.
BANKS = 3
ENTRIES = 5


@frozen_record
class ShownText:
    """One text that a reader was shown."""

    # The entry's; None for the core.
    id: int | None
    text: str
    timestamp: str | None = None

    def says(self, answer: str) -> bool:
        """Says whether an answer stands in the text or in its date."""
        return substring_match(self.text, answer) or substring_match(self.timestamp or "", answer)

    def shares_word(self, question: str) -> bool:
        """Says whether it has a content word of the question. The core may have none."""
        return bool(content_words(self.text) & content_words(question))


@frozen_record
class Reading:
    """An answer with its judgement."""

    prediction: str
    correct: bool
    # None for a question without a gold answer.
    f1: float | None
    # Why it is right or wrong.
    why: str
    notes: Sequence[ShownText] = ()

    def to_json(self) -> dict[str, Any]:
        """For the episode's outcome and the report."""
        return {
            "prediction": self.prediction,
            "correct": self.correct,
            "f1": self.f1,
            "why": self.why,
            "entries": [note.id for note in self.notes],
        }


Notes = Sequence[ShownText]


def judge(question: Question, prediction: str, why: str, notes: Notes) -> Reading:
    """Compare a prediction with the gold answers."""
    f1 = None
    if question.unknown:
        right = normalize(prediction) == UNKNOWN
    else:
        right = any(exact_match(prediction, gold) for gold in question.answers)
        f1 = _best_f1(question, prediction)
    return Reading(prediction=prediction, correct=right, f1=f1, why=why, notes=notes)


def judge_text(question: Question, answer: str, why: str, notes: Notes) -> Reading:
    """Compare an answer in free words with the gold answers: one of them stands in it, and no other value of the slot that is asked for."""
    right = any(substring_match(answer, gold) for gold in question.answers)
    if question.hops and question.aspect != "date":
        last = question.hops[-1].then or question.hops[-1]
        named = values_of(answer, last.slot)
        values = set(named.now)
        if question.aspect == "former":
            # The question itself says the value that holds now, and an answer may repeat it.
            values = values.union(named.former).difference({question.of})
        right = bool(values) and values <= set(question.answers)
    f1 = None if question.unknown else _best_f1(question, answer)
    return Reading(prediction=answer, correct=right, f1=f1, why=why, notes=notes)


def _best_f1(question: Question, answer: str) -> float:
    return max(token_f1(answer, gold) for gold in question.answers)


def read_strict(memory: Memory, question: Question) -> Reading:
    """At most 4 entries and 48 words in all, with the core if it fits beside them; an answer counts only from an entry that names entity and
    attribute; two different values make it wrong; nothing makes it "unknown". Free text has a rule of its own."""
    if not question.hops:
        return _read_free_text(memory, question)
    texts: Notes = ()
    why = ""
    for hop in question.hops:
        notes, values, why = _follow(memory, question, hop)
        texts = notes or texts
        if values:
            return judge(question, " and ".join(values), why, notes)
    return judge(question, UNKNOWN, why, texts)


def read_generous(memory: Memory, question: Question) -> Reading:
    """Says whether the gold answer stands anywhere in the top 20 entries (or the core); "unknown" is granted where it is right."""
    notes = _search_kindly(memory, question)
    if question.unknown:
        return judge(question, UNKNOWN, "a kind reader does not invent", notes)
    for gold in question.answers:
        holders = [note for note in notes if note.says(gold)]
        if holders:
            return judge(question, gold, f"{gold} stands in what was retrieved", holders)
    return judge(question, UNKNOWN, f"{question.answers[0]} is not in the top {GENEROUS_ENTRIES}", notes[:ENTRIES])


def _search_kindly(memory: Memory, question: Question) -> list[ShownText]:
    """The top 20 for the question, and for a question of two hops the top 20 for each value that the first hop may have."""
    banks = len(memory.schema.banks)
    first = search_notes(memory, question.text, banks=banks, entries=GENEROUS_ENTRIES)
    notes = list(first)
    for hop in question.hops:
        if hop.then is None:
            continue
        for value in hop.slot.values:
            if any(substring_match(note.text, value) for note in first):
                notes += search_notes(memory, hop.then.query.format(value), banks=banks, entries=GENEROUS_ENTRIES)
    return list({note.id: note for note in notes}.values())


RULES: Mapping[str, Callable[[Memory, Question], Reading]] = {"strict": read_strict, "generous": read_generous}


def _follow(memory: Memory, question: Question, hop: Hop) -> tuple[Notes, list[str], str]:
    """Look up a hop, and the one behind it with the value of the first; returns (notes shown, values, why).

    Two hops share the limits.
    """
    if hop.then is None:
        notes = _read(memory, question.text)
        return notes, *_look_up(notes, hop.slot, question)
    notes = _read(memory, hop.query.format(hop.slot.entity), hops=2)
    values, why = _look_up(notes, hop.slot, replace(question, aspect="value"))
    # With no value or two, there is nobody to look up.
    if len(values) != 1:
        return notes, values, why
    (entity,) = values
    second = _read(memory, hop.then.query.format(entity), hops=2)
    return [*notes, *second], *_look_up(second, replace(hop.then.slot, entity=entity), question)


def _look_up(notes: Notes, slot: Slot, question: Question) -> tuple[list[str], str]:
    """Returns (values, why)."""
    subject = f"{slot.entity} and {slot.cues[0]}"
    is_named = False
    values: dict[str, None] = {}  # each once, in the order of the notes
    for note in notes:
        claim = claim_of(note.text, slot)
        if claim is None:
            continue
        is_named = True
        if question.aspect == "former":
            values |= dict.fromkeys(claim.former)
        elif question.aspect == "value":
            values |= dict.fromkeys(claim.now)
        elif note.timestamp and question.of in claim.now:
            values[note.timestamp] = None
    if not is_named:
        why = f"no entry names {subject}"
    elif not values:
        why = f"an entry names {subject} but gives no {question.aspect}"
    elif len(values) > 1:
        why = f"the entries give two values: {' and '.join(values)}"
    else:
        why = f"one entry or more gives {next(iter(values))}"
    return list(values), why


def search_notes(memory: Memory, query: str, *, banks: int = BANKS, entries: int = ENTRIES) -> list[ShownText]:
    """Returns the core, if there is one, and the entries that the two-layer search finds."""
    core = [ShownText(id=None, text=memory.core)] if memory.core else []
    hits = memory.search(query, banks=banks, entries=entries)
    return core + [shown_entry(hit.entry) for hit in hits]


def shown_entry(entry: Entry) -> ShownText:
    """An entry as a reader sees it."""
    return ShownText(id=entry.id, text=entry.content, timestamp=entry.timestamp)


def _read(memory: Memory, query: str, hops: int = 1) -> list[ShownText]:
    """The first entries that fit together; reading stops at the first that does not. The core is read if it fits beside them.

    A core may be longer than all that is read, so it takes no entry's place.
    """
    notes = search_notes(memory, query)
    # The core must not crowd out entries, whatever its length.
    core = [note for note in notes if note.id is None]
    entries = [note for note in notes if note.id is not None]
    room = STRICT_WORDS // hops
    texts: list[ShownText] = []
    for note in entries[: STRICT_ENTRIES // hops]:
        words = count_words(note.text)
        if words > room:
            break
        room -= words
        texts.append(note)
    return [note for note in core if count_words(note.text) <= room] + texts


def _read_free_text(memory: Memory, question: Question) -> Reading:
    """Says whether the gold answer stands in an entry that shares a content word with the question. Of a question without an answer, whether
    there is no such entry. Nobody knows the values of free text, so this is an upper bound for what these entries say."""
    near = [note for note in _read(memory, question.text) if note.shares_word(question.text)]
    for gold in question.answers:
        if any(note.says(gold) for note in near):
            return judge(question, gold, f"{gold} stands in an entry that shares a word with the question", near)
    if near and question.unknown:
        return judge(question, near[0].text, "an entry shares a word with the question", near)
    return judge(question, UNKNOWN, "no entry that shares a word with the question holds the answer", near)
