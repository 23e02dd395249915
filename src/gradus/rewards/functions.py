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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradus.core import ConfigError
from gradus.core.calls import without_thoughts
from gradus.core.files import read_json
from gradus.rewards.answers import AnswerReading, gold_answer, read_answer, read_final, same_answer, without_reasoning
from gradus.rewards.compose import RewardFunction, completion_text

_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_STRICT = re.compile(r"\s*<reasoning>(.+?)</reasoning>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


def _named(name: str, values: tuple[float, float] = (0.0, 1.0)) -> Callable[[Any], Any]:
    def rename(function: Any) -> Any:
        function.component_name, function.component_range = name, values
        return function

    return rename


@_named("correct")
def correctness(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the marked answer states the gold value, else 0; None if the data set has no answer."""
    return [_correct(completion_text(text), gold, read_answer) for text, gold in zip(completions, answer, strict=True)]


@_named("correct")
def final_answer(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the last sentence states the gold value, with or without marks, else 0; None if the data set has no answer."""
    return [_correct(completion_text(text), gold, read_final) for text, gold in zip(completions, answer, strict=True)]


def _correct(text: str, gold: Any, read: Callable[[str], AnswerReading]) -> float | None:
    expected = "" if gold is None else gold_answer(str(gold))
    if not expected:
        return None
    given = read(text).text
    return float(given is not None and same_answer(given, expected))


@_named("format")
def strict_format(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """1 if the completion is one reasoning block and one answer block, neither empty, and nothing else but thoughts."""
    return [float(is_strict_format(completion_text(text))) for text in completions]


def is_strict_format(text: str) -> bool:
    """True if ``text``, without thoughts, is exactly ``<reasoning>...</reasoning> <answer>...</answer>``, every tag once.

    >>> is_strict_format("<reasoning> 1 + 1 = 2 </reasoning> <answer> 2 </answer>")
    True
    >>> is_strict_format("<reasoning> hm </reasoning> <answer> 2 </answer> there!")
    False
    """
    text = without_thoughts(text)
    match = _STRICT.fullmatch(text) if all(text.count(tag) == 1 for tag in _TAGS) else None
    return bool(match and match[1].strip() and match[2].strip())


@_named("incremental_format")
def incremental_format(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """0.25 for each of the four tags that stands exactly once; minus 0.01 a character after the end, 0.5 at most."""
    return [_incremental(without_thoughts(completion_text(text))) for text in completions]


def _incremental(text: str) -> float:
    earned = 0.25 * sum(text.count(tag) == 1 for tag in _TAGS)
    after = len(text.rpartition(_TAGS[-1])[2].strip()) if _TAGS[-1] in text else 0
    return earned - min(0.01 * after, 0.5)


def reads_tags(function: RewardFunction) -> bool:
    """Says if a reward reads ``<answer>`` tags, so that prompts have to ask for them: a built-in that does, or code that names the tag."""
    if function in (correctness, strict_format, incremental_format):
        return True
    module = getattr(function, "__module__", None) or ""  # None for code that was typed
    if module.startswith("gradus."):
        return False
    code: Any = sys.modules.get(module, function)  # the tag may stand in a helper beside it
    for each in (code, function, type(function)):
        with suppress(OSError, TypeError):
            return "<answer>" in inspect.getsource(each)
    return False


def length(*, limit: int, margin: int | None = None) -> RewardFunction:
    """0 up to ``limit - margin`` tokens, falling to -1 at ``limit`` and beyond (words, if no token ids are known).

    ``margin`` is a fifth of the limit unless given. Source: arXiv 2503.14476, soft overlong punishment.
    """
    margin = max(limit // 5, 1) if margin is None else margin
    if not 0 < margin <= limit:
        raise ConfigError(f"length margin must be between 1 and the limit of {limit}, got {margin}")

    @_named("length", (-1.0, 0.0))
    def too_long(
        prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] = (), **columns: Any
    ) -> list[float]:
        ids = completion_ids or [()] * len(completions)
        sizes = [len(row) or len(completion_text(text).split()) for row, text in zip(ids, completions, strict=True)]
        return [-min(max(size - (limit - margin), 0) / margin, 1.0) for size in sizes]

    return too_long


def repetition(*, ngram: int = 3) -> RewardFunction:
    """Minus the share of n-grams of words that are repeats, in (-1, 0]. Source: arXiv 2502.03373, app. C.2."""
    if ngram < 1:
        raise ConfigError(f"repetition ngram must be at least 1, got {ngram}")

    @_named("repetition", (-1.0, 0.0))
    def repeats(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [_repeated_share(completion_text(text).lower().split(), ngram) for text in completions]

    return repeats


def diversity(*, ngram: int = 2) -> RewardFunction:
    """The share of a completion's n-grams of words that no other completion of the same prompt has, in [0, 1].

    It pays for being different, not for being right: keep its weight far below that of the task. A completion that stands alone, or
    has fewer words than ``ngram``, gets 0.
    """
    if ngram < 1:
        raise ConfigError(f"diversity ngram must be at least 1, got {ngram}")

    @_named("diversity")
    def different(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        grams = [_grams(completion_text(text).lower().split(), ngram) for text in completions]
        groups: dict[str, list[int]] = {}
        for place, prompt in enumerate(prompts):
            groups.setdefault(str(prompt), []).append(place)
        values = [0.0] * len(grams)
        for places in groups.values():
            held = Counter(gram for place in places for gram in grams[place])
            for place in places if len(places) > 1 else ():
                values[place] = sum(held[gram] == 1 for gram in grams[place]) / max(len(grams[place]), 1)
        return values

    return different


def _grams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + n]) for place in range(len(words) - n + 1)}


def _repeated_share(words: Sequence[str], ngram: int) -> float:
    grams = [tuple(words[place : place + ngram]) for place in range(len(words) - ngram + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


def style(pattern: str, *, name: str = "style", present: float = 1.0, absent: float = 0.0) -> RewardFunction:
    """``present`` if the regular expression matches in the completion, else ``absent``. Raises ConfigError on a bad pattern."""
    try:
        compiled = re.compile(pattern, re.DOTALL | re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"style pattern {pattern!r} is not a regular expression: {error}") from error

    @_named(name, (min(present, absent), max(present, absent)))
    def matches(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [present if compiled.search(completion_text(text)) else absent for text in completions]

    return matches


def json_schema(schema: Mapping[str, Any] | str, *, name: str = "json_schema") -> RewardFunction:
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

    @_named(name)
    def fits(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(_is_valid(completion_text(text), validator)) for text in completions]

    return fits


def _is_valid(text: str, validator: Any) -> bool:
    body = read_answer(text).text or without_reasoning(text)
    fenced = re.fullmatch(r"```(?:json)?(.*)```", body.strip(), re.DOTALL | re.IGNORECASE)
    try:
        return bool(validator.is_valid(json.loads(fenced[1].strip() if fenced else body)))
    except (ValueError, RecursionError):  # also nested too deep
        return False
