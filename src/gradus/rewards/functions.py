"""The built-in reward functions. All have TRL's signature and take strings as well as chat messages.

Those with settings are made by a function (``length(limit=200)``); ``component_name`` is what the reward calls them,
``component_range`` the rewards of no success and of full success (0 and 1 if it has none).
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gradus.core import ConfigError
from gradus.core.calls import without_thoughts
from gradus.core.files import read_json
from gradus.core.values import Json
from gradus.rewards.answers import AnswerReading, gold_answer, read_answer, read_final, same_answer, without_reasoning
from gradus.rewards.compose import RewardFunction, completion_text

_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_FENCED_JSON = re.compile(r"```(?:json)?(.*)```", re.DOTALL | re.IGNORECASE)
_STRICT = re.compile(r"\s*<reasoning>(.+?)</reasoning>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


F = TypeVar("F", bound=Callable[..., Any])
Answers = Sequence[Any]  # prompts or completions, as strings or as chat messages


def _component(name: str, low: float = 0.0, high: float = 1.0) -> Callable[[F], F]:
    """Names a reward function's component, and its rewards of no success and of full success."""

    def describe(function: F) -> F:
        vars(function).update(component_name=name, component_range=(low, high))
        return function

    return describe


def _of_text(name: str, low: float = 0.0, high: float = 1.0) -> Callable[[Callable[[str], float]], RewardFunction]:
    """Makes a reward function of a function that scores one text."""

    def make(score: Callable[[str], float]) -> RewardFunction:
        def reward(prompts: Answers, completions: Answers, **columns: Any) -> list[float]:
            return [score(completion_text(completion)) for completion in completions]

        # functools.wraps would also set __wrapped__, and inspect would then report the signature of ``score``.
        for name_of in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(reward, name_of, getattr(score, name_of))
        return _component(name, low, high)(reward)

    return make


@_component("correct")
def correctness(prompts: Answers, completions: Answers, answer: Answers, **columns: Any) -> list[float | None]:
    """1 if the marked answer states the gold value, else 0; None if the data set has no answer."""
    return _correct(completions, answer, read_answer)


@_component("correct")
def final_answer(prompts: Answers, completions: Answers, answer: Answers, **columns: Any) -> list[float | None]:
    """1 if the last sentence states the gold value, with or without marks, else 0; None if the data set has no answer."""
    return _correct(completions, answer, read_final)


def _correct(completions: Answers, golds: Answers, read: Callable[[str], AnswerReading]) -> list[float | None]:
    """Compares the answer that ``read`` finds in each completion with the gold answer of its row."""
    values: list[float | None] = []
    for completion, cell in zip(completions, golds, strict=True):
        gold = "" if cell is None else gold_answer(str(cell))
        if not gold:
            values.append(None)
            continue
        answer = read(completion_text(completion)).text
        values.append(float(answer is not None and same_answer(answer, gold)))
    return values


@_of_text("format")
def strict_format(text: str) -> float:
    """1 if the completion is one reasoning block and one answer block, neither empty, and nothing else but thoughts."""
    return float(is_strict_format(text))


def is_strict_format(text: str) -> bool:
    """True if ``text``, without thoughts, is exactly ``<reasoning>...</reasoning> <answer>...</answer>``, every tag once.

    >>> is_strict_format("<reasoning> 1 + 1 = 2 </reasoning> <answer> 2 </answer>")
    True
    >>> is_strict_format("<reasoning> hm </reasoning> <answer> 2 </answer> there!")
    False
    """
    text = without_thoughts(text)
    # The pattern alone would take a second answer block for text within the first.
    if any(text.count(tag) != 1 for tag in _TAGS):
        return False
    match = _STRICT.fullmatch(text)
    if match is None:
        return False
    reasoning, answer = match.groups()
    return bool(reasoning.strip() and answer.strip())


@_of_text("incremental_format")
def incremental_format(text: str) -> float:
    """0.25 for each of the four tags that stands exactly once; minus 0.01 a character after the end, 0.5 at most."""
    visible = without_thoughts(text)
    tags = sum(visible.count(tag) == 1 for tag in _TAGS)
    # Without the last tag nothing stands behind it; the whole text would be in ``after``.
    _, end, after = visible.rpartition(_TAGS[-1])
    too_much = len(after.strip()) if end else 0
    return 0.25 * tags - min(0.01 * too_much, 0.5)


def reads_tags(function: RewardFunction) -> bool:
    """Says if a reward reads ``<answer>`` tags, so that prompts have to ask for them: a built-in that does, or code that names the tag."""
    if function in (correctness, strict_format, incremental_format):
        return True
    module = getattr(function, "__module__", None) or ""  # None for code that was typed
    if module.startswith("gradus."):
        return False
    file: Any = sys.modules.get(module, function)  # the tag may stand in a helper beside it
    for code in (file, function, type(function)):
        with suppress(OSError, TypeError):
            return "<answer>" in inspect.getsource(code)
    return False


