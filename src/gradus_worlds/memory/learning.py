"""One's own text: a policy reads it chunk by chunk, its memory is kept in a file, and the memory answers questions.

What a chunk changed and the mark that it was read are written together, so a kill loses only the chunk that was being read.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from filelock import FileLock, Timeout

from gradus.commands.guests import make_policy
from gradus.core import (
    ConfigError,
    EnvironmentFault,
    EpisodeStart,
    Policy,
    PolicyError,
    Request,
    StorageError,
    Task,
    frozen_record,
    read_text,
    write_text,
)
from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.readers.frozen import REMOTE, Answered, ModelReader, best_entries
from gradus_worlds.memory.spec import load, scripted_policies
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import count_words, cut_words
from gradus_worlds.memory.worlds.records import Chunk, World

CHUNK_WORDS = 80
FIRST_ID = 32  # as in the synthetic worlds, so that a model sees numbers like those of its training
_DATE = "Date:"

Calls = Sequence[Mapping[str, Any]]
Progress = Callable[[int, int, Calls], None]
"""(chunks read, all, what became of the calls of the last one)."""


def read_chunks(path: Path) -> list[Chunk]:
    """A text in chunks of whole lines, at most 80 words each; a blank line ends a chunk, and a longer line is cut.

    A line ``Date: 3 May 2030`` dates what follows.
    """
    chunks = list(_split(read_text(path)))
    if not chunks:
        raise ConfigError(f"expected a text in {path}, it holds none")
    return chunks


def _split(text: str) -> Iterator[Chunk]:
    pieces: list[str] = []
    for line in text.splitlines():
        pieces += cut_words(line, CHUNK_WORDS) or [""]
    date: str | None = None
    lines: list[str] = []
    for piece in [*pieces, ""]:
        is_date = piece.startswith(_DATE)
        ends_chunk = is_date or not piece
        is_full = count_words(" ".join([*lines, piece])) > CHUNK_WORDS
        if lines and (ends_chunk or is_full):
            yield Chunk(text="\n".join(lines), timestamp=date)
            lines = []
        if is_date:
            date = piece.removeprefix(_DATE).strip() or None
        elif piece:
            lines.append(piece)


def _mark(chunk: Chunk) -> str:
    """A name of what a chunk says, and when: the same words of the same date are read once, whatever file they stand in."""
    content = json.dumps([chunk.timestamp, chunk.text])
    return hashlib.sha256(content.encode()).hexdigest()


@frozen_record
class LearnedText:
    """The result of reading a text."""

    # The folder of the memory.
    memory: Path
    # Chunks of the text, and how many of them were read earlier.
    read: int
    before: int
    # Calls of this reading, and how many of them were refused.
    calls: int
    refused: int
    # Entries of the memory now.
    entries: int


def learn_text(
    agent: str | Path,
    file: str | Path,
    *,
    memory: str | Path | None = None,
    temperature: float | None = None,
    tell: Progress | None = None,
) -> LearnedText:
    """Let an agent read a text and keep a memory of it. What it has read already is not read again.

    ``agent``: a run folder, a model folder, ``remote:MODEL``, or a policy that comes with the memory environment. ``memory``: its
    folder; ``memory`` inside the agent's folder by default. ``tell`` hears of every chunk.
    An EnvironmentFault says why the agent stopped before the end; the same call goes on there.
    """
    chunks = read_chunks(Path(file))
    folder = memory_of(agent, memory)
    spec = load()
    # The synthetic worlds' append-only reads their grammar alone; of any other text it would keep nothing.
    spec = replace(spec, policies={**spec.policies, "append-only": scripted_policies()["append-only"]})
    policy = make_policy(spec, agent, temperature=temperature)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _learn(policy, chunks, folder, tell)
    except Timeout as error:
        raise StorageError(f"{folder} is in use by another process; wait until it has ended") from error


def _learn(policy: Policy, chunks: Sequence[Chunk], folder: Path, tell: Progress | None) -> LearnedText:
    file = folder / "memory.json"
    memory = Memory(first_id=FIRST_ID)
    marks: set[str] = set()
    if file.exists():
        memory, marks = load_memory(folder)
    old = [chunk for chunk in chunks if _mark(chunk) in marks]
    unread = [chunk for chunk in chunks if _mark(chunk) not in marks]
    # Chunks that were read stay in the world, so that the numbers of chunks in entries stay true.
    world = World(name="own", chunks=(*old, *unread), questions=(), begin=len(old))
    results: list[Mapping[str, Any]] = []
    for number, calls in enumerate(_reading(policy, world, memory) if unread else (), 1):
        marks.add(_mark(unread[number - 1]))
        # One write for the changes and the mark: after a kill both are there or neither is.
        write_text(file, json.dumps({**memory.to_json(), "marks": sorted(marks)}) + "\n")
        results += calls
        if tell is not None:
            tell(len(old) + number, len(chunks), calls)
    return LearnedText(
        memory=folder,
        read=len(chunks),
        before=len(old),
        calls=len(results),
        refused=sum(not call["ok"] for call in results),
        entries=len(memory.entries),
    )


def _reading(policy: Policy, world: World, memory: Memory) -> Iterator[Calls]:
    """Let a policy read the rest of a world; what became of the calls of each chunk."""

    def same_world(seed: int) -> World:
        return world

    environment = MemoryEnvironment(same_world, memory=memory)
    observation = environment.reset(seed=0)
    task = Task(environment="memory", seed=0)
    prompt = environment.system_prompt
    start = EpisodeStart(task=task, system_prompt=prompt, key=(0, 0, 0), group=0, member=0, environment=environment)
    with closing(policy.start([start])) as session:
        while not observation.terminated:
            (action,) = session.act([Request(row=0, observation=observation)])
            failure = action.failure
            if failure is not None:
                raise EnvironmentFault(
                    f"the agent stopped: {failure.type}: {failure.message}; the same command goes on after what was read. "
                    "A chunk that is too long for the model gets shorter with a blank line in it"
                )
            observation = environment.step(action.text)
            yield observation.action_data["calls"]


def load_memory(folder: Path) -> tuple[Memory, set[str]]:
    """A stored memory and the marks of the chunks that it read. A StorageError says why it cannot be used."""
    file = folder / "memory.json"
    if not file.exists():
        raise StorageError(f"expected a memory in {folder}, and none is there; make one with gradus memory learn")
    try:
        data = json.loads(read_text(file))
        return Memory.from_json(data), set(data["marks"])
    except (ValueError, KeyError, StorageError) as error:
        raise StorageError(f"{file} is damaged: {error}; copy it from a backup") from error


def ask_memory(
    agent: str | Path, question: str, *, memory: str | Path | None = None, reader: str | Path | None = None
) -> Answered:
    """Answer a question from a memory alone. ``agent`` and ``memory`` as for :func:`learn_text`.

    ``reader``: as in ``memory:WORLD?reader=NAME``; by default the one of the agent's run, or the agent if it is ``remote:MODEL``. Without one
    the answer is the entry that fits best.
    """
    if reader is None:
        reader = agent if str(agent).startswith(REMOTE) else _reader_of_run(Path(agent))
    stored, _ = load_memory(memory_of(agent, memory))
    read = best_entries if reader is None else ModelReader(str(reader))
    (answered,) = read(stored, [question])
    if answered.error is not None:
        raise PolicyError(answered.error)
    return answered


def _reader_of_run(folder: Path) -> str | None:
    """The reader that a run was graded by."""
    file = folder / "recipe.toml"
    if not file.is_file():
        return None
    environment = tomllib.loads(read_text(file)).get("environment", "")
    return dict(parse_qsl(environment.partition("?")[2])).get("reader")


def memory_of(agent: str | Path, memory: str | Path | None = None) -> Path:
    """The folder of an agent's memory: ``memory``, or the folder of that name inside the agent's."""
    if memory is not None:
        return Path(memory)
    if Path(agent).is_dir():
        return Path(agent) / "memory"
    raise ConfigError(f"{agent} is not a folder that can hold a memory; say with --memory FOLDER where it is kept")
