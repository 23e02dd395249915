"""Hidden values that can be read off what is shown.

A hidden value that is shown somewhere is not yet a leak: the question may list all labels, and a right answer may be a word of the
text. A leak is a *place* at which most tasks show their own hidden value, and hardly ever that of the next three. A place is a path in the
structured observation, or one in the text: behind the same word, or among the last three.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gradus.core.values import Json
from gradus.stats import wilson

_LAST = 3  # words of a text whose place is a place also where its questions differ in length
_TELLING = 4  # decimals that make a number too particular to stand somewhere by chance
_LEAST_OWN = 0.5  # a place that shows the hidden value less often than this gives little away
_LEAST_GAP = 0.25  # by which own values must stand there more often than another task's
_NEXT = (1, 2, 3)  # tasks whose hidden values are compared
_ANSWER = re.compile(
    r"\b(answer|correct|expected|gold|key|label|output|reference|result|solution|target|truth)s?\b", re.IGNORECASE
)
_BEFORE = re.compile(r"^[^\w-]*(?:[A-Za-z_]+[=:])?[^\w-]*")  # punctuation and a name before a value
_NAMED = re.compile(r"[^\w-]*[A-Za-z_]+[=:]")

Hidden = Sequence[Any]  # the hidden values of a task


def telling_place(shown: Sequence[Json], hidden: Sequence[Hidden]) -> str | None:
    """The place that shows hidden values, one that names the answer before others, or None. ``shown``: of each task, what stands at each place."""
    places = list(_telling_places(shown, hidden))
    return next(filter(names_the_answer, places), places[0] if places else None)


def _telling_places(shown: Sequence[Json], hidden: Sequence[Hidden]) -> Iterator[str]:
    """Yields the places that show hidden values, those that most tasks have first."""
    n = len(shown)
    # The hidden values of the next tasks, for comparison: what the text shows to all, as a list of labels, is no leak.
    shifted = [[*hidden[step:], *hidden[:step]] for step in _NEXT]
    counts: Counter[str] = Counter()
    for places in shown:
        counts.update(places.keys())
    for place, count in counts.most_common():
        if count <= _LEAST_OWN * n:  # all that follow are rarer
            return
        column = [places.get(place) for places in shown]
        others = sum(_shows(column, values) / len(_NEXT) for values in shifted)
        low = wilson(_shows(column, hidden), n).low or 0.0
        if low > _LEAST_OWN and low - others / n > _LEAST_GAP:
            yield place


def names_the_answer(place: str) -> bool:
    """Returns True if the word before a place says that the answer follows. Behind any other word, to read it may be the task."""
    return _ANSWER.search(place) is not None


def _shows(column: Sequence[Any], hidden: Sequence[Hidden]) -> int:
    """Counts the tasks that show one of their hidden values at a place: what stands there begins with it, after punctuation and a name."""
    count = 0
    for shown, values in zip(column, hidden, strict=True):
        text = _BEFORE.sub("", str(shown), count=1)
        count += any(_begins(text, value) for value in values)
    return count


def places_of_text(text: str, name: str) -> dict[str, str]:
    """The rest of the text from each of its places: behind a word when it first stands there, and from each of the last words."""
    words = list(re.finditer(r"\S+", text))
    places: dict[str, str] = {}
    before = ""
    for index, word in enumerate(words):
        rest = text[word.start() :]
        # A word with a digit, as a number of the question, is another one in each task and no place.
        if before and not any(map(str.isdigit, before)):
            places.setdefault(f"{name} after {before!r}", rest)
        before = word[0]
        named = _NAMED.match(before)
        if named:
            places.setdefault(f"{name} after {named[0]!r}", rest)
        if len(words) - index <= _LAST:
            places[f"{name}, word from the end {len(words) - index}"] = rest
    return places


def _begins(text: str, value: Any) -> bool:
    """Returns True if a text begins with a value. A number counts as precisely as it is shown."""
    if isinstance(value, str):
        bare = value.strip("()[]{}.,:;=\"' ")
        # 7 is not shown where 75 stands.
        return bool(bare) and text.startswith(bare) and not text[len(value) : len(value) + 1].isalnum()
    number = re.match(r"-?\d+\.(\d+)", text)
    if number is None or not isinstance(value, float):
        return False
    decimals = len(number[1])
    return decimals >= _TELLING and round(value, decimals) == round(float(number[0]), decimals)


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and leaves of nested mappings and lists."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(cast("Sequence[Any]", value)))
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            yield from walk(inner, (*path, str(key)))
    else:
        yield path, value
