"""Files that are either whole or not there: written aside, synced, then renamed."""

from __future__ import annotations

import gzip
import json
import os
import re
import secrets
import shutil
import stat
import tomllib
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gradus.core.checksums import write_checksums
from gradus.core.errors import ConfigError, StorageError
from gradus.core.members import pack_lines, unreadable

# What only this module calls its files, and where a run has some: the folder may hold hidden files of somebody's own, and other runs.
_PLACES = (".", "checkpoints", "episodes", "teach", "eval", "report",
           *(f"{stage}{place}" for stage in ("sft", "grpo") for place in ("", "/checkpoints", "/episodes")))  # fmt: skip
_HALF_WRITTEN = re.compile(r"\..+\.[a-z0-9_]{8}\.part|\.(model|best|final|step-\d+)\.(tmp|old)")


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` at the end, synced, so a reader never meets half a file.

    Raises StorageError if the disk is full or the folder cannot be written; the old file is kept.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    aside: Path | None = None
    try:
        if path.exists() and not path.is_file():  # a device or a pipe, as /dev/null or /dev/stdout
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        fresh.touch(exist_ok=False)  # with the mode that the umask gives
        aside = fresh  # to be removed from here on
        mode = stat.S_IMODE((path if path.exists() else aside).stat().st_mode)  # what was private stays so
        aside.chmod(0o600)  # as long as it is written
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.chmod(mode)  # a writer may have put a private file in its place
        os.replace(aside, path)
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror or error}; nothing was changed there. "
            "Free some space or choose another folder"
        ) from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a folder aside, then put it in place of ``path``, synced and with checksums.

    The files get the mode that the umask gives, whoever wrote them; in a folder that was private they are private. Raises
    StorageError and leaves what was there if anything could not be written. Whatever a killed process left aside is cleared first.
    The folder that is worked in and a git repository are never replaced (StorageError).
    """
    path = _named(path)
    if _is_worked_in(path) or (path / ".git").exists():
        raise StorageError(
            f"{path} is the folder that you work in, or a git repository; a new folder does not take its place"
        )
    aside, old = (path.with_name(f".{path.name}.{end}") for end in ("tmp", "old"))
    try:
        shutil.rmtree(aside, ignore_errors=True)
        before = stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU if path.exists() else 0o777
        aside.mkdir(before, parents=True)
        fill(aside)
        write_checksums(aside)
        shared = stat.S_IMODE(aside.stat().st_mode) & 0o666
        for file in (*aside.rglob("*"), aside):
            if file.is_file() and not file.is_symlink():
                file.chmod(shared)
            _sync(file)
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(aside, path)
        _sync(path.parent)
    except Exception as error:
        raise StorageError(
            f"could not write {path}: {error}; nothing half-written was left there. Free some space or choose another folder"
        ) from error
    finally:  # also after Ctrl-C
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def replaceable(folder: Path) -> Path:
    """A folder whose place a new one can take, with a name of its own. Raises ConfigError if it is, or holds, the one that is worked in:
    whoever stands in it would stand in a folder that is no longer there. So it does if an agent keeps its memory in it.
    """
    path = _named(folder)
    if _is_worked_in(path):
        raise ConfigError(
            f"{folder} is the folder that you work in, or above it, and a new one would take its place; "
            "name a new folder, as in ./model"
        )
    memory = next((each.parent for place in (".", "*") for each in path.glob(f"{place}/memory.sqlite")), None)
    if memory is not None:
        raise ConfigError(
            f"{memory} is a memory, and a new folder would take the place of {folder}; move the memory elsewhere, or name a new folder"
        )
    return path


def _is_worked_in(path: Path) -> bool:
    """Whether a folder is the one that is worked in, or above it. That one may be gone: a run goes on without it."""
    try:
        return Path.cwd().is_relative_to(path.resolve())
    except FileNotFoundError:
        return False


def _named(path: Path) -> Path:
    """The path with a name at its end, which ``.`` and ``..`` lack."""
    return path.resolve() if path.name in ("", "..") else path


def clear_half_written(folder: Path) -> None:
    """Remove what killed processes had begun to write in a run folder that is locked for this one, and put back what they had put aside."""
    half = [path for place in _PLACES for path in (folder / place).glob(".*") if _HALF_WRITTEN.fullmatch(path.name)]
    for path in half:
        place = path.with_name(path.name[1:-4])
        if path.is_file():
            path.unlink(missing_ok=True)
        elif path.name.endswith(".old") and not place.exists():
            os.replace(path, place)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, which bring their own line ends, as :func:`replacing` does; a name that ends in .gz is compressed."""
    with replacing(path) as aside:
        if path.suffix.lower() == ".gz":
            with aside.open("wb") as packed:
                packed.writelines(pack_lines(lines))
        else:
            with aside.open("w", encoding="utf-8") as file:
                file.writelines(lines)


def write_text(path: Path, text: str) -> None:
    """:func:`write_lines` for a text that is there already."""
    write_lines(path, (text,))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file, which may be gzipped (.gz). Raises StorageError if it is not there or not JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read as JSON: {error}") from error


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """What a JSON-lines file holds: its objects, and a sentence for each line that is none. ``cut``: the last line has no end."""

    source: str
    records: list[dict[str, Any]]
    problems: list[str]
    cut: bool

    def whole(self) -> list[dict[str, Any]]:
        """The objects, if every line is one. Raises StorageError with the first problem."""
        if self.problems or self.cut:
            raise StorageError((*self.problems, f"the last line of {self.source} is not JSON")[0])
        return self.records


def read_text(path: Path) -> str:
    """The text of a file, which may be gzipped (.gz). Raises StorageError if it is not there or not UTF-8."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises StorageError if it is not there or not TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not valid TOML: {error}") from error


def read_json_lines(path: Path) -> JsonLines:
    """The objects in a JSON-lines file. A last line that cannot be read is ``cut``: its writer was stopped, or is at work."""
    return parse_json_lines(read_text(path), str(path))


def parse_json_lines(text: str, source: str) -> JsonLines:
    """:func:`read_json_lines` for a text that is there already; ``source`` is named in what is said of it."""
    lines = text.removeprefix("\ufeff").split("\n")  # a byte order mark, as some editors write it
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return JsonLines(source=source, records=records, problems=problems, cut=True)
            problems.append(f"{source} line {number} is not JSON ({error})")
            continue
        if isinstance(record, dict):
            records.append(cast(dict[str, Any], record))
        else:
            problems.append(f"{source} line {number}: expected a JSON object, got {type(record).__name__}")
    return JsonLines(source=source, records=records, problems=problems, cut=False)


def whole_characters(text: str) -> str:
    """A text with ``?`` for each half of a character, which JSON can spell and no file takes.

    >>> whole_characters("a\\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def without_address(text: str) -> str:
    """A text without places in memory, which differ in every run.

    >>> without_address("<object object at 0x7f00beef>")
    '<object object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def ordered(members: Iterable[Any]) -> list[Any]:
    """The members of a set in an order that is the same in every process: by type, numbers by size, others by their text.

    >>> ordered({"b", "a", 10, 9})
    [9, 10, 'a', 'b']
    """

    def place(member: Any) -> tuple[str, float, str]:
        return type(member).__name__, member if isinstance(member, int | float) else 0, same_text(member)

    return sorted(members, key=place)


def same_text(value: Any) -> str:
    """``repr`` of a value as every process would give it: sets in order, and no places in memory.

    >>> same_text([{"b", "a"}, {1: frozenset({2})}])
    "[{'a', 'b'}, {1: frozenset({2})}]"
    """
    kind: type = type(cast(object, value))
    if kind is dict:
        pairs = (f"{same_text(key)}: {same_text(each)}" for key, each in cast(Mapping[Any, Any], value).items())
        return f"{{{', '.join(pairs)}}}"
    if kind not in (list, tuple, set, frozenset) or not value:
        return without_address(repr(value))
    parts = [same_text(each) for each in (ordered(value) if kind in (set, frozenset) else value)]
    if kind is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    inside = ", ".join(parts)
    return f"[{inside}]" if kind is list else f"{{{inside}}}" if kind is set else f"frozenset({{{inside}}})"


def is_storable(value: Any) -> bool:
    """Whether a file of episodes can hold a value as it is.

    >>> is_storable({"x": [1, None]}), is_storable({1, 2}), is_storable(float("nan")), is_storable("\\ud800")
    (True, False, False, False)
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def storable(value: Any) -> Any:
    """A value as a stored episode can hold it: what JSON does not have becomes a list, a number or a text, and NaN None.

    >>> import datetime
    >>> storable({"x": {10, 9}}), storable([datetime.date(2026, 1, 31), float("nan")])
    ({'x': [9, 10]}, ['2026-01-31', None])
    """

    def replaced(odd: Any, place: str) -> Any:
        return None if isinstance(odd, float) else whole_characters(without_address(str(odd)))

    try:
        return made_storable(value, replaced)
    except RecursionError:  # it holds itself
        return replaced(value, "")


def made_storable(value: Any, odd: Callable[[Any, str], Any], place: str = "") -> Any:
    """The value if it is storable, else one with text for keys, and lists for sets and for what numpy and torch have.

    What nothing else stands for is replaced by what ``odd`` gives for it and its place. Raises RecursionError for a value that holds itself.
    """
    if is_storable(value):
        return value
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for key, each in cast(Mapping[Any, Any], value).items():
            name = key if isinstance(key, str) else str(key.item() if hasattr(key, "item") else key)
            name = name if is_storable(name) else odd(name, f"a key of {place}")
            made[name] = made_storable(each, odd, f"{place}[{key!r}]")
        return made
    if isinstance(value, list | tuple):
        parts = enumerate(cast(Sequence[Any], value))
        return [made_storable(each, odd, f"{place}[{number}]") for number, each in parts]
    if isinstance(value, set | frozenset):  # their order differs from one process to the next
        return made_storable(ordered(cast(Iterable[Any], value)), odd, place)
    return made_storable(value.tolist(), odd, place) if hasattr(value, "tolist") else odd(value, place)
