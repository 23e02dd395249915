"""A text in stretches of so many words, as :func:`~gradus_worlds.memory.text.count_words` counts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gradus_worlds.memory.text import count_words

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*")
_SPEAKER = re.compile(r"[^\W\d_][\w .'’-]{0,30}: (?=\S)")


def sentences(text: str) -> list[str]:
    """The sentences of a line.

    >>> sentences("I moved. My city is Toda.")
    ['I moved.', 'My city is Toda.']
    """
    return [part for part in _SENTENCE_END.split(text) if part]


def speaker_of(line: str) -> tuple[str, str]:
    """(who says it, with the colon, or nothing; what is said).

    >>> speaker_of("Lina: my city is Toda.")
    ('Lina: ', 'my city is Toda.')
    """
    said = _SPEAKER.match(line)
    return (said[0], line[said.end() :]) if said else ("", line)


def cut_line(line: str, words: int) -> list[str]:
    """A line as it is, or in stretches of whole sentences if it is longer than ``words``; each begins with who says it."""
    if count_words(line) <= words:
        return [line]
    speaker, said = speaker_of(line)
    room = max(1, words - count_words(speaker))
    parts = [part for sentence in sentences(said) for part in cut_words(sentence, room)]
    return [f"{speaker}{part}" for part in _packed(parts, room)]


def cut_words(text: str, words: int) -> list[str]:
    """A text in stretches of at most ``words`` words, without a thought of what they say."""
    if count_words(text) <= words:
        return [" ".join(text.split())] if text.strip() else []
    return list(_packed((piece for word in text.split() for piece in _halves(word, words)), words))


def _packed(parts: Iterable[str], words: int) -> Iterator[str]:
    """Parts joined as far as they fit."""
    held = ""
    for part in parts:
        longer = f"{held} {part}" if held else part
        if held and count_words(longer) > words:
            yield held
            longer = part
        held = longer
    if held:
        yield held


def _halves(word: str, words: int) -> list[str]:
    """A stretch without a blank may count as several words, as an address does; it is halved until it fits."""
    if len(word) < 2 or count_words(word) <= words:
        return [word]
    middle = len(word) // 2
    return [*_halves(word[:middle], words), *_halves(word[middle:], words)]
