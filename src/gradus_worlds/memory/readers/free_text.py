"""Free text as the strict reader takes it: the entity is every name of the question, the attribute any other content word of it.

The rules are made for English and for languages that write names with a capital and blanks between words. What is written without
capitals has no names: there the entries that share most with the question are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.text import content_words, index_tokens, is_run, joined, plain_words, spaced

WORD = re.compile(r"\b[^\W\d_]\w*")
DATE = re.compile(
    r"\b\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b"
    r"|\b(?:\d{1,2}\s+)?(?:January|February|March|April|May|June|July|August|September|October|November|December)"
    r"(?:\s+\d{1,2})?(?:,?\s+\d{4})?\b|\b\d{4}\b"
)
_NUMBER = re.compile(
    r"(?:(?<![^\s(])[-\u2212])?\b(?:\d[\d,.]*|one|two|three|four|five|six|seven|eight|nine|ten)\b", re.IGNORECASE
)
# Words around a value that are none themselves. A "no" is no such word: it turns what is said.
_AROUND_EN = "now today yesterday recently currently just still already also really very last this next week month year ago since named called name"
_AROUND = frozenset(_AROUND_EN.split())
_NEGATIONS = ("no", "not")
_ASKING = frozenset(("what", "when", "where", "which", "who", "whose", "whom", "how", "why", "did", "does"))
# Articles and prepositions in German, Dutch, French, Spanish, Portuguese, Italian and Russian; of use only where a question is not English.
_GERMANIC = "der die das den dem des ein eine einen einem einer am im zu zum zur bei beim aus auf mit von vom und ist het een op te van en"
_ROMANCE = "le la les l un une du de à au aux dans chez est et el los las una con y es lo al del o os as um uma em na da il gli nel di"
_RUSSIAN = "в во на с со из у к о и за от"
_AROUND_ELSEWHERE = frozenset(f"{_GERMANIC} {_ROMANCE} {_RUSSIAN}".split())


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question: the names in it, and its other content words. ``english``: whether an English word asks."""

    text: str
    names: set[str]
    attribute: set[str]
    english: bool

    @property
    def capitals(self) -> bool:
        """Whether its script has them."""
        return self.text.lower() != self.text.upper()


def asked_of(memory: Memory, question: str) -> Asked:
    """A capital makes a name; at the first word only if the memory writes it with one, or if it must be the name that an English
    question is about, as in "Ann lives where?"."""
    text = spaced(question)
    english = bool(_ASKING & set(plain_words(text)))
    capitals = [word for word in WORD.finditer(text) if word[0][0].isupper() and content_words(word[0])]
    began = WORD.search(text)
    first = next((word for word in capitals if began and word.start() == began.start()), None)
    others = [word for word in capitals if word is not first]
    if first and ((english and not others) or is_name(memory, first[0])):
        others.append(first)
    names = {token for word in others for token in content_words(word[0])}
    attribute = content_words(text) - names
    return Asked(
        text=text,
        names=names,
        attribute=attribute if english else attribute - _AROUND_ELSEWHERE or attribute,
        english=english,
    )


def about(asked: Asked, texts: Sequence[str]) -> list[int]:
    """The places of the texts that name entity and attribute."""
    words = [content_words(text) for text in texts]
    named = [place for place, held in enumerate(words) if asked.names <= held]
    if not asked.attribute:
        return named if asked.names else []
    shared = {place: len(asked.attribute & words[place]) for place in named}
    found = [place for place in named if shared[place]]
    if not asked.capitals:
        return [place for place in found if shared[place] == max(shared.values())]
    if not found and not asked.english and len(asked.names) > 1:
        return named  # nouns have capitals in German, so one of the names is the attribute
    return found


def values_in(asked: Asked, text: str, timestamp: str | None) -> list[str]:
    """What an entry adds to the question: dates for *when*, numbers for *how many*, else its words that are new, as one."""
    begins = asked.text.lower()
    if begins.startswith("when"):
        return DATE.findall(text) or DATE.findall(timestamp or "") or ([timestamp] if timestamp else [])
    if begins.startswith(("how many", "how much", "how old")):
        return _NUMBER.findall(text)
    new = " ".join(part for word in spaced(text).split() for part in _new(asked.text, word))
    return [new] if new else []


def bare(text: str, *, english: bool = True) -> tuple[str, ...]:
    """The words of an answer that make it this one and no other."""
    text = joined(text)
    around = _AROUND if english else _AROUND | _AROUND_ELSEWHERE
    words = tuple(word for word in plain_words(text) if word in _NEGATIONS)
    words += tuple(word for word in index_tokens(text) if word not in around)
    return words or plain_words(text)


def is_name(memory: Memory, word: str) -> bool:
    """Whether the memory writes a word with a capital."""
    name = word[0].upper() + word[1:]
    return any(name in WORD.findall(text) for text in texts_with(memory, word))


def texts_with(memory: Memory, word: str) -> list[str]:
    """The core and the entries that are found for a word, as far as they hold it."""
    found = [memory.core, *(hit.entry.content for hit in memory.search(word))]
    return [text for text in found if content_words(word) <= content_words(text)]


def _new(question: str, word: str) -> Iterator[str]:
    """What a word of an entry adds to the question: all of it unless it stands there, in this form or as its plural."""
    if is_run(word) and len(index_tokens(word)) < len(plain_words(word)):
        yield from _new_stretches(question, word)
        return
    meant = content_words(word)
    asked = set(plain_words(word)) <= set(plain_words(question)) or (bool(meant) and meant <= content_words(question))
    if not asked:
        yield word


def _new_stretches(question: str, run: str) -> Iterator[str]:
    """Of a stretch without blanks, the characters that make no pair with a neighbor which the question has, too."""
    units, known = plain_words(run), [pair in content_words(question) for pair in index_tokens(run)]
    held = ""
    for unit, before, behind in zip(units, [False, *known], [*known, False], strict=True):
        if not (before or behind):
            held += unit
        elif held:
            yield held
            held = ""
    if held:
        yield held
