"""One's own text: a policy reads it into a memory on disk, chunk by chunk, and the memory answers questions.

A reader that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradus import one_turn, roll_out
from gradus.commands.guests import make_policy
from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    PolicyError,
    read_text,
    without_thoughts,
)
from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.policies import scripted_policies
from gradus_worlds.memory.readers.reading import Note, search_notes, shares_word
from gradus_worlds.memory.spec import load
from gradus_worlds.memory.store.durable import DurableMemory, utc_now
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import count_words, cut_words
from gradus_worlds.memory.tools.running import CallResult
from gradus_worlds.memory.worlds.records import UNKNOWN, Chunk, World

CHUNK_WORDS = 80
FIRST_ID = 32  # as in the synthetic worlds, so that a model sees numbers like those of its training
_DATE = "Date:"
_REMOTE = "remote:"
_PROMPT = (
    "Answer the question from the memory alone, in as few words as possible, without a sentence around it. "
    f"If the memory does not say, answer: {UNKNOWN}"
)

Tell = Callable[[int, int, Sequence[CallResult]], None]
"""(chunks read, all, what became of the calls of the last one)."""


def read_chunks(path: Path, words: int = CHUNK_WORDS) -> list[Chunk]:
    """A text in chunks of whole lines, at most ``words`` words each; a blank line ends a chunk, and a longer line is cut.

    A line ``Date: 3 May 2030`` dates what follows.
    """
    chunks = list(_split(read_text(path), words))
    if not chunks:
        raise ConfigError(f"expected a text in {path}, it holds none")
    return chunks


def _split(text: str, words: int) -> Iterator[Chunk]:
    date: str | None = None
    held: list[str] = []
    for line in [piece for whole in [*text.splitlines(), ""] for piece in cut_words(whole, words) or [""]]:
        dated = line.startswith(_DATE)
        if held and (dated or not line or count_words(" ".join([*held, line])) > words):
            yield Chunk(text="\n".join(held), timestamp=date)
            held = []
        if dated:
            date = line.removeprefix(_DATE).strip() or None
        elif line:
            held.append(line)


class OwnText(MemoryEnvironment):
    """One episode: the chunks that ``memory`` has not read yet. Each is on disk before the next one is shown.

    What a chunk changed and the mark that it was read are written together, so a kill loses only the chunk that was being read.
    ``tell`` hears of every chunk; ``results`` are those of all calls.
    """

    def __init__(self, memory: DurableMemory, chunks: Sequence[Chunk], tell: Tell | None = None) -> None:
        read = [chunk for chunk in chunks if _mark(chunk) in memory.marks]
        self.unread = [chunk for chunk in chunks if _mark(chunk) not in memory.marks]
        self._kept, self._all, self._tell = memory, len(chunks), tell
        self.results: list[CallResult] = []
        world = World(name="own", chunks=(*read, *self.unread), questions=(), schema=memory.schema, begin=len(read))
        super().__init__(lambda _: world, memory=memory)

    @property
    def read(self) -> int:
        """Returns how many chunks were read, those of earlier times among them."""
        return self._all - len(self.unread)

    def carry_out(self, action: str) -> list[CallResult]:
        """Carry out the calls of an answer and mark the chunk, both or neither."""
        with self._kept.batch():
            results = super().carry_out(action)
            self._kept.marks.add(_mark(self.unread[0]))
        del self.unread[0]
        self.results += results
        if self._tell is not None:
            self._tell(self.read, self._all, results)
        return results

    def _today(self) -> str:
        return super()._today() or utc_now()


def _mark(chunk: Chunk) -> str:
    """A name of what a chunk says, and when: the same words of the same date are read once, whatever file they stand in."""
    return hashlib.sha256(json.dumps([chunk.timestamp, chunk.text]).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The result of reading a text."""

    memory: Path
    read: int
    before: int
    calls: int
    refused: int
    entries: int


