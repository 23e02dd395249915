"""The records of a world: a stream of dialogue in chunks, and the questions that its memory must answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from gradus.core import Condition, Task, frozen_record

TEST_BASE = 1_000_000  # seeds of test worlds begin here, so that no training index can meet one
UNKNOWN = "unknown"

Data = Mapping[str, Any]
Respond = Callable[[Data], list[str]]
"""From an observation's data to calls."""


@frozen_record
class Slot:
    """The subject of a fact or a question, in the words by which an entry can name it."""

    # A name.
    entity: str
    # Any of these words (lower case) names the attribute.
    cues: tuple[str, ...]
    # All values of the attribute that are spoken of in the world, true or false, anybody's.
    values: tuple[str, ...]
    # A relation between people: the entity must be named before the value.
    directed: bool = False


@frozen_record
class Hop:
    """A way to answer: a look-up of a slot, and of another one behind it."""

    slot: Slot
    # What the memory is searched with; ``{}`` stands for the entity.
    query: str
    # The next look-up, whose entity is the value of this one.
    then: Hop | None = None


@frozen_record
class Fact:
    """A fact that a chunk gives a memory to keep; gold, never observed."""

    # None: what the slot held is taken back. Without a slot: a text that a good entry would hold.
    value: str | None
    slot: Slot | None = None


@frozen_record
class Evidence:
    """The place where an answer was said: the chunk's index and the words themselves."""

    chunk: int
    text: str


@frozen_record
class Chunk:
    """One stretch of dialogue, read once."""

    text: str
    timestamp: str | None = None
    # Gold: no policy sees it.
    facts: tuple[Fact, ...] = ()


@frozen_record
class Question:
    """A question on a world, with what its answer is judged by."""

    text: str
    # Any of them is right; none means that the answer is unknown.
    answers: tuple[str, ...]
    # For tables: current, former, ...
    kind: str = "question"
    # What a reader looks for in the slot: value, former or date.
    aspect: str = "value"
    # Ways to answer it, of which the first that finds something counts; empty for free text.
    hops: tuple[Hop, ...] = ()
    # The value that a date or a former value is asked of.
    of: str | None = None
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
    """A stream and its questions."""

    name: str
    chunks: Sequence[Chunk]
    questions: Sequence[Question]
    # The id of the first entry. It differs by world, so that ids are copied and not learnt by heart.
    first_id: int = 1
    # The first chunk that is read.
    begin: int = 0


@frozen_record
class Source:
    """The origin of worlds."""

    name: str
    summary: str
    # Makes a world of a seed and options.
    world: Callable[..., World]
    # Index -> a training world, as its seed and options.
    train: Callable[[int], tuple[int, Mapping[str, Any]]]
    conditions: Mapping[str, Condition]
    max_chunks: int
    # Policies of its own by name; ``teacher`` among them warm-starts a model.
    responses: Mapping[str, Respond] = field(default_factory=dict[str, Respond])
    # The file in ``gradus.recipes`` that a run of it begins with.
    recipe: str = "memory.toml"
    # What a task is, if several seeds may be one world.
    content: Callable[[Task], str] | None = None
