"""A question of a person to a memory: the answer, and the entries that it was read from."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from gradus_worlds.memory.cutting import sentences, speaker_of
from gradus_worlds.memory.readers.free_text import WORD, is_name, texts_with
from gradus_worlds.memory.readers.reading import Chat, Note, RemoteReader, read_text
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import composed, content_words, plain_words
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES
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


def read_plainly(memory: Memory, question: str, chat: Chat | None = None) -> Answered:
    """Answer by ``chat``, a language model, or by the strict rule: an entry with the question's names and another of its words.

    Of an entry of several sentences those are read that name both, if any does. For the rule a question also has the nouns that its
    words stand for in the synthetic worlds: who *lives* somewhere has a *city*. A person writes names as they come: see :func:`_with_names`.
    """
    if chat is not None:
        reading = RemoteReader(chat=chat)(memory, Question(text=question, answers=()))
        return Answered(question=question, answer=reading.prediction, why=reading.why, notes=reading.notes)
    asked, unheard = _with_names(memory, question)
    if unheard:
        why = f"no entry holds {' or '.join(unheard)}, and the question has no other name"
        return Answered(question=question, answer=UNKNOWN, why=why, notes=())
    said = set(plain_words(question))
    nouns = [noun for noun, each in ATTRIBUTES.items() if noun not in said and said & set(each.cues)]
    reading = read_text(memory, Question(text=" ".join([asked, *nouns]), answers=()), sentences=_sentences)
    answer = reading.prediction.rstrip(".!?;,")  # a sentence's end, not the value's
    return Answered(question=question, answer=answer, why=reading.why, notes=reading.notes)


def _sentences(entry: str) -> list[str]:
    """The sentences of an entry, each with who says it."""
    speaker, said = speaker_of(entry)
    return [speaker + each for each in sentences(said)]


def _with_names(memory: Memory, question: str) -> tuple[str, list[str]]:
    """The question with capitals where the rule is to see names, and words that may name somebody of whom nothing is kept.

    A capital makes a name, at the first word only if the memory writes it with one. A question without any has those that the memory
    writes with a capital. If there are none, each word that no entry holds may be one.
    """
    question = composed(question)
    if question.lower() == question.upper():  # a script without capitals
        return question, []
    words = [each for each in WORD.finditer(question) if content_words(each[0])]
    began = WORD.search(question)
    first = began.start() if began else 0
    names = {
        each.start() for each in words if each[0][0].isupper() and (each.start() != first or is_name(memory, each[0]))
    }
    names = names or {each.start() for each in words if is_name(memory, each[0])}
    unheard = [] if names else [each[0] for each in words if not texts_with(memory, each[0]) and not _is_cue(each[0])]

    def written(word: re.Match[str]) -> str:
        begins = word[0][0].upper() if word.start() in names else word[0][0].lower()
        return begins + word[0][1:] if word.start() in names or word.start() == first else word[0]

    return WORD.sub(written, question), unheard


def _is_cue(word: str) -> bool:
    """Whether a word asks for something that people of the synthetic worlds have."""
    return any(set(plain_words(word)) <= {noun, *each.cues} for noun, each in ATTRIBUTES.items())
