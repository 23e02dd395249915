"""One's own text as a stream that a policy keeps a memory of, on disk, chunk by chunk: a killed reader goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gradus.core import ConfigError, parse_json_lines, read_text
from gradus_worlds.memory.environment import MemoryEnvironment
from gradus_worlds.memory.store.durable import DurableMemory, utc_now
from gradus_worlds.memory.text import count_words, cut_words
from gradus_worlds.memory.tools.running import CallResult
from gradus_worlds.memory.worlds.records import Chunk, World

CHUNK_WORDS = 80
FIRST_ID = 32  # as in the synthetic worlds, so that a model sees numbers like those of its training
_DATE = "Date:"

Tell = Callable[[int, int, Sequence[CallResult]], None]
"""(chunks read, all, what became of the calls of the last one)."""


def read_chunks(path: Path, words: int = CHUNK_WORDS) -> list[Chunk]:
    """A text in chunks of whole lines, at most ``words`` words each; a blank line ends a chunk, and a longer line is cut.

    A line ``Date: 3 May 2030`` dates what follows. In a .jsonl file each line is a chunk, ``{"text", "timestamp"?}``,
    which is read as it is, however long.
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
    for line in [piece for whole in [*text.splitlines(), ""] for piece in cut_words(whole, words) or [""]]:
        dated = line.startswith(_DATE)
        if held and (dated or not line or count_words(" ".join([*held, line])) > words):
            yield Chunk(text="\n".join(held), timestamp=date)
            held = []
        if dated:
            date = line.removeprefix(_DATE).strip() or None
        elif line:
            held.append(line)


def _from_records(text: str, path: Path) -> Iterator[Chunk]:
    for number, chunk in enumerate(parse_json_lines(text, str(path)).whole(), start=1):
        said, date = chunk.get("text"), chunk.get("timestamp")
        if not isinstance(said, str) or not said.strip() or not isinstance(date, str | None):
            raise ConfigError(
                f'expected {{"text": "...", "timestamp": "..."}} in line {number} of {path}, got {chunk!r:.60}'
            )
        yield Chunk(text=said.strip(), timestamp=date)


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