def learn_text(
    agent: str | Path,
    file: str | Path,
    *,
    memory: str | Path | None = None,
    temperature: float | None = None,
    tell: Tell | None = None,
) -> Learned:
    """Let an agent read a text and keep a memory of it. What it has read already is not read again.

    ``agent``: a run folder, a model folder, ``remote:MODEL``, or a policy that comes with the memory environment. ``memory``: its
    folder; ``memory`` inside the agent's folder by default. ``tell`` gets (chunks read, all, what became of the last calls).
    An EnvironmentFault says why the agent stopped before the end; the same call goes on there.
    """
    chunks, folder, spec = read_chunks(Path(file)), memory_of(agent, memory), load()
    # The synthetic worlds' append-only reads their grammar alone; of any other text it would keep nothing.
    spec = replace(spec, policies={**spec.policies, "append-only": scripted_policies()["append-only"]})
    policy = make_policy(spec, agent, temperature=temperature)
    with DurableMemory(folder, first_id=FIRST_ID) as kept:
        text = OwnText(kept, chunks, tell)
        before = text.read
        if text.unread:
            failure = roll_out(_own(spec, text), policy, episodes=1, condition="own").episodes[0].failure
            if failure is not None:
                raise EnvironmentFault(
                    f"the agent stopped: {failure.stage}: {failure.type}: {failure.message}; the same command goes on after what was "
                    "read. A chunk that is too long for the model gets shorter with a blank line in it"
                )
        return Learned(
            memory=folder,
            read=text.read,
            before=before,
            calls=len(text.results),
            refused=sum(not each.ok for each in text.results),
            entries=len(kept.entries),
        )


def _own(spec: EnvironmentSpec, text: OwnText) -> EnvironmentSpec:
    """The environment of one's own text: one episode, of which nothing is asked, so nothing is paid."""
    nothing = Grader(name="nothing", compute=lambda episodes: [None] * len(episodes))
    own = Condition(name="own", seeds=(0,), summary="your text")
    return replace(
        spec,
        make=lambda: text,
        max_turns=len(text.unread),
        metrics=None,
        graders={"nothing": nothing},
        default_grader="nothing",
        conditions={"own": own},
    )


@dataclass(frozen=True, kw_only=True)
class Answered:
    """``answer`` is ``unknown`` if the memory does not say. ``why``: how it was read. ``notes``: what the reader was shown."""

    answer: str
    why: str
    notes: tuple[Note, ...] = ()


def ask_memory(
    agent: str | Path, question: str, *, memory: str | Path | None = None, reader: str | Path | None = None
) -> Answered:
    """Answer a question from a memory alone. ``agent`` and ``memory`` as for :func:`learn_text`.

    ``reader``: a language model, by default the agent if it is ``remote:MODEL``. Without one the answer is the entry that fits best.
    """
    chosen = reader or (agent if str(agent).startswith(_REMOTE) else None)
    with DurableMemory(memory_of(agent, memory), create=False) as kept:
        return best_entry(kept, question) if chosen is None else _read(kept, question, chosen)


def best_entry(memory: Memory, question: str) -> Answered:
    """The entry that fits a question best, as its answer."""
    found = [note for note in search_notes(memory, question) if shares_word(note, question)]
    if not found:
        return Answered(answer=UNKNOWN, why="no entry shares a word with the question")
    best = min(found, key=lambda note: note.id is None)  # the core, if nothing else fits
    return Answered(answer=best.text, why="the entry that fits best", notes=tuple(found))


def _read(memory: Memory, question: str, reader: str | Path) -> Answered:
    """The answer of a language model, which sees the question and what the two-layer search finds."""
    notes = search_notes(memory, question, entries=20)
    listed = "\n".join(f"- [{note.timestamp or 'no date'}] {note.text}" for note in notes) or "- (nothing)"
    rows: list[dict[str, Any]] = [{"question": f"Memory:\n{listed}\n\nQuestion: {question}"}]
    spec = one_turn(rows, judge=lambda row, text: 0.0, system_prompt=_PROMPT, test=rows)
    episode: Episode = roll_out(spec, make_policy(spec, reader, temperature=0.0), episodes=1).episodes[0]
    if episode.failure is not None:
        raise PolicyError(f"the reader {reader} gave no answer: {episode.failure.message}")
    prediction = without_thoughts(episode.turns[0].action).strip()
    return Answered(answer=prediction, why=f"the model answered from {len(notes)} entries", notes=tuple(notes))


def memory_of(agent: str | Path, memory: str | Path | None = None) -> Path:
    """The folder of an agent's memory: the one that was given, or ``memory`` inside the agent's own folder."""
    if memory is not None:
        return Path(memory)
    if Path(agent).is_dir():
        return Path(agent) / "memory"
    raise ConfigError(f"{agent} is not a folder that can hold a memory; say with --memory FOLDER where it is kept")
