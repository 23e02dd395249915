"""The records of a memory: its schema of banks and limits, an entry, an operation, and the error of a refused call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.core import GradusError


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The banks of a memory (name -> what belongs there) and its limits.

    ``core_tokens`` bounds the core in words and punctuation marks, ``entry_words`` an entry in words. What is too long is refused.
    """

    name: str
    banks: Mapping[str, str] = field(default_factory=dict)
    core_tokens: int = 512
    entry_words: int = 48


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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One short note. ``timestamp``: when it holds from, as told; ``source``: index of the chunk that it came from.

    ``created`` and ``updated`` are the memory's own clock: the date of the chunk that is read.
    """

    id: int
    bank: str
    content: str
    timestamp: str | None = None
    source: int | None = None
    importance: float = 0.5
    created: str | None = None
    updated: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One line of the log. ``kind`` is insert, update, delete or core; the entry is the one after it (before a delete)."""

    kind: str
    at: str | None = None
    entry: Entry | None = None
    core: str | None = None


class RefusedCall(GradusError):
    """A tool call that was not carried out; the message is what the policy is told."""
