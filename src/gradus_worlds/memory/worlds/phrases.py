"""Says things in the synthetic world by the templates of ``phrases.toml``, and reads them back. It is the grammar of the teacher."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from gradus.core import frozen_record


@frozen_record
class Attribute:
    """What a person has: a city, a friend, a fear."""

    # Its name in entries and questions.
    noun: str
    bank: str
    # Words that name it in any text.
    cues: tuple[str, ...]
    # Templates of what the person says, and of what others say of the person.
    mine: tuple[str, ...]
    theirs: tuple[str, ...]
    # Its values are written with a capital.
    proper: bool = False


@frozen_record
class _Phrases:
    attributes: Mapping[str, Attribute]
    wrappers: Mapping[str, Mapping[str, tuple[str, ...]]]
    chat: tuple[str, ...]


def _load() -> _Phrases:
    file = files("gradus_worlds.memory.worlds").joinpath("phrases.toml")
    document: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    for noun, attribute in document["attributes"].items():
        attribute["noun"] = noun
    return TypeAdapter(_Phrases).validate_python(document)


_PHRASES = _load()
ATTRIBUTES = _PHRASES.attributes
WRAPPERS = _PHRASES.wrappers  # kind -> "mine" or "theirs" -> templates
CHAT = _PHRASES.chat


@frozen_record
class Statement:
    """What a line says of a person."""

    # A key of WRAPPERS.
    kind: str
    # The person whose attribute it is.
    entity: str
    attribute: Attribute
    # None if it gives none: what was said is taken back.
    value: str | None


def sayings(attribute: Attribute) -> list[tuple[str, str]]:
    """(kind, template) of all that can be said of an attribute, its noun in its place."""
    templates = [("tell", text) for text in (*attribute.mine, *attribute.theirs)]
    for kind, voices in WRAPPERS.items():
        for texts in voices.values():
            templates += [(kind, text.replace("{a}", attribute.noun)) for text in texts]
    return templates


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template)
    return re.compile(escaped.replace(r"\{n\}", "(?P<n>[A-Za-z]+)").replace(r"\{v\}", "(?P<v>[A-Za-z]+)"))


_GRAMMAR = [
    (_pattern(template), kind, attribute) for attribute in ATTRIBUTES.values() for kind, template in sayings(attribute)
]


@lru_cache(maxsize=65536)
def read_line(line: str) -> Statement | None:
    """Returns what a line ``Speaker: text`` says; None for small talk.

    >>> statement = read_line("Tavo: my city is now Reku.")
    >>> (statement.kind, statement.entity, statement.attribute.noun, statement.value)
    ('change', 'Tavo', 'city', 'Reku')
    """
    speaker, _, text = line.partition(": ")
    for pattern, kind, attribute in _GRAMMAR:
        match = pattern.fullmatch(text)
        if match:
            parts = match.groupdict()
            return Statement(kind=kind, entity=parts.get("n", speaker), attribute=attribute, value=parts.get("v"))
    return None
