"""Hidden values that can be read off what is shown.

A hidden value that is shown somewhere is not yet a leak: the question may list all labels, and a right answer may be a word of the
text. A leak is a *place* at which each task shows its own hidden value, and hardly ever another task's. A place is a path in the
structured observation, or one in the text: after the same word, or at the end. A hidden key is a leak by its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradus.stats import wilson

_LAST = 3  # words of a text whose place is a place also where its questions differ in length
_TELLING = 4  # decimals that make a number too particular to stand somewhere by chance
_LEAST_OWN = 0.5  # a place that shows the hidden value less often than this gives little away
_LEAST_GAP = 0.25  # by which own values must stand there more often than another task's
_WORD = re.compile(r"\S+")
_BEFORE = re.compile(r"^[^\w-]*(?:[A-Za-z_]+[=:])?[^\w-]*")  # punctuation and a name before a value
_NAME = re.compile(r"[^\w-]*[A-Za-z_]+[=:]")
_PUNCTUATION = "()[]{}.,:;=\"'"


def telling_places(shown: Sequence[Sequence[tuple[str, Any]]], hidden: Sequence[Mapping[str, Any]]) -> list[str]:
    """Places that show hidden values, one sentence a hidden key. ``shown``: of each task, places and what stands there."""
    problems: list[str] = []
    places = Counter(place for each in shown for place, _ in each)
    by_place = [dict(each) for each in shown]
    for key in dict.fromkeys(key for each in hidden for key in each):
        values = [[leaf for _, leaf in walk(each.get(key)) if _is_worth(leaf)] for each in hidden]
        for place in places:
            column = [each.get(place) for each in by_place]
            if place.startswith("the text"):
                where = told_at([str(text or "") for text in column], values)
            else:
                where = "" if _shows(column, values, _equal) else None
            if where is not None:
                example = next(value for each in values for value in each)
                problems.append(f"hidden {key} (as {example!r}) is in {place}{where}")
                break
    return problems


def told_at(texts: Sequence[str], values: Sequence[Sequence[Any]]) -> str | None:
    """The place in the texts that shows each task's own value, in words, or None. ``values``: the hidden values of each task.

    A place follows the same word, or is one of the last three words. Where the last words are options or labels, they
    are one task's value about as often as another's, and no leak.
    """
    places = [_places(text) for text in texts]
    for place, count in Counter(place for there in places for place in there).most_common():
        if count <= _LEAST_OWN * len(texts):
            break
        column = [text[there[place] :] if place in there else None for text, there in zip(texts, places, strict=True)]
        if _shows(column, values, _begins):
            return place
    return None


def _places(text: str) -> dict[str, int]:
    """Where the places of a text are: after a word or a name when it first stands there, and the last words."""
    words = list(_WORD.finditer(text))
    places: dict[str, int] = {}
    for index, word in enumerate(words):
        before = words[index - 1].group() if index else ""
        if before and not any(character.isdigit() for character in before):
            places.setdefault(f" after {before!r}", word.start())
        if prefix := _NAME.match(word.group()):
            places.setdefault(f" after {prefix.group()!r}", word.start())
        if len(words) - index <= _LAST:
            places[f", word from the end {len(words) - index}"] = word.start()
    return places


def _begins(shown: Any, value: Any) -> bool:
    """Returns True if a text begins with the value, after punctuation and a name. A number counts as precisely as it is shown."""
    if not isinstance(shown, str):
        return False
    text = _BEFORE.sub("", shown, count=1)
    if isinstance(value, str):
        rest = text[len(value) :]
        return text.startswith(value.strip(_PUNCTUATION)) and not (rest[:1].isalnum())
    number = re.match(r"-?\d+\.\d+", text)
    if number is None:
        return False
    decimals = len(number.group().partition(".")[2])
    return decimals >= _TELLING and round(float(value), decimals) == float(number.group())


def _equal(shown: Any, value: Any) -> bool:
    if isinstance(value, str):
        return shown == value
    return isinstance(shown, float) and round(shown, 9) == round(float(value), 9)


def _shows(column: Sequence[Any], values: Sequence[Sequence[Any]], same: Callable[[Any, Any], bool]) -> bool:
    """Returns True if the column holds its own task's value, and hardly ever the next tasks' values."""
    n = len(column)
    own = sum(any(same(shown, value) for value in each) for shown, each in zip(column, values, strict=True))
    if own <= _LEAST_OWN * n:  # as most places: no lower bound of a share lies above it
        return False
    others = [
        any(same(shown, value) for value in values[(i + step) % n])
        for i, shown in enumerate(column)
        for step in (1, 2, 3)
        if n > step
    ]
    low = wilson(own, n).low or 0.0
    return low > _LEAST_OWN and low - sum(others) / max(1, len(others)) > _LEAST_GAP


def _is_worth(leaf: Any) -> bool:
    """A text, or a number that is too particular to stand somewhere by chance."""
    if isinstance(leaf, str):
        return bool(leaf.strip())
    return isinstance(leaf, float) and abs(leaf - round(leaf, _TELLING - 1)) > 1e-9


def walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths and leaves of nested mappings and lists."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from walk(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from walk(inner, (*path, index))
    else:
        yield path, value
