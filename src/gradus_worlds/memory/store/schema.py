"""What a memory is made of: a core summary and named banks of short entries, with the limits that hold for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradus.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The banks of a memory (name -> what belongs there) and its limits.

    ``core_tokens`` bounds the core in words and punctuation marks, ``entry_words`` an entry in words; the two character
    limits hold for text that is not written with spaces. Nothing is ever cut to fit: what is too long is refused.
    """

    name: str
    banks: Mapping[str, str] = field(default_factory=dict)
    core_tokens: int = 512
    core_characters: int = 8192
    entry_words: int = 48
    entry_characters: int = 768


NINE_BANKS = Schema(
    name="nine-banks",
    banks={
        "sensory_lifestyle": "tastes, food, clothes, habits",
        "culture_entertainment": "music, books, films, sport",
        "cognition_work": "work, study, skills",
        "values": "beliefs, causes, aims",
        "physiology_health": "body, health, sleep",
        "resource_economic": "money, things owned",
        "social_interpersonal": "family, friends, colleagues",
        "spatiotemporal_context": "places, dates, journeys",
        "psychological_defense": "fears, moods, coping",
    },
)

# The banks of the Mem-alpha paper, arXiv 2509.25911: a core summary, facts, and events in time.
PAPER = Schema(
    name="paper",
    banks={"semantic": "facts that hold regardless of time", "episodic": "events, each with its time"},
)

SCHEMAS: Mapping[str, Schema] = {schema.name: schema for schema in (NINE_BANKS, PAPER)}


def find_schema(name: str) -> Schema:
    """The schema called ``name``; a ConfigError names those that there are."""
    if name not in SCHEMAS:
        raise ConfigError(f"unknown memory schema {name!r}; there are {', '.join(SCHEMAS)}")
    return SCHEMAS[name]
