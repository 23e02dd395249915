"""The code of a grader as a dictionary: the words, patterns and numbers that its author wrote."""

from __future__ import annotations

import dis
import inspect
import linecache
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from gradus.auditing.text.tasks import Functions

SLOT = "\ue000"  # stands in a text for an answer: a character that nobody writes
_LONGEST = 200  # characters of a word
_MOST = 400  # words, and as many numbers
_SAMPLES = 8  # of a pattern
_DEPTH = 3  # of collections in collections
_LIKE_PATTERN = re.compile(r"\\[bdswBDSWAZ]|\(.*\)|\[.*\]|\.[*+]")
_MOST_OPTIONS = 12
_NAMED = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_CATEGORIES = {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " ", "CATEGORY_NOT_WORD": "."}  # all others have an a


@dataclass(frozen=True, kw_only=True, order=True)
class Place:
    """A line of a grader's source."""

    file: str
    line: int

    @property
    def name(self) -> str:
        """File and line, as editors take them."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(kw_only=True)
class Dictionary:
    """All that stands in these files, each with the place where it is used. A word may have a slot, in which an answer stands."""

    words: dict[str, Place] = field(default_factory=dict[str, Place])
    numbers: dict[float, Place] = field(default_factory=dict[float, Place])
    files: set[str] = field(default_factory=set[str])


def read_source(functions: Functions) -> Dictionary:
    """Reads functions and what they call in their own packages. It has no files if none of them is written in Python."""
    reader = _Reader(functions)
    while reader.waiting:
        reader.read(reader.waiting.pop(0))
    return reader.dictionary


class _Reader:
    """A walk from functions to what they use. ``waiting``: functions that are still to be read."""

    def __init__(self, functions: Functions) -> None:
        self.dictionary = Dictionary()
        self.waiting: list[FunctionType] = []
        self._codes: set[CodeType] = set()
        self._packages: set[str] | None = None
        # Until now every package counts; from here on only those of what was handed over.
        for function in functions:
            self._take(function, Place(file="", line=0))
        self._packages = {_package_of(function) for function in self.waiting}

    def read(self, function: FunctionType) -> None:
        """Takes defaults, and what the code of a function names."""
        code = function.__code__
        self.dictionary.files.add(code.co_filename)
        place = Place(file=code.co_filename, line=code.co_firstlineno)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self._take(defaults, place)
        self._read_code(code, {**function.__globals__, **inspect.getclosurevars(function).nonlocals})

    def _read_code(self, code: CodeType, names: Mapping[str, Any]) -> None:
        """Takes constants, and what names of the module or of the closure and their attributes stand for. Documentation is not loaded."""
        value: Any = None
        line = code.co_firstlineno
        for step in dis.get_instructions(code):
            line = (step.positions.lineno if step.positions else None) or line
            if isinstance(step.argval, CodeType):
                self._read_code(step.argval, names)
            elif step.opname in _NAMED:
                value = names.get(step.argval)
            elif step.opname in (
                "LOAD_ATTR",
                "LOAD_METHOD",
            ):  # of what the step before it loaded; a property is not run
                value = getattr(value, "__dict__", {}).get(step.argval)
            elif step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                value = step.argval
            else:
                value = None
            self._take(value, Place(file=code.co_filename, line=line))

    def _take(self, value: Any, place: Place, depth: int = 0) -> None:
        """Takes what a name stands for: text, a number, a pattern, a collection of them, or a function that is read later."""
        if depth > _DEPTH:
            return
        match value:
            case None | bool() | ModuleType():
                pass
            case str():
                self._words([value], place)
                if _LIKE_PATTERN.search(value):  # a function of re may be called with it
                    self._words(samples(value), place)
            case int() | float():
                if len(self.dictionary.numbers) < _MOST:
                    self.dictionary.numbers.setdefault(value, place)
            case re.Pattern(pattern=str(pattern), flags=flags):
                self._words(samples(pattern, flags), place)
            case partial():
                self._take([value.func, *value.args, *value.keywords.values()], place, depth)
            case Mapping():
                self._take([*value, *value.values()], place, depth)
            case list() | tuple() | set() | frozenset():
                self._take_all(cast("Collection[Any]", value), place, depth)
            case _:
                self._take_code(value, place, depth)

    def _take_all(self, values: Collection[Any], place: Place, depth: int) -> None:
        """Takes the members of a collection, and all texts in a row if they may be options."""
        # The texts of a set stand in another order in each process.
        ordered = sorted(values, key=repr) if isinstance(values, Set) else list(values)
        for value in ordered[:_MOST]:
            self._take(value, place, depth + 1)
        texts = [value for value in ordered if isinstance(value, str)]
        if 2 <= len(texts) <= _MOST_OPTIONS:
            self._words([", ".join(texts), " ".join(texts)], place)

    def _take_code(self, value: Any, place: Place, depth: int) -> None:
        """A function is read later; of a class, or of what it made, the methods and the attributes are taken."""
        function: Any = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, FunctionType):
            if function.__code__ not in self._codes and self._is_own(function):
                self._codes.add(function.__code__)
                self.waiting.append(function)
            return
        # Of an object also what it holds: a setting, a pattern, another function.
        kind = cast("Any", value if inspect.isclass(value) else type(value))
        if self._is_own(kind):
            members = cast("Mapping[str, Any]", vars(kind))
            methods = [member for member in members.values() if inspect.isfunction(member)]
            attributes: Mapping[str, Any] = {} if kind is value else getattr(value, "__dict__", {})
            self._take([*methods, *attributes.values()], place, depth)

    def _words(self, texts: Sequence[str], place: Place) -> None:
        """Keeps texts that are neither empty nor long."""
        for text in texts:
            if 0 < len(text) <= _LONGEST and len(self.dictionary.words) < _MOST:
                self.dictionary.words.setdefault(text, place)

    def _is_own(self, value: Any) -> bool:
        """It is of a package that one of the functions at the beginning is of. The processes that a grader asks score nothing."""
        package = _package_of(value)
        if package == "builtins" or str(value.__module__).startswith("gradus.sandbox."):
            return False
        return self._packages is None or package in self._packages


def _package_of(value: Any) -> str:
    """The name of the package that a function or a class is of."""
    return str(value.__module__).split(".")[0]


def samples(pattern: str, flags: int = 0) -> list[str]:
    """Up to eight texts that the pattern matches, one for each of its alternatives; and the same with a slot for its first group.

    >>> [text.replace(SLOT, "_") for text in samples("(yes|no)!+")]
    ['yes!', '_!', 'no!']
    """
    try:
        tree = cast("Any", parser).parse(pattern, flags)
    except (re.error, OverflowError, RecursionError):
        return []
    texts: list[str] = []
    for number in range(2 * _SAMPLES):
        text = _written(tree, number // 2, slots=number % 2 == 1)
        # What is written may not match, for places and what must not follow are left out. DEBUG would print the pattern.
        is_match = SLOT in text or re.search(pattern, text, flags & ~re.DEBUG)
        if is_match and text.strip() and text not in texts:
            texts.append(text)
    return texts[:_SAMPLES]


def _written(tree: Any, choice: int, *, slots: bool) -> str:
    """One text of a parsed pattern. ``choice``: which alternative to take, of each branch. ``slots``: write a slot for the first group."""
    text = ""
    for operator, value in tree:
        match str(operator):
            case "LITERAL":
                text += chr(value)
            case "ANY" | "NOT_LITERAL":
                text += "x"
            case "IN":
                text += _of_set(value, choice)
            case "BRANCH":
                text += _written(value[1][choice % len(value[1])], choice, slots=slots)
            case "MAX_REPEAT" | "MIN_REPEAT":
                # Every second choice writes what may be left out.
                least, most, inner = value
                times = least if choice % 2 else max(least, min(1, most))
                text += _written(inner, choice, slots=slots) * times
            case "SUBPATTERN":
                text += SLOT if slots and value[0] == 1 else _written(value[3], choice, slots=slots)
            case _:  # places, and what stands around or before them, are not written
                pass
    return text


def _of_set(members: Any, choice: int) -> str:
    """One character of a set of a pattern."""
    operator, value = members[choice % len(members)]
    if str(members[0][0]) == "NEGATE":
        return "a0 .!"[choice % 5]
    if str(operator) == "LITERAL":
        return chr(value)
    if str(operator) == "RANGE":
        return chr(value[0])
    return _CATEGORIES.get(str(value), "a")
