"""One's own text as a stream that a policy keeps a memory of, on disk, chunk by chunk: a killed reader goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation, parse_json_lines, read_text
from gradus_worlds.memory.cutting import cut_line, sentences, speaker_of
from gradus_worlds.memory.showing import SHOWN, show_chunk
from gradus_worlds.memory.store.durable import DurableMemory
from gradus_worlds.memory.text import count_words
from gradus_worlds.memory.tools.running import CallResult, run_calls
from gradus_worlds.memory.tools.writing import refusals, system_prompt
from gradus_worlds.memory.worlds.records import Chunk

CHUNK_WORDS = 80
FIRST_ID = 32  # as in the synthetic worlds, so that a model sees numbers like those of its training
_DATE = "Date:"

Tell = Callable[[int, int, Sequence[CallResult]], None]
"""(chunks read, all, what became of the calls of the last one)."""


def read_chunks(path: Path, words: int = CHUNK_WORDS) -> list[Chunk]:
    """A text in chunks of whole lines, at most ``words`` words each; a blank line ends a chunk, and a longer line is cut between sentences.

    A line ``Date: 3 May 2030`` dates what follows. In a .jsonl file each line is a chunk, ``{"text", "timestamp"?}``, or a world
    with ``chunks``; such a chunk is read as it is, however long.
    """
    text = read_text(path)
    records = ".jsonl" in (suffix.lower() for suffix in path.suffixes)
    chunks = list(_from_records(text, path) if records else _from_lines(text, words))
    if not chunks:
        raise ConfigError(f"expected a text in {path}, it holds none")
    return chunks


def _from_lines(text: str, words: int) -> Iterator[Chunk]:
    date: str | None = None
    held: list[str] = []
    for line in [piece for whole in [*text.splitlines(), ""] for piece in cut_line(whole.strip(), words)]:
        dated = line.startswith(_DATE)
        if held and (dated or not line or count_words(" ".join([*held, line])) > words):
            yield Chunk(text="\n".join(held), timestamp=date)
            held = []
        if dated:
            date = line.removeprefix(_DATE).strip() or None
        elif line:
            held.append(line)


def _from_records(text: str, path: Path) -> Iterator[Chunk]:
    for number, record in enumerate(parse_json_lines(text, str(path)).whole(), start=1):
        chunks: Any = record.get("chunks", [record])
        for chunk in chunks if isinstance(chunks, list) else [chunks]:
            said, date = (chunk.get("text"), chunk.get("timestamp")) if isinstance(chunk, dict) else (None, None)
            if not isinstance(said, str) or not said.strip() or not isinstance(date, str | None):
                raise ConfigError(
                    f'expected {{"text": "...", "timestamp": "..."}} or {{"chunks": [...]}} in line {number} of {path}, got {chunk!r:.60}'
                )
            yield Chunk(text=said.strip(), timestamp=date)


class OwnText:
    """An environment of one episode: what ``memory`` has not read yet of the file ``name``. Each chunk is on disk before the next one is shown.

    What a chunk changed and the marks of its sentences are written together, so that a kill loses the chunk that was being read
    and no sentence is read twice, however the file is cut into chunks. ``tell`` hears of every chunk.
    """

    def __init__(
        self, memory: DurableMemory, chunks: Sequence[Chunk], tell: Tell | None = None, *, name: str = ""
    ) -> None:
        self._memory, self._tell = memory, tell
        self._all = len(chunks)
        self._left = list(_unread(memory, chunks, name))
        self._place = 0
        self._refused: list[str] = []

    @property
    def unread(self) -> int:
        """How many chunks are left."""
        return len(self._left) - self._place

    @property
    def system_prompt(self) -> str:
        return system_prompt(self._memory.schema)

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": "own", "step_count": self._place, "chunks": self._all}

    def today(self) -> str | None:
        """The date of the chunk that is being read."""
        return self._left[self._place][1].timestamp if self.unread else None

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin with the first chunk that was not read."""
        return self._observe()

    def step(self, action: str) -> Observation:
        """Carry out the calls of an answer and show the next chunk, or the end."""
        if not self.unread:
            raise EnvironmentFault("everything is read")
        marks, _ = self._left[self._place]
        with self._memory.batch():
            results = run_calls(self._memory, action, source=self._all - self.unread)
            for mark in marks:
                self._memory.mark(mark)
        self._place += 1
        self._refused = refusals(result.message for result in results if not result.ok)
        if self._tell is not None:
            self._tell(self._all - self.unread, self._all, results)
        told: dict[str, Any] = {
            "terminated": not self.unread,
            "action_valid": all(result.name for result in results),
            "action_error": "; ".join(self._refused) or None,
        }
        return self._observe(**told) if self.unread else Observation(text="", restart=True, **told)

    def outcome(self) -> Mapping[str, Any]:
        """Nothing is asked, so nothing is graded."""
        return {}

    def close(self) -> None:
        """The memory is the caller's."""

    def _observe(self, **told: Any) -> Observation:
        chunk = self._left[self._place][1]
        related = self._memory.related(chunk.text, entries=SHOWN)
        place = {"index": self._all - self.unread, "chunks": self._all}
        return show_chunk(self._memory, chunk, related, self._refused, **place, **told)


def _unread(memory: DurableMemory, chunks: Sequence[Chunk], name: str) -> Iterator[tuple[list[str], Chunk]]:
    """(marks, chunk) for each chunk, without the sentences that were read before; a chunk of which nothing is left is none."""
    seen: Counter[str] = Counter()
    for chunk in chunks:
        marks: list[str] = []
        lines: list[str] = []
        for line in chunk.text.splitlines():
            speaker, said = speaker_of(line)
            named = [(_mark(seen, name, chunk, each), each) for each in sentences(said)]
            new = [(mark, each) for mark, each in named if not memory.marked(mark)]
            marks += [mark for mark, _ in new]
            lines += [line if new == named else speaker + " ".join(each for _, each in new)] if new else []
        if marks:
            yield marks, Chunk(text="\n".join(lines), timestamp=chunk.timestamp)


def _mark(seen: Counter[str], name: str, chunk: Chunk, sentence: str) -> str:
    """A name of what a sentence of a file says, and when; the second of two equal sentences is another one."""
    digest = hashlib.sha256(json.dumps([name, chunk.timestamp, sentence]).encode()).hexdigest()
    seen[digest] += 1
    return f"read {digest} {seen[digest]}"
