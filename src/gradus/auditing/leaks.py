"""Hidden values that can be read off what is shown.

A hidden value that is shown somewhere is not yet a leak: the question may list all labels, and a right answer may be a word of the
text. A leak is a *place* at which most tasks show their own hidden value, and hardly ever that of the next three. A place is a path in the
structured observation, or one in the text: behind the same word, or among the last three.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradus.stats import wilson

_LAST = 3  # words of a text whose place is a place also where its questions differ in length
_TELLING = 4  # decimals that make a number too particular to stand somewhere by chance
_LEAST_OWN = 0.5  # a place that shows the hidden value less often than this gives little away
_LEAST_GAP = 0.25  # by which own values must stand there more often than another task's
_BEFORE = re.compile(r"^[^\w-]*(?:[A-Za-z_]+[=:])?[^\w-]*")  # punctuation and a name before a value


def telling_place(shown: Sequence[Mapping[str, Any]], hidden: Sequence[Sequence[Any]]) -> str | None:
    """The place that shows hidden values, or None. ``shown``: of each task, what stands at each place."""
    n = len(shown)
    for place, count in Counter(place for each in shown for place in each).most_common():
        if count <= _LEAST_OWN * n:
            return None
        column = [each.get(place) for each in shown]
        own = sum(map(_is_shown, column, hidden))
        others = sum(sum(map(_is_shown, column, [*hidden[step:], *hidden[:step]])) / 3 for step in (1, 2, 3))
        low = wilson(own, n).low or 0.0
        if low > _LEAST_OWN and low - others / n > _LEAST_GAP:
            return place
    return None


def places_of_text(text: str, name: str) -> dict[str, str]:
    """The rest of the text from each of its places: behind a word when it first stands there, and from each of the last words."""
    words = list(re.finditer(r"\S+", text))
    places: dict[str, str] = {}
    for index, word in enumerate(words):
        rest = text[word.start() :]
        before = words[index - 1].group() if index else ""
        if before and not any(character.isdigit() for character in before):
            places.setdefault(f"{name} after {before!r}", rest)
        if named := re.match(r"[^\w-]*[A-Za-z_]+[=:]", word.group()):
            places.setdefault(f"{name} after {named.group()!r}", rest)
        if len(words) - index <= _LAST:
            places[f"{name}, word from the end {len(words) - index}"] = rest
    return places


def _is_shown(shown: Any, hidden: Sequence[Any]) -> bool:
    """Returns True if this begins with one of the values, after punctuation and a name. A number counts as precisely as it is shown."""
    text = _BEFORE.sub("", str(shown), count=1)
    for value in hidden:
        if isinstance(value, str):
            bare = value.strip("()[]{}.,:;=\"' ")
            if bare and text.startswith(bare) and not text[len(value) : len(value) + 1].isalnum():
                return True
        elif isinstance(value, float) and (number := re.match(r"-?\d+\.\d+", text)):
            decimals = len(number.group().partition(".")[2])
            if decimals >= _TELLING and round(value, decimals) == round(float(number.group()), decimals):
                return True
    return False


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and leaves of nested mappings and lists."""
    if isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from walk(inner, (*path, str(key)))
    else:
        yield path, value
