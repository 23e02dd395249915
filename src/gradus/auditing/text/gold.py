"""Gold answers, parsed once: their kind, their parts, and whether another answer means the same."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import field
from difflib import SequenceMatcher
from functools import cached_property
from random import Random
from typing import Any

from gradus.auditing.text.tasks import TextTask
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, as_mapping, is_table

NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w|\.\d)")  # a period may end the sentence
_PLAIN_NUMBER = re.compile(r"\s*[-+−]?\$?\d[\d,]{0,300}(?:\.\d+)?(?:[eE][-+]?\d+)?%?\s*")
_WORD_OR_SIGN = re.compile(r"[^\W\d_]+|[^\w\s]")
_PIECE = re.compile(
    r"(?P<key>([\"'])(?:[^\"'\\]|\\.)*\2(?=\s*:))"
    r"|(?P<number>(?:(?<![\w.)])[-−])?\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+)|(?P<sign>[^\w\s!-~])"
)
_MOST_UNCHANGED = 0.2  # of what an answer says, in its shape
_NEARLY_ALL = 0.9
LISTED = (
    ", ",
    ",",
    "\n",
    " and ",
)  # separators of elements, which a grid or a formula has not
_SEPARATORS = ("\n", ", ", ",", " × ", " → ", " and ", " ")
_MOST_LABELS = 12  # of a closed set
_TINY = 1e-300  # two zeros are equal, and are not divided by


def is_number(text: str) -> bool:
    """Returns True if the text is one number and nothing else."""
    return _PLAIN_NUMBER.fullmatch(text) is not None


def number_in(text: str) -> float:
    """Returns the value of a text that :data:`NUMBER` matches."""
    return float(text.replace("−", "-"))


def fill(gold: str, value: str, shared: Container[str]) -> str | None:
    """The shape of the answer: its numbers and words replaced, but for keys of JSON and words that are ``shared`` by the golds.

    None if it has none to replace, or if more than a fifth of what it says would stand: keys and symbols of its own.
    """
    replaced = unchanged = 0

    def change(match: re.Match[str]) -> str:
        nonlocal replaced, unchanged
        pieces = _WORD_OR_SIGN.findall(match[0].strip("\"'"))
        is_form = not match["number"] and all(piece in shared for piece in pieces)
        if is_form:
            return match[0]
        if match["number"] or match["word"]:
            replaced += 1
            return value
        # Symbols, as the pieces of a game, say something; punctuation does not.
        unchanged += not match["sign"] or unicodedata.category(match[0])[0] == "S"
        return match[0]

    filled = _PIECE.sub(change, gold)
    if replaced and unchanged <= _MOST_UNCHANGED * (replaced + unchanged):
        return filled
    return None


@frozen_record
class Elements:
    """The elements of a list-like answer, with what stands between and around them; none of an answer that is no list."""

    texts: Sequence[str] = ()
    separator: str = ""
    opening: str = ""
    closing: str = ""

    def write(self, texts: Sequence[str]) -> str:
        """Writes other elements in the same form."""
        return f"{self.opening}{self.separator.join(texts)}{self.closing}"

    def has_form_of(self, other: Elements) -> bool:
        """Returns True if both lists are written in the same way."""
        return self.separator == other.separator and self.opening == other.opening


# What stands between spaces in a formula is no element of a list.
_FORMULA = re.compile(r"\\[a-zA-Z]|(?<=[\w)}] )[-+*/=^<>](?= [\w({\\])")


def elements_of(gold: str) -> Elements:
    """The elements of a list-like answer."""
    if gold[:1] == "[" and gold[-1:] == "]" and gold.count("[") == 1 and "," in gold:
        separator = ", " if ", " in gold else ","
        return Elements(texts=gold[1:-1].split(separator), separator=separator, opening="[", closing="]")
    if gold[:1] in "[{":
        return Elements()
    # The first that leaves no element empty: lines before commas, and spaces last.
    for separator in _SEPARATORS:
        texts = gold.split(separator)
        is_formula = separator == " " and _FORMULA.search(gold)
        if len(texts) > 1 and all(texts) and not is_formula:
            return Elements(texts=texts, separator=separator)
    return Elements()


# Words that hold a sentence together, which a row of names or numbers has not.
_FUNCTION_WORDS = re.compile(
    r"(?<!\S)(?:[Tt]he|[Aa]n|[Ii]s|[Aa]re|[Ww]as|[Ww]ere|[Hh]as|[Hh]ave|[Oo]f|[Bb]ecause|[Tt]hat|[Ww]hich|[Ww]ith|[Ff]rom)(?!\S)"
)


def is_sentence(text: str) -> bool:
    """Returns True if the text is prose, where a word may be replaced or left out. A row of words, numbers or titles is not."""
    text = text.strip()
    if "\n" in text or len(text.split()) < 3:
        return False
    if re.search(r"[a-z][.!?]\Z", text):
        return True
    return ", " not in text and _FUNCTION_WORDS.search(text) is not None


def states(answer: str, gold: str) -> bool:
    """Returns True if an answer is the gold answer, up to case, spaces, quotes and the way a number or JSON is written."""
    first = _normal(answer)
    second = _normal(gold)
    if first == second:
        return True
    if is_number(first) and is_number(second):
        return _value(first) == _value(second)
    value = _json(first)
    return value is not None and value == _json(second)


def closeness(answer: str, gold: str) -> float:
    """How much of the right answer an answer has, from 0 to 1, by the measure that favors it most.

    Measures: the characters and the words that both have in order, the distance of two numbers, and :func:`contained`.
    """
    texts = [(gold, answer), (re.findall(r"\w+", gold), re.findall(r"\w+", answer))]
    shares = [SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in texts]
    if is_number(answer) and is_number(gold):
        first = _value(answer)
        second = _value(gold)
        shares.append(1 - abs(first - second) / max(abs(first), abs(second), _TINY))
    return max(contained(answer, gold), *shares)


def contained(answer: str, gold: str) -> float:
    """How much of an answer is the right one, which stands in it; 0 if it does not."""
    return len(gold) / len(answer) if answer and gold in answer else 0.0


def _normal(text: str) -> str:
    """The text without case, outer quotes and marks, and with single spaces."""
    return " ".join(text.strip().strip("\"'`*.$").lower().replace("−", "-").split())


def _value(text: str) -> float:
    """The value of a number as people write it: with commas, a dollar sign or a percent sign."""
    bare = text.strip().replace(",", "").replace("$", "")
    number = number_in(bare.rstrip("%"))
    return number / 100 if bare.endswith("%") else number


def _json(text: str) -> Any:
    """The JSON value of a text, None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_object(text: str) -> Json:
    """The JSON object that a text is; empty if it is not one."""
    return as_mapping(_json(text))


