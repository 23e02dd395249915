"""The text layer: a chunk of dialogue in, tool calls out, questions at the end.

Every observation restarts the prompt: a policy sees the chunk, the core and the entries related to the chunk, and nothing of
what it read before. What it did not write down is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gradus.core import EnvironmentFault, Observation, Span
from gradus_worlds.memory.graders import balanced_accuracy
from gradus_worlds.memory.readers.claims import facts_right, grounded
from gradus_worlds.memory.readers.frozen import Answered, ModelReader, best_entries
from gradus_worlds.memory.readers.reading import RULES, read_strict
from gradus_worlds.memory.store.memory import NINE_BANKS, Entry, Memory, Schema
from gradus_worlds.memory.text import content_words, count_words
from gradus_worlds.memory.tools.running import CallResult, run_calls
from gradus_worlds.memory.tools.writing import refusals, system_prompt_of
from gradus_worlds.memory.worlds.records import Evidence, Question, World

Json = Mapping[str, Any]

SHOWN = 6  # related entries of an observation, at most
STANDING_CHUNKS = 32  # in longer worlds, asking every question at every chunk costs more than the rollout


class MemoryEnvironment:
    """Reads a world to a policy. ``world``: seed and options -> a world. ``memory``: what is written to, a new one of ``schema`` if left out.

    ``reader``: a language model that answers the questions, and that the reward counts then. Calls that were refused are told with the
    next chunk, since a policy answers each chunk once.
    """

    def __init__(
        self,
        world: Callable[..., World],
        *,
        memory: Memory | None = None,
        schema: Schema = NINE_BANKS,
        reader: ModelReader | None = None,
    ) -> None:
        self._make_world = world
        self._memory_to_use = memory
        self._schema = memory.schema if memory else schema
        self._reader = reader
        self.system_prompt = system_prompt_of(self._schema)
        self._begun: World | None = None
        self._index = 0

    @property
    def _world(self) -> World:
        if self._begun is None:
            raise EnvironmentFault("no episode has begun; call reset first")
        return self._begun

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begin a world. Options are the source's knobs."""
        world = self._begun = self._make_world(seed or 0, **options)
        self._memory = self._memory_to_use or Memory(self._schema, first_id=world.first_id)
        self._index = world.begin
        self._turns: list[dict[str, Any]] = []
        self._refused: list[str] = []
        self._accuracies: dict[int, float | None] = {}  # by the number of changes that the memory has seen
        return self._observe()

    def step(self, action: str) -> Observation:
        """Carry out the calls of an answer and show the next chunk, or the end."""
        world = self._world
        memory = self._memory
        if self._index >= len(world.chunks):
            raise EnvironmentFault("the episode is over; call reset")
        # A deletion is judged by what the memory said before it.
        before = dict(memory.entries)
        results = run_calls(memory, action, source=self._index)
        turn = self._account(results, before)
        self._refused = refusals(result.message for result in results if not result.ok)
        turn["answered"] = self._accuracy_so_far()
        self._turns.append(turn)
        spans = [Span(name=f"call-{place}", start=call.start, end=call.end) for place, call in enumerate(results)]
        action_data = {"calls": [dict(vars(result)) for result in results], "timestamp": memory.today}
        self._index += 1
        observation = Observation(text="", restart=True, terminated=True)
        if self._index < len(world.chunks):
            observation = self._observe()
        return replace(
            observation,
            # A refused call is valid: its form was right, and the message says what was not.
            action_valid=all(result.name for result in results),
            action_error="; ".join(self._refused) or None,
            action_spans=tuple(spans),
            action_data=action_data,
        )

    def outcome(self) -> Json:
        """Turn accounts, every question as each reader answered it, and the memory. ``counted``: the reader that the reward counts."""
        world = self._world
        reader = self._reader or best_entries
        answers = reader(self._memory, [question.text for question in world.questions])
        return {
            "world": world.name,
            "turns": self._turns,
            "asked": [question.text for question in world.questions],
            "counted": "reader" if self._reader else "strict",
            "questions": [self._ask(*pair) for pair in zip(world.questions, answers, strict=True)],
            "memory": self._memory.state(),
            "memory_words": self._memory.words,
            "input_words": sum(turn["input_words"] for turn in self._turns),
        }

    def close(self) -> None:
        """Nothing is held."""

    def _observe(self) -> Observation:
        """The chunk that is read now, with what the memory holds on it. Calls of the answer are dated by it."""
        chunk = self._world.chunks[self._index]
        memory = self._memory
        memory.today = chunk.timestamp
        self._related = [hit.entry for hit in memory.related(chunk.text, entries=SHOWN)]
        # The date and the chunk stand first, then what depends on the memory. An entry's number stands behind its content, so that a
        # model that reads from left to right knows whose number it is.
        lines = [f"Date: {chunk.timestamp}"] if chunk.timestamp else []
        lines.append(chunk.text)
        if memory.core:
            lines.append(f"Core: {memory.core}")
        if self._related:
            lines.append("Memory:")
        lines += [f"{entry.content} | {entry.bank} {entry.id}" for entry in self._related]
        lines += [f"Refused: {message}" for message in self._refused]
        data = {
            "index": self._index,
            "chunk": chunk.text,
            "entries": [{"id": entry.id, "bank": entry.bank, "content": entry.content} for entry in self._related],
            "banks": list(self._schema.banks),
            "entry_words": self._schema.entry_words,
        }
        return Observation(text="\n".join(lines), data=data, restart=True)

    def _account(self, results: list[CallResult], before: dict[int, Entry]) -> dict[str, Any]:
        """Returns what the graders need of a turn: counts of calls, facts and entries, and how each call did."""
        chunk = self._world.chunks[self._index]
        memory = self._memory
        return {
            "calls": sum(result.name != "memory_noop" for result in results),
            "succeeded": [result.ok for result in results],
            "facts": len(chunk.facts),
            "right": facts_right(chunk.facts, before, memory.entries, results),
            "valid": grounded(results, chunk.text, self._related),
            "memory_words": memory.words,
            "entries": len(memory.entries),
            "input_words": count_words(chunk.text),
        }

    def _accuracy_so_far(self) -> float | None:
        """r1 of grader v2 if the dialogue ended here, so that each chunk earns what it added; None in a long world, and with a model as reader."""
        world = self._world
        if self._reader or len(world.chunks) > STANDING_CHUNKS or not world.questions:
            return None
        changes = len(self._memory.operations)
        if changes not in self._accuracies:  # the same memory answers the same
            self._accuracies = {changes: self._strict_accuracy()}
        return self._accuracies[changes]

    def _strict_accuracy(self) -> float:
        questions = self._world.questions
        return balanced_accuracy([(each.unknown, read_strict(self._memory, each).correct) for each in questions])

    def _ask(self, question: Question, answered: Answered) -> dict[str, Any]:
        """A question with its readings and what the two-layer search brings back."""
        hits = self._memory.search(question.text)
        readings = {name: read(self._memory, question).to_json() for name, read in RULES.items()}
        readings["reader"] = answered.reading(question).to_json()
        return {
            **question.to_json(),
            "retrieved": [{"id": hit.entry.id, "score": hit.score, "content": hit.entry.content} for hit in hits],
            "evidence_recall": _recall(question, [hit.entry for hit in hits]),
            "readings": readings,
            "error": answered.error,
            "agrees": answered.agrees,
        }


def _recall(question: Question, entries: list[Entry]) -> float | None:
    """Share of the evidence that the two-layer search brought back."""
    if not question.evidence:
        return None
    recalled = 0
    for evidence in question.evidence:
        recalled += any(_recalls(entry, evidence) for entry in entries)
    return recalled / len(question.evidence)


def _recalls(entry: Entry, evidence: Evidence) -> bool:
    """Says whether an entry was written at the evidence's chunk and shares at least a third of its content words, or all that the entry has."""
    words = content_words(evidence.text)
    entry_words = content_words(entry.content)
    shared = len(words & entry_words)
    enough = 3 * shared >= min(len(words), len(entry_words)) and shared > 0
    return enough and entry.source == evidence.chunk
