"""Files that are either whole or not there: written aside, synced, then renamed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import tomllib
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from gradus.core.errors import ConfigError, StorageError
from gradus.core.values import JsonDict

# What only this module calls its files, and where a run has some: the folder may hold hidden files of somebody's own, and other runs.
_STAGES = ("sft", "distill", "grpo")
_FOLDERS = (".", "checkpoints", "episodes", "teach", "eval", "report", *_STAGES,
            *(f"{stage}/{name}" for stage in _STAGES for name in ("checkpoints", "episodes")))  # fmt: skip
_HALF_WRITTEN = re.compile(r"\..+\.[a-z0-9_]{8}\.part|\.(model|best|final|step-\d+)\.(tmp|old)")
_LEVEL = 3  # of gzip: episodes come down to an eighth; level 6 takes three times as long for a tenth
_SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
_CARD = "README.md"  # for people, who may change it; an upload has another one


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` at the end, synced, so a reader never meets half a file.

    Raises StorageError if the disk is full or the folder cannot be written; the old file is kept.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        if path.exists() and not path.is_file():  # a device or a pipe, as /dev/null or /dev/stdout
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        _sync(aside)  # before the renaming: a crash of the machine must not leave the new name with an empty file
        if path.exists():
            shutil.copymode(path, aside)  # what was private stays so
        os.replace(aside, path)
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror or error}; nothing was changed there. "
            "Free some space or choose another folder"
        ) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def check_file_can_be_written(path: Path) -> None:
    """Raise StorageError for a file that could not be written later, when the work for it is done."""
    if path.is_dir():
        raise StorageError(f"could not write {path}: it is a folder; name a file")
    path = path.absolute()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    is_under_a_file = nearest.is_file() and nearest != path
    if is_under_a_file or not os.access(nearest, os.W_OK):
        raise StorageError(
            f"could not write {path}: {nearest} is not a folder, or cannot be written; choose another place"
        )


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a folder aside, then put it in place of ``path``, synced and with checksums.

    Raises StorageError and leaves what was there if anything could not be written. Whatever a killed process left aside is cleared first.
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
        aside.mkdir(parents=True)
        fill(aside)
        write_checksums(aside)
        for file in (*aside.rglob("*"), aside):
            _sync(file)
        shutil.rmtree(old, ignore_errors=True)
        # No call replaces a folder that is not empty, so that there is a moment without one: ``old`` is put back if it ends here.
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
    """Return a folder whose place a new one can take, with a name of its own. Raises ConfigError for the working folder and those above."""
    path = _named(folder)
    if _is_worked_in(path):
        raise ConfigError(
            f"{folder} is the folder that you work in, or above it, and a new one would take its place; "
            "name a new folder, as in ./model"
        )
    return path


def _is_worked_in(path: Path) -> bool:
    """Say whether a folder is the working folder, or above it. The working folder may be gone: a run goes on without it."""
    try:
        return Path.cwd().is_relative_to(path.resolve())
    except FileNotFoundError:
        return False


def _named(path: Path) -> Path:
    """Return the path with a name at its end, which ``.`` and ``..`` lack."""
    return path.resolve() if path.name in ("", "..") else path


def clear_half_written(folder: Path) -> None:
    """Remove what killed processes had begun to write in a run folder that is locked for this one, and put back what they had put aside."""
    hidden = [path for name in _FOLDERS for path in (folder / name).glob(".*")]
    for path in hidden:
        if not _HALF_WRITTEN.fullmatch(path.name):
            continue
        target = path.with_name(path.name[1:-4])  # without the dot in front, and .tmp or .old
        if path.is_file():
            path.unlink(missing_ok=True)
        elif path.name.endswith(".old") and not target.exists():
            os.replace(path, target)
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
    is_packed = path.suffix.lower() == ".gz"
    with (
        replacing(path) as aside,
        aside.open("wb") as raw,
        # Without a name and a time the same lines give the same bytes.
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) if is_packed else nullcontext(raw) as file,
    ):
        file.writelines(as_bytes(line) for line in lines)


def as_bytes(text: str) -> bytes:
    """Return a text as every file holds it: UTF-8, with ``?`` for half of a character, which JSON can spell and no file takes."""
    return text.encode("utf-8", "replace")


def write_text(path: Path, text: str) -> None:
    """:func:`write_lines` for a text that is there already."""
    write_lines(path, (text,))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file, which may be gzipped (.gz). Raises StorageError if it is not there or not JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read as JSON: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a file, which may be gzipped (.gz). Raises StorageError if it is not there or not UTF-8."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def pack(text: str) -> bytes:
    """Compress ``text`` with gzip; the same text gives the same bytes, and packed texts can stand one after another."""
    return gzip.compress(as_bytes(text), _LEVEL, mtime=0)


def read_lines(path: Path, problems: list[str]) -> Iterator[str]:
    """Yield the lines of a text file, which may be gzipped (.gz), with their ends.

    A gzipped file that was cut off ends there, with a sentence in ``problems``. Raises StorageError if the file is damaged, cannot be
    read or is not UTF-8.
    """
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            for line in file:
                yield line.decode("utf-8")
    except EOFError:
        problems.append(f"{path.name} is cut off (the writer was stopped?); the last lines are missing")
    except (gzip.BadGzipFile, zlib.error) as error:
        raise StorageError(f"{path} is damaged ({error}); restore it, or have it written again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> StorageError:
    """Say why the text of a file could not be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return StorageError(f"no file {path}{similar_file(path)}")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{path} is a folder; name a file in it")
    way_out = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
    return StorageError(f"could not read {path} as UTF-8 text: {error}{way_out}")


