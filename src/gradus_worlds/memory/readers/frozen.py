"""The reader that answers in its own words: the entry that fits best, or a frozen language model.

One of the two answers `gradus memory ask` and stands as ``reader`` beside ``strict`` in every evaluation. A language model is also what
the reward counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradus.core import frozen_record
from gradus_worlds.memory.readers.reading import Notes, Reading, ShownText, judge, judge_text, search_notes, shown_entry
from gradus_worlds.memory.store.index import ENTRY_B, bm25
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import index_tokens, normalize, token_counts
from gradus_worlds.memory.worlds.records import UNKNOWN, Question

MARGIN = 0.25  # of the question's weight: the names of speakers do not reach it, one rare word of three does
REMOTE = "remote:"
_SHOWN = 10  # entries, to a language model
_PROMPT = (
    "Answer the question from the memory alone, in as few words as possible, without a sentence around it. "
    f"If the memory does not say, answer: {UNKNOWN}"
)
_NO_ANSWER = (UNKNOWN, "i do not know", "i don t know")


@frozen_record
class Answered:
    """What a reader answered."""

    # ``unknown`` if the memory does not say.
    answer: str
    # How it was read.
    why: str
    # What the reader was shown.
    notes: Notes = ()
    # Why there is no answer.
    error: str | None = None
    # A second answer to the same question was the same; None if it was asked once.
    agrees: bool | None = None

    def reading(self, question: Question) -> Reading:
        """The answer as judged by the gold answers."""
        if normalize(self.answer).startswith(_NO_ANSWER):
            return judge(question, UNKNOWN, self.why, self.notes)
        return judge_text(question, self.answer, self.why, self.notes)


def best_entries(memory: Memory, questions: Sequence[str]) -> list[Answered]:
    """Answers each question with the entry that has most of the weight of its words; with nothing below a margin."""
    return [_best_entry(memory, question) for question in questions]


def _best_entry(memory: Memory, question: str) -> Answered:
    texts = [shown_entry(entry) for entry in memory.entries.values()]
    if memory.core:
        texts.append(ShownText(id=None, text=memory.core))
    # Each word counts once: a long entry that repeats one is no better an answer.
    documents = {place: dict.fromkeys(token_counts(note.text), 1) for place, note in enumerate(texts)}
    # A last text with all words of the question has all of its weight.
    documents[len(texts)] = dict.fromkeys(index_tokens(question), 1)
    scores = bm25(documents, index_tokens(question), ENTRY_B)
    least = MARGIN * scores.pop(len(texts), 0.0)
    # The newer one first of two that fit as well, and the core behind all entries.
    order = sorted(scores, key=lambda place: (-scores[place], texts[place].id is None, -place))
    notes = [texts[place] for place in order[:5] if scores[place] >= least]
    if not notes:
        return Answered(answer=UNKNOWN, why="no entry has enough of the question's words")
    return Answered(answer=notes[0].text, why="the entry that fits best", notes=notes)


class ModelReader:
    """A frozen language model that sees the question and what the two-layer search brings back."""

    def __init__(self, name: str) -> None:
        from gradus.commands.guests import frozen_model

        self.model = frozen_model(name, system_prompt=_PROMPT)

    def __call__(self, memory: Memory, questions: Sequence[str]) -> list[Answered]:
        """Answer each question from what the search finds for it."""
        shown = [search_notes(memory, question, entries=_SHOWN) for question in questions]
        prompts = list(map(_prompt, questions, shown))
        answers: list[Answered] = []
        # All at once, so that the model reads them in batches.
        for notes, answer in zip(shown, self.model.ask(prompts), strict=True):
            why = answer.error or f"{self.model.name} read {len(notes)} texts"
            text = answer.text or UNKNOWN
            answers.append(Answered(answer=text, why=why, notes=notes, error=answer.error, agrees=answer.agrees))
        return answers


def _prompt(question: str, notes: Notes) -> str:
    lines = [f"- [{note.timestamp or 'no date'}] {note.text}" for note in notes]
    listed = "\n".join(lines or ["- (nothing)"])
    return f"Memory:\n{listed}\n\nQuestion: {question}"