@frozen_record
class Others:
    """Golds of all tasks, to draw wrong answers of the right form from."""

    golds: Sequence[str]
    _drawn_from: dict[str, list[str]] = field(default_factory=dict[str, list[str]], init=False, compare=False)

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each gold stands."""
        return Counter(self.golds)

    @cached_property
    def shared(self) -> frozenset[str]:
        """Words and signs that nearly all golds have: they are the form of an answer and say nothing about its task."""
        counts: Counter[str] = Counter()
        for gold in self.golds:
            counts.update(set(_WORD_OR_SIGN.findall(gold)))
        return frozenset(piece for piece, count in counts.items() if count >= _NEARLY_ALL * len(self.golds))

    @cached_property
    def objects(self) -> list[Json]:
        """The golds that are JSON objects."""
        return list(filter(is_table, map(_json, self.golds)))

    @cached_property
    def labels(self) -> list[str]:
        """The closed set of answers, most frequent first; empty if the set is not closed."""
        most = min(max(2, len(self.golds) // 6), _MOST_LABELS)
        if len(self.counts) > most:
            return []
        return [label for label, _ in self.counts.most_common()]

    def another(self, gold: str, rng: Random) -> str | None:
        """A gold of another task that is not this one, of the same form if there is one."""
        if gold not in self._drawn_from:  # many operators ask, and it compares with all golds
            different = sorted(text for text in self.counts if not states(text, gold))
            near = [text for text in different if form_of(text) == form_of(gold)]
            self._drawn_from[gold] = near or different
        drawn_from = self._drawn_from[gold]
        return rng.choice(drawn_from) if drawn_from else None

    def of_form(self, gold: str) -> list[str]:
        """The golds that have the form of this one: they differ in words and numbers alone. Empty if fewer than a quarter have it."""
        same = [text for text in self.golds if form_of(text) == form_of(gold)]
        return same if 4 * len(same) >= len(self.golds) else []


def form_of(text: str) -> str:
    """The text with one letter for each word and one digit for each number."""
    return re.sub(r"\d+", "0", re.sub(r"[A-Za-z]+", "a", text))


_UNIT = re.compile(r"\s+[A-Za-z]+\Z")
_FENCE = re.compile(r"```(?:python|py)?\n(.*?)```", re.S)


@frozen_record
class Gold:
    """A right answer, parsed once, with its task and the golds of all tasks. All operators take it."""

    task: TextTask
    others: Others

    @property
    def text(self) -> str:
        """The answer as the rows give it."""
        return self.task.answer

    @property
    def prompt(self) -> str:
        """The question."""
        return self.task.prompt

    @cached_property
    def bare(self) -> str:
        """The text without space around it."""
        return self.text.strip()

    @property
    def is_program(self) -> bool:
        """The answer is a program."""
        return bool(self.statements)

    @property
    def is_number(self) -> bool:
        """The answer is one number without a unit."""
        return is_number(self.bare)

    @cached_property
    def is_option(self) -> bool:
        """The answer is one of a closed set."""
        return self.text in self.others.labels

    @property
    def is_structure(self) -> bool:
        """The answer is a list or an object."""
        return self.bare[:1] in ("[", "{")

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
    def object(self) -> Json:
        """The JSON object; empty if it is not one."""
        return json_object(self.text)

    @cached_property
    def elements(self) -> Elements:
        """The elements of a list-like answer."""
        return elements_of(self.text)

    @cached_property
    def code(self) -> str:
        """The program, without its fence."""
        fenced = _FENCE.search(self.text)
        return fenced[1] if fenced else self.text

    @cached_property
    def statements(self) -> Sequence[ast.stmt]:
        """The statements of a program that defines, imports or prints something; empty if it is not a program."""
        try:
            body = ast.parse(self.code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # of any text: null bytes, deep brackets
            return []
        # A number, a name or a list is Python too.
        return body if any(map(_does_something, body)) else []

    def another(self, rng: Random) -> str | None:
        """The gold of another task."""
        return self.others.another(self.text, rng)


def _does_something(statement: ast.stmt) -> bool:
    """The statement defines, imports or prints."""
    match statement:
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
        case _:
            return False