def similar_file(path: Path) -> str:
    """Return a suggestion to put behind the name of a file that is not there, or nothing if no file beside it has nearly that name."""
    names = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f", did you mean {path.with_name(close[0])}?" if close else ""


def read_toml(path: Path) -> JsonDict:
    """Return the table in a TOML file. Raises StorageError if it is not there or not TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not valid TOML: {error}") from error


def read_json_lines(path: Path, *, growing: bool = False) -> list[JsonDict]:
    """Return the objects in a JSON-lines file. Raises StorageError that names the first line that is not one.

    ``growing``: a last line without an end that cannot be read is left out, as its writer was stopped, or is at work.
    """
    return parse_json_lines(read_text(path), str(path), growing=growing)


def parse_json_lines(text: str, source: str, *, growing: bool = False) -> list[JsonDict]:
    """:func:`read_json_lines` for a text that is there already; ``source`` is named in what is said of it."""
    lines = text.removeprefix("\ufeff").split("\n")  # a byte order mark, as some editors write it
    records: list[JsonDict] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if growing and number == len(lines):
                break
            raise StorageError(f"{source} line {number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise StorageError(f"{source} line {number}: expected a JSON object, got {type(record).__name__}")
        records.append(cast(JsonDict, record))
    return records


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in ``folder`` beside them, but for its card."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (_SUMS, _CARD))
    lines = [f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / _SUMS).write_text("".join(lines), encoding="utf-8")


def check_checksums(folder: Path) -> None:
    """Compare the files in ``folder`` with their checksums, if it has any. Raises StorageError that names what differs."""
    if not (folder / _SUMS).is_file():
        return
    try:
        lines = (folder / _SUMS).read_text(encoding="utf-8").splitlines()
        sums = [line.split("  ", 1) for line in lines]
        damaged = [name for stored, name in sums if name != _CARD and digest(folder / name) != stored]
    except (OSError, ValueError) as error:
        raise StorageError(f"{folder} is damaged: it cannot be compared with its {_SUMS} ({error})") from error
    if damaged:
        raise StorageError(
            f"{folder} is damaged: {', '.join(damaged)} is not what was written (see {_SUMS} there). Restore it, or "
            f"delete {folder / _SUMS} if you changed it yourself"
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
