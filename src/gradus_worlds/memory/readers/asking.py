"""A question of a person to a memory: the answer, and the entries that it was read from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gradus_worlds.memory.readers.reading import Chat, Note, RemoteReader, search_notes, shares_word
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.worlds.records import UNKNOWN, Question


@dataclass(frozen=True, kw_only=True)
class Answered:
    """``answer`` is ``unknown`` if the memory does not say. ``why``: how it was read. ``notes``: what the reader was shown."""

    question: str
    answer: str
    why: str
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answer(memory: Memory, question: str, chat: Chat | None = None) -> Answered:
    """Answer by ``chat``, a language model. Without one the answer is the entry that fits the question best."""
    if chat is not None:
        reading = RemoteReader(chat=chat)(memory, Question(text=question, answers=()))
        return Answered(question=question, answer=reading.prediction, why=reading.why, notes=reading.notes)
    found = [note for note in search_notes(memory, question) if shares_word(note, question)]
    if not found:
        return Answered(question=question, answer=UNKNOWN, why="no entry shares a word with the question", notes=())
    best = min(found, key=lambda note: note.id is None)  # the core, if nothing else fits
    return Answered(question=question, answer=best.text, why="the entry that fits best", notes=tuple(found))
