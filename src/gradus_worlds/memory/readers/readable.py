"""Whether the strict reader could answer a question at all, so that nobody trains for answers that no memory can give."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from gradus_worlds.memory.readers.reading import read_strict
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.store.records import RefusedCall
from gradus_worlds.memory.text import content_words, spaced
from gradus_worlds.memory.worlds.records import Question

CHECKED = 1000  # questions of a file, at most


def readable(question: Question) -> bool:
    """Whether an entry of the question's own words and an answer is read as that answer."""
    asked = [word for word in spaced(question.text).split() if content_words(word) and re.search(r"[^\W\d_]", word)]
    return question.unknown or any(_reads(question, " ".join(asked), answer) for answer in question.answers)


def _reads(question: Question, asked: str, answer: str) -> bool:
    memory = Memory()
    try:
        memory.insert(next(iter(memory.schema.banks)), f"{asked} {answer}", timestamp=answer[:64])
    except RefusedCall:  # no entry is as long
        return False
    return read_strict(memory, question).correct


def warn_of_unreadable(questions: Sequence[Question], where: str) -> None:
    """Name the questions that no entry answers."""
    known = [question for question in questions if not question.unknown][:CHECKED]
    unread = [question for question in known if not readable(question)]
    if unread:
        warnings.warn(
            f"the strict reader, by which v2 pays, can answer {len(known) - len(unread)} of {len(known)} questions of {where}; the first that "
            f"it cannot is {unread[0].text[:80]!r} with the answer {unread[0].answers[0][:80]!r}. It wants a short answer whose words do not "
            "stand in the question, a date or a timestamp for when, and a number for how many; a language model reads more "
            "(memory:reader=remote:MODEL,jsonl:FILE with the grader v2-remote)",
            stacklevel=2,
        )
