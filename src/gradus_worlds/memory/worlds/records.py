"""The records of a world: a stream of dialogue in chunks, and the questions that its memory must answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from gradus.core import Condition, Task, Vocabulary, frozen_record

TEST_BASE = 1_000_000  # seeds of test worlds begin here, so that no training index can meet one
UNKNOWN = "unknown"


Data = Mapping[str, Any]
Respond = Callable[[Data], list[str]]
"""From an observation's data to calls."""


@frozen_record
class Slot:
    """The subject of a fact or a question, in the words by which an entry can name it.

    ``entity``: a name. ``cues``: any of these words (lower case) names the attribute. ``values``: all values of that attribute
    that are spoken of in the world, true or false, anybody's.
    """

    entity: str
    cues: tuple[str, ...]
    values: tuple[str, ...]
    directed: bool = False  # a relation between people: the entity must be named before the value


@frozen_record
class Hop:
    """A way to answer: look up ``slot``; the value is the entity of the next look-up, ``then``, if there is one.

    ``query`` is what the memory is searched with, ``{}`` stands for the entity.
    """

    slot: Slot
    query: str
    then: Hop | None = None


@frozen_record
class Fact:
    """A fact that a chunk gives a memory to keep; gold, never observed. ``value`` None: what the slot held is taken back.

    In worlds without slots ``value`` is a text that a good entry would hold.
    """

    value: str | None
    slot: Slot | None = None


@frozen_record
class Evidence:
    """The place where an answer was said: the chunk's index and the words themselves."""

    chunk: int
    text: str


@frozen_record
class Chunk:
    """One stretch of dialogue, read once. ``facts`` is gold."""

    text: str
    timestamp: str | None = None
    facts: tuple[Fact, ...] = ()


@frozen_record
class Question:
    """``answers``: any of them is right; none means that the answer is unknown. ``kind``: for tables (current, former, ...).

    ``aspect``: value, former or date, what a reader looks for in the slot. ``hops``: ways to answer it, first that
    finds something; empty for free text.
    """

    text: str
    answers: tuple[str, ...]
    kind: str = "question"
    aspect: str = "value"
    hops: tuple[Hop, ...] = ()
    of: str | None = None  # the value a date or a former value is asked of
    evidence: tuple[Evidence, ...] = ()

    @property
    def unknown(self) -> bool:
        return not self.answers

    def to_json(self) -> dict[str, Any]:
        """For tables and reports: text, kind, gold answers, evidence."""
        return {
            "question": self.text,
            "kind": self.kind,
            "gold": list(self.answers) or [UNKNOWN],
            "unknown": self.unknown,
            "evidence": [dict(vars(item)) for item in self.evidence],
        }


@frozen_record
class World:
    """A stream and its questions. ``first_id``: the id of the first entry, so that ids are copied and not learnt by heart.

    ``begin``: the first chunk that is read.
    """

    name: str
    chunks: Sequence[Chunk]
    questions: Sequence[Question]
    first_id: int = 1
    begin: int = 0


@frozen_record
class Source:
    """The origin of worlds.

    ``world(seed, **options)`` makes one; ``train(i)`` is the i-th training world as (seed, options). ``responses``: policies of
    its own, name -> function from an observation's data to calls; ``teacher`` among them warm-starts a model. ``recipe``: the file in
    ``gradus.recipes`` that a run of it begins with. ``content``: what a task is, if several seeds may be one world.
    """

    name: str
    summary: str
    world: Callable[..., World]
    train: Callable[[int], tuple[int, Mapping[str, Any]]]
    conditions: Mapping[str, Condition]
    max_chunks: int
    vocabulary: Callable[[], Vocabulary]
    responses: Mapping[str, Respond] = field(default_factory=dict[str, Respond])
    recipe: str = "memory.toml"
    content: Callable[[Task], str] | None = None
