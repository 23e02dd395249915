"""A question of a person to a memory: the answer, and the entries that it was read from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gradus.environments.memory.readers.reading import Chat, Note, RemoteReader, read_strict
from gradus.environments.memory.store.memory import Memory
from gradus.environments.memory.text import plain_words
from gradus.environments.memory.worlds.phrases import ATTRIBUTES
from gradus.environments.memory.worlds.records import Question


@dataclass(frozen=True, kw_only=True)
class Answered:
    """``answer`` is ``unknown`` if the memory does not say. ``why``: how it was read. ``notes``: what the reader was shown."""

    question: str
    answer: str
    why: str
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_plainly(memory: Memory, question: str, chat: Chat | None = None) -> Answered:
    """Answer by ``chat``, a language model, or by the strict rule: an entry with the question's names and another of its words.

    For the rule a question also has the nouns that its words stand for in the synthetic worlds: who *lives* somewhere has a *city*.
    """
    if chat is not None:
        reading = RemoteReader(chat=chat)(memory, Question(text=question, answers=()))
        return Answered(question=question, answer=reading.prediction, why=reading.why, notes=reading.notes)
    said = set(plain_words(question))
    nouns = [noun for noun, each in ATTRIBUTES.items() if noun not in said and said & set(each.cues)]
    reading = read_strict(memory, Question(text=" ".join([question, *nouns]), answers=()))
    return Answered(question=question, answer=reading.prediction, why=reading.why, notes=reading.notes)
