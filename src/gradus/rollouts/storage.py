"""Episodes as JSON lines: a header, then one episode a line, readable by eye and by any tool; gzipped if the name ends in .gz.

Fields that hold their default are left out. Floats are written so that they read back as the same number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from gradus.core import Episode, StorageError
from gradus.core.documents import checked, first_problem
from gradus.core.files import as_bytes, pack, read_lines, write_lines
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict, plain


@frozen_record
class EpisodeFile:
    """The contents of a file of episodes. ``problems``: a sentence for each line that could not be read."""

    environment: str
    episodes: Sequence[Episode]
    problems: Sequence[str] = ()
    note: str | None = None


_EPISODES = TypeAdapter(Episode)


def encode(episode: Episode) -> JsonDict:
    """Return an episode as plain values; fields that hold their default are left out."""
    return _EPISODES.dump_python(episode, exclude_defaults=True, warnings=False)


def decode(data: Json) -> Episode:
    """Return the episode that :func:`encode` wrote. Raises ValueError for anything else."""
    return _EPISODES.validate_python(data)


def _header(environment: str, note: str | None) -> str:
    return _line({"schema": 2, "kind": "gradus episodes", "environment": environment, "note": note})


def _line(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")) + "\n"


class EpisodeWriter:
    """Appends episodes to a file, flushed to disk before :meth:`write` returns, all of a call or none. A context manager.

    Raises StorageError if the file cannot be written; it then holds what it held before the call.
    """

    def __init__(self, path: Path | str, *, environment: str, note: str | None = None) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _mend(self.path)
            self._file: IO[bytes] = self.path.open("ab", buffering=0)
            fresh = self.path.stat().st_size == 0
        except OSError as error:
            raise _unwritten(self.path, error) from error
        if fresh:
            self._append(_header(environment, note))

    def write(self, episodes: Iterable[Episode]) -> None:
        """Append episodes; they are on disk when this returns."""
        self._append("".join(_line(encode(episode)) for episode in episodes))

    def _append(self, text: str) -> None:
        before = self._file.seek(0, os.SEEK_END)
        # A write may take a part of the bytes.
        rest = memoryview(pack(text) if self.path.suffix.lower() == ".gz" else as_bytes(text))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # All of a call or none: a reader must not see half an episode.
            os.ftruncate(self._file.fileno(), before)
            raise _unwritten(self.path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not write {path}: {error.strerror or error}; it holds what it held before. "
        "Free some space or choose another place, and run the same command again"
    )


def _mend(path: Path) -> None:
    """Drop the unfinished line of a killed writer, so that appending does not glue two lines together."""
    problems: list[str] = []
    lines = list(read_lines(path, problems))
    complete = [line for line in lines if line.endswith("\n")]
    if problems or len(complete) < len(lines):
        write_lines(path, complete)


def write_episodes(path: Path | str, episodes: Iterable[Episode], *, environment: str, note: str | None = None) -> None:
    """Write a whole file at once: aside first, then renamed, so that a reader never sees half of it."""
    lines = (_line(encode(episode)) for episode in episodes)
    write_lines(Path(path), chain((_header(environment, note),), lines))


def read_episodes(path: Path | str, *, keep: Callable[[Episode], Episode] = lambda episode: episode) -> EpisodeFile:
    """Read a file of episodes. What cannot be read is named in ``problems``; the other episodes are returned.

    ``keep`` is given each episode as it is read and returns what to keep of it, for files that are larger than memory.
    """
    path = Path(path)
    if not path.exists():
        raise StorageError(f"no file {path}; `gradus sft --teacher` or `gradus eval --out` writes one")
    problems: list[str] = []
    lines = read_lines(path, problems)
    header = _read_header(path, lines)
    episodes: list[Episode] = []
    for number, line in enumerate(lines, start=2):
        try:
            episode = _EPISODES.validate_json(line)
        except ValidationError as error:
            problem = f"cannot be read ({first_problem(error)})"
            if not line.endswith("\n"):
                problem = "is cut off (the writer was stopped?)"
            problems.append(f"{path.name} line {number} {problem}; it was left out")
        else:
            episodes.append(keep(episode))
    return EpisodeFile(environment=header["environment"], episodes=episodes, problems=problems, note=header.get("note"))


class _Header(TypedDict):
    schema: Literal[2]
    kind: Literal["gradus episodes"]
    environment: str
    note: NotRequired[str | None]


def _read_header(path: Path, lines: Iterator[str]) -> _Header:
    line = next(lines, "").rstrip("\n")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or "kind" not in header:
        raise StorageError(
            f"{path} is not a file of episodes: its first line should be a header with schema, kind and environment, it is {line[:80]!r}; "
            f"to look at rows type gradus check {path}"
        )
    return checked(header, _Header, f"the first line of {path}")