def length(*, limit: int, margin: int | None = None) -> RewardFunction:
    """0 up to ``limit - margin`` tokens, falling to -1 at ``limit`` and beyond (words, if no token ids are known).

    ``margin`` is a fifth of the limit unless given. Source: arXiv 2503.14476, soft overlong punishment.
    """
    margin = max(limit // 5, 1) if margin is None else margin
    if not 0 < margin <= limit:
        raise ConfigError(f"length margin must be between 1 and the limit of {limit}, got {margin}")

    free = limit - margin

    @_component("length", -1.0, 0.0)
    def too_long(
        prompts: Answers, completions: Answers, completion_ids: Sequence[Sequence[int]] = (), **columns: Any
    ) -> list[float]:
        penalties: list[float] = []
        rows = completion_ids or [()] * len(completions)
        for ids, completion in zip(rows, completions, strict=True):
            size = len(ids) or len(completion_text(completion).split())
            beyond = max(size - free, 0)
            penalties.append(-min(beyond / margin, 1.0))
        return penalties

    return too_long


def repetition(*, ngram: int = 3) -> RewardFunction:
    """Minus the share of n-grams of words that are repeats, in (-1, 0]. Source: arXiv 2502.03373, app. C.2."""
    _require_ngram("repetition", ngram)

    @_of_text("repetition", -1.0, 0.0)
    def repeats(text: str) -> float:
        grams = _grams(text, ngram)
        if not grams:
            return 0.0
        return len(set(grams)) / len(grams) - 1.0

    return repeats


def diversity(*, ngram: int = 2) -> RewardFunction:
    """The share of a completion's n-grams of words that no other completion of the same prompt has, in [0, 1].

    It pays for being different, not for being right: keep its weight far below that of the task. A completion that stands alone, or
    has fewer words than ``ngram``, gets 0.
    """
    _require_ngram("diversity", ngram)

    @_component("diversity")
    def different(prompts: Answers, completions: Answers, **columns: Any) -> list[float]:
        names = [str(prompt) for prompt in prompts]
        members = Counter(names)
        grams = [set(_grams(completion_text(completion), ngram)) for completion in completions]
        holders: Counter[tuple[str, tuple[str, ...]]] = Counter()  # completions of a prompt that have an n-gram
        for name, row in zip(names, grams, strict=True):
            holders.update((name, gram) for gram in row)
        values: list[float] = []
        for name, row in zip(names, grams, strict=True):
            alone = sum(holders[name, gram] == 1 for gram in row) if members[name] > 1 else 0
            values.append(alone / max(len(row), 1))
        return values

    return different


def _require_ngram(name: str, ngram: int) -> None:
    """Raises ConfigError unless n-grams have a word at least."""
    if ngram < 1:
        raise ConfigError(f"{name} ngram must be at least 1, got {ngram}")


def _grams(text: str, n: int) -> list[tuple[str, ...]]:
    """Every ``n`` words that follow each other, in any case."""
    words = text.lower().split()
    starts = range(len(words) - n + 1)
    return [tuple(words[start : start + n]) for start in starts]


def style(pattern: str, *, name: str = "style", present: float = 1.0, absent: float = 0.0) -> RewardFunction:
    """``present`` if the regular expression matches in the completion, else ``absent``. Raises ConfigError on a bad pattern."""
    try:
        compiled = re.compile(pattern, re.DOTALL | re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"style pattern {pattern!r} is not a regular expression: {error}") from error

    @_of_text(name, min(present, absent), max(present, absent))
    def matches(text: str) -> float:
        return present if compiled.search(text) else absent

    return matches


def json_schema(schema: Json | str, *, name: str = "json_schema") -> RewardFunction:
    """1 if the answer (the marked one, else all outside the reasoning) is JSON that fits the schema, else 0.

    ``schema`` is a JSON schema or the path of a file that holds one. Raises StorageError for a file that cannot be read.
    """
    from jsonschema import SchemaError, validators

    rules: Any = read_json(Path(schema)) if isinstance(schema, str) else schema
    kind = validators.validator_for(rules)
    try:
        kind.check_schema(rules)
    except SchemaError as error:
        raise ConfigError(f"json_schema needs a JSON schema: {error.message}") from None
    validator = kind(rules)

    @_of_text(name)
    def fits(text: str) -> float:
        body = read_answer(text).text or without_reasoning(text)
        fenced = _FENCED_JSON.fullmatch(body.strip())
        try:
            return float(validator.is_valid(json.loads(fenced[1].strip() if fenced else body)))
        except (ValueError, RecursionError):  # also nested too deep
            return 0.0

    return fits
