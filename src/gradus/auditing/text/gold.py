"""Gold answers, parsed once: their kind, their parts, and whether another answer means the same."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from gradus.auditing.text.tasks import TextTask

NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w|\.\d)")  # a period may end the sentence
_PLAIN_NUMBER = re.compile(r"\s*[-+−]?\$?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?%?\s*")
_WORD_OR_SIGN = re.compile(r"[^\W\d_]+|[^\w\s]")
_PIECE = re.compile(
    r"(?P<key>([\"'])(?:[^\"'\\]|\\.)*\2(?=\s*:))"
    r"|(?P<number>(?:(?<![\w.)])[-−])?\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+)|(?P<sign>[^\w\s!-~])"
)
_LEFT = 0.2  # of what an answer says may stand in its shape
_NEARLY_ALL = 0.9
LISTED = (", ", ",", "\n", " and ")  # separators of elements, which a grid or a formula has not
_SEPARATORS = ("\n", ", ", ",", " × ", " → ", " and ", " ")


def is_number(text: str) -> bool:
    """Returns True if the text is one number and nothing else."""
    return _PLAIN_NUMBER.fullmatch(text) is not None


def fill(gold: str, value: str, shared: Container[str]) -> str | None:
    """The shape of the answer: its numbers and words replaced, but for keys of JSON and words that are ``shared`` by the golds.

    None if it has none to replace, or if more than a fifth of what it says would stand: keys and symbols of its own.
    """
    replaced = left = 0

    def change(match: re.Match[str]) -> str:
        nonlocal replaced, left
        pieces = _WORD_OR_SIGN.findall(match[0].strip("\"'"))
        own = match["number"] or any(piece not in shared for piece in pieces)
        if own and (match["number"] or match["word"]):
            replaced += 1
            return value
        left += bool(own and (match["key"] or unicodedata.category(match[0])[0] == "S"))
        return match[0]

    filled = _PIECE.sub(change, gold)
    return filled if replaced and left <= _LEFT * (replaced + left) else None


def parts(gold: str) -> tuple[list[str], str, str, str] | None:
    """The elements of a list-like answer with separator and brackets around it, or None: (elements, separator, open, close)."""
    if gold[:1] == "[" and gold[-1:] == "]" and gold.count("[") == 1 and "," in gold:
        separator = ", " if ", " in gold else ","
        return gold[1:-1].split(separator), separator, "[", "]"
    if gold[:1] in "[{":
        return None
    for separator in _SEPARATORS:
        elements = gold.split(separator)
        if len(elements) > 1 and all(elements):
            return elements, separator, "", ""
    return None


_FUNCTION_WORDS = re.compile(
    r"(?<!\S)(?:[Tt]he|[Aa]n|[Ii]s|[Aa]re|[Ww]as|[Ww]ere|[Hh]as|[Hh]ave|[Oo]f|[Bb]ecause|[Tt]hat|[Ww]hich|[Ww]ith|[Ff]rom)(?!\S)"
)


def is_sentence(text: str) -> bool:
    """Returns True if the text is prose, where a word may be replaced or left out. A row of words, numbers or titles is not."""
    text = text.strip()
    if "\n" in text or len(text.split()) < 3:
        return False
    ended = re.search(r"[a-z][.!?]\Z", text) is not None
    return ended or (", " not in text and _FUNCTION_WORDS.search(text) is not None)


def states(answer: str, gold: str) -> bool:
    """Returns True if an answer is the gold answer, up to case, spaces, quotes and the way a number or JSON is written."""
    a, b = (_normal(text) for text in (answer, gold))
    if a == b:
        return True
    if is_number(a) and is_number(b):
        return _value(a) == _value(b)
    try:
        return json.loads(a) == json.loads(b)
    except (ValueError, RecursionError):
        return False


def _normal(text: str) -> str:
    return " ".join(text.strip().strip("\"'`*.$").lower().replace("−", "-").split())


def _value(text: str) -> float:
    number = float(text.strip().replace(",", "").replace("$", "").replace("−", "-").rstrip("%"))
    return number / 100 if text.strip().endswith("%") else number


@dataclass(frozen=True, kw_only=True)
class Others:
    """Golds of all tasks, to draw wrong answers of the right form from."""

    golds: Sequence[str]
    _drawn_from: dict[str, list[str]] = field(
        default_factory=dict[str, list[str]], init=False, repr=False, compare=False
    )

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.golds)

    @cached_property
    def shared(self) -> frozenset[str]:
        """Words and signs that nearly all golds have: they are the form of an answer and say nothing about its task."""
        held = Counter(piece for gold in self.golds for piece in set(_WORD_OR_SIGN.findall(gold)))
        return frozenset(piece for piece, count in held.items() if count >= _NEARLY_ALL * len(self.golds))

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """The golds that are JSON objects."""
        values = [_json(gold) for gold in self.golds]
        return [value for value in values if isinstance(value, dict)]

    @cached_property
    def labels(self) -> list[str]:
        """The closed set of answers, most frequent first; empty if the set is not closed."""
        counts = self.counts
        few = len(counts) <= max(2, len(self.golds) // 6) and len(counts) <= 12
        return [label for label, _ in counts.most_common()] if few else []

    def another(self, own: str, rng: Random) -> str | None:
        """A gold of another task that is not this one, of the same form if there is one."""
        if own not in self._drawn_from:
            different = sorted(gold for gold in self.counts if not states(gold, own))
            near = [gold for gold in different if gold.count("\n") == own.count("\n") and alike(gold, own)]
            self._drawn_from[own] = near or different
        return rng.choice(self._drawn_from[own]) if self._drawn_from[own] else None

    def of_form(self, gold: str) -> list[str]:
        """The golds that have the form of this one: they differ in words and numbers alone. Empty if fewer than a quarter have it."""
        same = [other for other in self.golds if alike(other, gold)]
        return same if 4 * len(same) >= len(self.golds) else []


def alike(a: str, b: str) -> bool:
    """Returns True if two texts differ in words and numbers alone."""
    return re.sub(r"\d+", "0", re.sub(r"[A-Za-z]+", "a", a)) == re.sub(r"\d+", "0", re.sub(r"[A-Za-z]+", "a", b))


_UNIT = re.compile(r"\s+[A-Za-z]+\Z")
_FENCE = re.compile(r"```(?:python|py)?\n(.*?)```", re.S)


@dataclass(frozen=True, kw_only=True)
class Gold:
    """A right answer, parsed once, with its task and the golds of all tasks. All operators take it."""

    task: TextTask
    others: Others

    @property
    def text(self) -> str:
        return self.task.gold or ""

    @property
    def prompt(self) -> str:
        return self.task.prompt

    @cached_property
    def bare(self) -> str:
        """The text without space around it."""
        return self.text.strip()

    @property
    def is_program(self) -> bool:
        return bool(self.statements)

    @property
    def is_number(self) -> bool:
        """The answer is one number without a unit."""
        return is_number(self.bare)

    @cached_property
    def is_option(self) -> bool:
        """The answer is one of a closed set."""
        return self.text in self.others.labels

    @cached_property
    def number(self) -> str | None:
        """The number of an answer that is one number, with a unit or without."""
        number = _UNIT.sub("", self.bare)
        return number if is_number(number) else None

    @property
    def value(self) -> float | None:
        """The value of this number."""
        return None if self.number is None else _value(self.number)

    @cached_property
    def json(self) -> Any:
        """The JSON value; None if it is not JSON."""
        return _json(self.text)

    @cached_property
    def object(self) -> dict[str, Any]:
        """The JSON object; empty if it is not one."""
        return self.json if isinstance(self.json, dict) else {}

    @cached_property
    def elements(self) -> tuple[list[str], str, str, str] | None:
        """The elements of a list-like answer; see :func:`parts`."""
        return parts(self.text)

    @cached_property
    def code(self) -> str:
        """The program, without its fence."""
        fenced = _FENCE.search(self.text)
        return fenced.group(1) if fenced else self.text

    @cached_property
    def statements(self) -> Sequence[ast.stmt]:
        """The statements of a program that defines, imports or prints something; empty if it is not a program."""
        try:
            body = ast.parse(self.code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        return body if any(isinstance(each, kinds) or _prints(each) for each in body) else []

    def another(self, rng: Random) -> str | None:
        """The gold of another task."""
        return self.others.another(self.text, rng)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _prints(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
