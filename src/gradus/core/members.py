"""Text in gzip members, each whole by itself: a killed writer loses the last one, and a damaged one costs no other.

Every member carries a checksum. `zcat` reads such a file, and so does any tool that knows gzip.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from gradus.core.errors import StorageError

_LEVEL = 3  # episodes come down to an eighth; level 6 takes three times as long for a tenth
_BLOCK = 1 << 20  # characters of a member at least
_FED = 1 << 18  # bytes that are given to zlib at once: what it does not use it copies


def pack(text: str) -> bytes:
    """``text`` as one member; the same text gives the same bytes."""
    return gzip.compress(text.encode("utf-8"), _LEVEL, mtime=0)


_START = pack("")[:8]


def pack_lines(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines, which bring their own ends, as members of about a megabyte."""
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield pack("".join(block))
            block, size = [], 0
    if block:
        yield pack("".join(block))


def whole_end(path: Path) -> int:
    """The byte behind the last whole member."""
    return max((end for text, _, end in _members(path.read_bytes()) if text is not None), default=0)


def stored_file(path: Path | str) -> Path:
    """``path``, or the same name with or without .gz if only that is there."""
    path = Path(path)
    other = path.with_suffix("") if path.suffix.lower() == ".gz" else path.with_name(f"{path.name}.gz")
    return other if other.exists() and not path.exists() else path


def lines_of(path: Path, problems: list[str]) -> Iterator[str]:
    """The lines of a text file, with their ends; of each whole member if its name ends in .gz.

    What is damaged is left out, with a sentence in ``problems``. Raises StorageError if the file cannot be read or is not UTF-8.
    """
    try:
        if path.suffix.lower() == ".gz":
            yield from _packed_lines(path, problems)
        else:
            with path.open(encoding="utf-8", newline="\n") as file:
                yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def _packed_lines(path: Path, problems: list[str]) -> Iterator[str]:
    raw = path.read_bytes()
    rest = b""  # a line may go on in the next member, if another tool wrote the file
    for text, start, end in _members(raw):
        if text is None:
            what = "is cut off (the writer was stopped?)" if end == len(raw) else "is damaged"
            problems.append(f"{path.name} {what} from byte {start} to {end}; the episodes there were left out")
            rest = b""
            continue
        *lines, rest = (rest + text).split(b"\n")
        yield from (f"{line.decode('utf-8')}\n" for line in lines)
    if rest:
        yield rest.decode("utf-8")


def _members(raw: bytes) -> Iterator[tuple[bytes | None, int, int]]:
    """(the text of a member, its first byte, the byte behind it), with None as the text of what is damaged or cut."""
    start = 0
    while start < len(raw):
        text, end = _member(raw, start)
        if text is None:  # go on at what looks like the next member
            after = raw.find(_START, start + 1)
            end = len(raw) if after < 0 else after
        yield text, start, end
        start = end


def _member(raw: bytes, start: int) -> tuple[bytes | None, int]:
    view, unpacking, parts = memoryview(raw), zlib.decompressobj(wbits=31), list[bytes]()
    for place in range(start, len(raw), _FED):
        fed = view[place : place + _FED]
        try:
            parts.append(unpacking.decompress(fed))
        except zlib.error:
            return None, start
        if unpacking.eof:
            return b"".join(parts), place + len(fed) - len(unpacking.unused_data)
    return None, start


def unreadable(path: Path, error: Exception) -> StorageError:
    """Why the text of a file could not be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return StorageError(f"no file {path}")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{path} is a folder; name a file in it")
    way_out = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
    return StorageError(f"could not read {path} as UTF-8 text: {error}{way_out}")
