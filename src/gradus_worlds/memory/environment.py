"""The text layer: a chunk of dialogue in, tool calls out, questions at the end.

Every observation restarts the prompt: a policy sees the chunk, the core and the entries related to the chunk, and nothing of
what it read before. What it did not write down is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation, Span, child_rng
from gradus_worlds.memory.graders import balanced_accuracy
from gradus_worlds.memory.readers.claims import facts_right, grounded
from gradus_worlds.memory.readers.reading import READERS, read_strict
from gradus_worlds.memory.store.memory import NINE_BANKS, Entry, Hit, Memory
from gradus_worlds.memory.text import content_words, count_words
from gradus_worlds.memory.tools.running import CallResult, run_calls
from gradus_worlds.memory.tools.writing import SYSTEM_PROMPT, refusals
from gradus_worlds.memory.worlds.records import Question, World

SHOWN = 6  # related entries, at most
STANDING_CHUNKS = 32  # in longer worlds, asking every question at every chunk costs more than the rollout


class MemoryEnvironment:
    """Reads a world to a policy. ``world``: seed and options -> a world. ``memory``: what is written to, a new one if left out.

    Calls that were refused are told with the next chunk, since a policy answers each chunk once.
    """

    system_prompt = SYSTEM_PROMPT

    def __init__(self, world: Callable[..., World], *, memory: Memory | None = None) -> None:
        self._make_world, self._given = world, memory
        self._world: World | None = None
        self._episode_id: str | None = None
        self._index = 0

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": self._episode_id, "step_count": self._index}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin a world. Options are the source's knobs, and ``faults``: the share of well-formed calls that fail."""
        faults = options.pop("faults", 0.0)
        if not (isinstance(faults, int | float) and 0 <= faults <= 1):
            raise ConfigError(f"expected a share of calls from 0 to 1 as faults, got {faults!r}")
        self._world = self._make_world(seed or 0, **options)
        rng = child_rng(seed or 0, "memory-faults")
        self._fails = lambda: rng.random() < faults
        self._episode_id = episode_id or f"{self._world.name}"
        self._memory = self._given or Memory(first_id=self._world.first_id)
        self._memory.clock = self._today
        self._index = self._world.begin
        self._turns: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._refused: list[str] = []
        self._related: list[Hit] = []
        self._stood: tuple[int, float | None] | None = None
        return self._observe()

    def step(self, action: str) -> Observation:
        """Carry out the calls of an answer and show the next chunk, or the end."""
        world = self._playing
        if self._index >= len(world.chunks):
            raise EnvironmentFault("the episode is over; call reset")
        chunk = world.chunks[self._index]
        before = dict(self._memory.entries)
        results = run_calls(self._memory, action, source=self._index, fails=self._fails)
        shown = [hit.entry for hit in self._related]
        self._turns.append(self._account(results, before, shown))
        self._refused = refusals(result.message for result in results if not result.ok)
        for place, question in enumerate(world.questions):
            if question.after == self._index:
                self._answers[place] = self._ask(question)
        self._turns[-1]["answered"] = self._standing()
        self._index += 1
        understood = all(result.name for result in results)
        told = {
            "terminated": self._index >= len(world.chunks),
            "action_valid": understood,
            "action_error": "; ".join(self._refused) or None,
            "action_spans": tuple(
                Span(name=f"call-{i}", start=result.start, end=result.end) for i, result in enumerate(results)
            ),
            "action_data": {"calls": [result.to_json() for result in results], "timestamp": chunk.timestamp},
        }
        if told["terminated"]:
            return Observation(text="", restart=True, **told)
        return self._observe(**told)

    def outcome(self) -> Mapping[str, Any]:
        """Turn accounts, every question with both readings, and the memory with its log."""
        world = self._playing
        answers = [self._answers.get(place) or self._ask(question) for place, question in enumerate(world.questions)]
        return {
            "world": world.name,
            "turns": self._turns,
            "asked": [question.text for question in world.questions],
            "questions": answers,
            "memory": self._memory.state(),
            "memory_words": self._memory.words,
            "input_words": sum(count_words(chunk.text) for chunk in world.chunks[: max(1, self._index)]),
        }

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _playing(self) -> World:
        if self._world is None:
            raise EnvironmentFault("no episode has begun; call reset first")
        return self._world

    def _today(self) -> str | None:
        chunks = self._playing.chunks
        return chunks[min(self._index, len(chunks) - 1)].timestamp

    def _observe(self, **told: Any) -> Observation:
        chunk = self._playing.chunks[self._index]
        self._related = self._memory.related(chunk.text, entries=SHOWN)
        memory = self._memory
        # The date and the chunk stand first, then what depends on the memory. An entry's number stands behind its content, so that a
        # model that reads from left to right knows whose number it is.
        lines = [f"Date: {chunk.timestamp}"] if chunk.timestamp else []
        lines += [chunk.text]
        lines += [f"Core: {memory.core}"] if memory.core else []
        lines += ["Memory:"] if self._related else []
        lines += [f"{hit.entry.content} | {hit.entry.bank} {hit.entry.id}" for hit in self._related]
        lines += [f"Refused: {message}" for message in self._refused]
        shown = [{"id": hit.entry.id, "bank": hit.entry.bank, "content": hit.entry.content} for hit in self._related]
        data = {
            "index": self._index,
            "chunk": chunk.text,
            "entries": shown,
            "banks": list(NINE_BANKS.banks),
            "entry_words": NINE_BANKS.entry_words,
        }
        return Observation(text="\n".join(lines), data=data, restart=True, **told)

    def _account(self, results: list[CallResult], before: dict[int, Entry], shown: list[Entry]) -> dict[str, Any]:
        """Returns what the graders need of a turn: counts of calls, facts and entries."""
        chunk = self._playing.chunks[self._index]
        valid, written = grounded(results, chunk.text, shown)
        right = facts_right(chunk.facts, before, self._memory.entries, results)
        counted = [result for result in results if result.name != "memory_noop"]
        return {
            "calls": len(counted),
            "attempts": len(results),
            "succeeded": sum(result.ok for result in results),
            "facts": len(chunk.facts),
            "right": right,
            "written": written,
            "valid": valid,
            "memory_words": self._memory.words,
            "entries": len(self._memory.entries),
            "input_words": count_words(chunk.text),
        }

    def _standing(self) -> float | None:
        """r1 of grader v2 if the dialogue ended here, so that each chunk earns what it added; None in a long world."""
        if len(self._playing.chunks) > STANDING_CHUNKS:
            return None
        changes = len(self._memory.operations)
        if self._stood is None or self._stood[0] != changes:  # the same memory answers the same
            self._stood = changes, self._strict_accuracy()
        return self._stood[1]

    def _strict_accuracy(self) -> float | None:
        questions = [
            self._answers.get(place)
            or {
                "unknown": question.silence_answers,
                "readings": {"strict": {"correct": read_strict(self._memory, question).correct}},
            }
            for place, question in enumerate(self._playing.questions)
        ]
        return balanced_accuracy(questions) if questions else None

    def _ask(self, question: Question) -> dict[str, Any]:
        """A question with its readings and what the two-layer search brings back."""
        readings = {name: reader(self._memory, question) for name, reader in READERS.items()}
        hits = self._memory.search(question.text)
        return {
            **question.to_json(),
            "retrieved": [{"id": hit.entry.id, "score": hit.score, "content": hit.entry.content} for hit in hits],
            "evidence_recall": _recall(question, hits),
            "readings": {name: reading.to_json() for name, reading in readings.items()},
        }


def _recall(question: Question, hits: list[Hit]) -> float | None:
    """Share of the evidence that the two-layer search brought back: an entry written at the evidence's chunk that shares at
    least a third of its content words, or all that the entry has."""
    if not question.evidence:
        return None
    recalled = 0
    for item in question.evidence:
        words = content_words(item.text)
        recalled += any(
            hit.entry.source == item.chunk
            and 3 * len(words & content_words(hit.entry.content))
            >= min(len(words), len(content_words(hit.entry.content)))
            and words & content_words(hit.entry.content)
            for hit in hits
        )
    return recalled / len(question.evidence)
