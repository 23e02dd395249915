"""The source of a grader as a dictionary: the words, patterns and numbers that its author wrote."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from gradus.auditing.text.patterns import samples

_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "print", "log"})
_PATTERNS = frozenset({"compile", "search", "match", "fullmatch", "findall", "finditer", "split", "sub"})
_LONGEST = 200  # characters of a word
_MOST = 400  # words, and as many numbers
_DEPTH = 3  # of collections in collections


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
        lines = _lines(self.file)
        return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""


@dataclass(kw_only=True)
class Dictionary:
    """All that was found in these files, each with the place where it is used. A word may have a slot, in which an answer stands."""

    words: dict[str, Place] = field(default_factory=dict[str, Place])
    numbers: dict[float, Place] = field(default_factory=dict[float, Place])
    files: set[str] = field(default_factory=set[str])


def read_source(functions: Sequence[Callable[..., Any]]) -> Dictionary | None:
    """Reads functions and what they call in their own packages. None if none of them has a source."""
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
            self.take(each, Place(file="", line=0))
        self._packages = {each.__module__.split(".")[0] for each in self.waiting}

    def read(self, function: FunctionType) -> None:
        node = _node_of(function.__code__)
        if node is None:
            return
        self.found.files.add(function.__code__.co_filename)
        _Visitor(self, function).visit_all(node)

    def take(self, value: Any, place: Place, depth: int = 0) -> None:
        """Takes what a name stands for: text, a number, a pattern, a collection of them, or a function that is read later."""
        if isinstance(value, str):
            self.word(value, place)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.number(value, place)
        elif isinstance(value, re.Pattern):
            self.pattern(cast("re.Pattern[Any]", value).pattern, value.flags, place)
        elif isinstance(value, partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.take(each, place, depth)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._collection(value, place, depth)
        elif inspect.isroutine(value):
            self._function(inspect.unwrap(value))
        elif not isinstance(value, ModuleType) and self._is_own(
            kind := value if inspect.isclass(value) else type(value)
        ):
            for each in vars(kind).values():
                self._function(each)
            if kind is not value and depth < _DEPTH:
                self._collection(getattr(value, "__dict__", {}), place, depth)

    def word(self, text: str, place: Place) -> None:
        if 0 < len(text) <= _LONGEST and len(self.found.words) < _MOST:
            self.found.words.setdefault(text, place)

    def number(self, value: float, place: Place) -> None:
        if len(self.found.numbers) < _MOST:
            self.found.numbers.setdefault(value, place)

    def pattern(self, text: Any, flags: int, place: Place) -> None:
        for each in samples(text, flags) if isinstance(text, str) else ():
            self.word(each, place)

    def _collection(self, values: Any, place: Place, depth: int) -> None:
        if depth >= _DEPTH:
            return
        several = [*values, *values.values()] if isinstance(values, Mapping) else list(values)
        several = sorted(several, key=repr) if isinstance(values, set | frozenset) else several
        for each in several[:_MOST]:
            self.take(each, place, depth + 1)
        group = [each for each in several if isinstance(each, str)]
        if 2 <= len(group) <= 12:  # all options in a row
            self.word(", ".join(group), place)
            self.word(" ".join(group), place)

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


class _Visitor(ast.NodeVisitor):
    """Reads the syntax of one function. Documentation, and messages of logs and errors, say nothing about answers."""

    def __init__(self, reader: _Reader, function: FunctionType) -> None:
        self._reader, self._file = reader, function.__code__.co_filename
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        self._names = {**function.__globals__, **{name: _content(cell) for name, cell in cells}}

    def visit_all(self, node: ast.AST) -> None:
        for each in ast.iter_child_nodes(node):
            self.visit(each)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._reader.take(node.value, self._place(node))

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._use(node):
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        place, first = self._place(node), node.args[0] if node.args else None
        of_re = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("re", "regex")
        if name in _LOGS:
            return
        if of_re and name in _PATTERNS and isinstance(first, ast.Constant):
            self._reader.pattern(first.value, 0, place)
            node = ast.Call(func=node.func, args=node.args[1:], keywords=node.keywords)
        self.generic_visit(node)

    def visit_List(self, node: ast.List | ast.Tuple | ast.Set) -> None:
        texts = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        self._reader.take(texts, self._place(node))
        self.generic_visit(node)

    visit_Tuple = visit_Set = visit_List

    def _use(self, node: ast.expr) -> bool:
        """Takes what a name of the module or of the closure stands for, if it is one."""
        value = self._value(node)
        if value is not None and not isinstance(value, ModuleType):
            self._reader.take(value, self._place(node))
        return value is not None

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._value(node.value)
            return None if base is None else getattr(base, "__dict__", {}).get(node.attr)
        return None

    def _place(self, node: ast.AST) -> Place:
        return Place(file=self._file, line=getattr(node, "lineno", 0))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


@cache
def _node_of(code: CodeType) -> ast.AST | None:
    """The syntax tree of a function; None if its source cannot be read."""
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    return next((node for node in ast.walk(tree) if _starts_as(node, code)), None)


def _starts_as(node: ast.AST, code: CodeType) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    return name == code.co_name and min([node.lineno, *(each.lineno for each in decorators)]) == code.co_firstlineno
