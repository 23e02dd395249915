"""The code of a grader as a dictionary: the words, patterns and numbers that its author wrote."""

from __future__ import annotations

import dis
import inspect
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from gradus.auditing.text.patterns import samples

_LONGEST = 200  # characters of a word
_MOST = 400  # words, and as many numbers
_DEPTH = 3  # of collections in collections
_LIKE_PATTERN = re.compile(r"\\[bdswBDSWAZ]|\(.*\)|\[.*\]|\.[*+]")


@dataclass(frozen=True, kw_only=True, order=True)
class Place:
    """A line of a grader's source."""

    file: str
    line: int

    @property
    def name(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()


@dataclass(kw_only=True)
class Dictionary:
    """All that was found in these files, each with the place where it is used. A word may have a slot, in which an answer stands."""

    words: dict[str, Place] = field(default_factory=dict[str, Place])
    numbers: dict[float, Place] = field(default_factory=dict[float, Place])
    files: set[str] = field(default_factory=set[str])


def read_source(functions: Sequence[Callable[..., Any]]) -> Dictionary | None:
    """Reads functions and what they call in their own packages. None if none of them is written in Python."""
    reader = _Reader(functions)
    while reader.waiting:
        reader.read(reader.waiting.pop(0))
    return reader.found if reader.found.files else None


class _Reader:
    """A walk from functions to what they use. ``waiting``: functions that are still to be read."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.found = Dictionary()
        self.waiting: list[FunctionType] = []
        self._seen: set[CodeType] = set()
        self._packages: set[str] | None = None
        for each in functions:
            self._take(each, Place(file="", line=0))
        self._packages = {each.__module__.split(".")[0] for each in self.waiting}

    def read(self, function: FunctionType) -> None:
        code = function.__code__
        self.found.files.add(code.co_filename)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        names = {**function.__globals__, **{name: _content(cell) for name, cell in cells}}
        place = Place(file=code.co_filename, line=code.co_firstlineno)
        self._take([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()], place)
        self._read_code(code, names)

    def _read_code(self, code: CodeType, names: Mapping[str, Any]) -> None:
        """Takes constants, and what names of the module or of the closure and their attributes stand for. Documentation is not loaded."""
        value: Any = None
        line = code.co_firstlineno
        for step in dis.get_instructions(code):
            line = (step.positions.lineno if step.positions else None) or line
            if isinstance(step.argval, CodeType):
                self._read_code(step.argval, names)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                value = names.get(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                value = getattr(value, "__dict__", {}).get(step.argval)
            else:
                value = step.argval if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT") else None
            if value is not None and not isinstance(value, ModuleType):
                self._take(value, Place(file=code.co_filename, line=line))

    def _take(self, value: Any, place: Place, depth: int = 0) -> None:
        """Takes what a name stands for: text, a number, a pattern, a collection of them, or a function that is read later."""
        if isinstance(value, str):
            self._word(value, place)
            if _LIKE_PATTERN.search(value):
                self._pattern(value, 0, place)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if len(self.found.numbers) < _MOST:
                self.found.numbers.setdefault(value, place)
        elif isinstance(value, re.Pattern):
            self._pattern(cast("re.Pattern[Any]", value).pattern, value.flags, place)
        elif isinstance(value, partial):
            self._collection([value.func, *value.args, *value.keywords.values()], place, depth)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._collection(value, place, depth)
        elif inspect.isroutine(value):
            self._function(inspect.unwrap(value))
        elif not isinstance(value, ModuleType) and self._is_own(
            kind := value if inspect.isclass(value) else type(value)
        ):
            for each in vars(kind).values():
                self._function(each)
            if kind is not value:
                self._collection(getattr(value, "__dict__", {}), place, depth)

    def _word(self, text: str, place: Place) -> None:
        if 0 < len(text) <= _LONGEST and len(self.found.words) < _MOST:
            self.found.words.setdefault(text, place)

    def _pattern(self, text: Any, flags: int, place: Place) -> None:
        for each in samples(text, flags) if isinstance(text, str) else ():
            self._word(each, place)

    def _collection(self, values: Any, place: Place, depth: int) -> None:
        if depth >= _DEPTH:
            return
        several = [*values, *values.values()] if isinstance(values, Mapping) else list(values)
        several = sorted(several, key=repr) if isinstance(values, set | frozenset) else several
        for each in several[:_MOST]:
            self._take(each, place, depth + 1)
        group = [each for each in several if isinstance(each, str)]
        if 2 <= len(group) <= 12:  # all options in a row
            self._word(", ".join(group), place)
            self._word(" ".join(group), place)

    def _function(self, function: Any) -> None:
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and function.__code__ not in self._seen and self._is_own(function):
            self._seen.add(function.__code__)
            self.waiting.append(function)

    def _is_own(self, value: Any) -> bool:
        """It is of a package that one of the functions at the beginning is of. The processes that a grader asks score nothing."""
        module = str(getattr(value, "__module__", ""))
        top = module.split(".")[0]
        known = self._packages is None or top in self._packages
        return known and top != "builtins" and not module.startswith("gradus.sandbox.")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
