"""Policies that come with the environment. Each answers an observation from what stands in it, like a model would."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gradus.core import Policy
from gradus.policies.scripted import Answer, policy_factory
from gradus_worlds.memory.text import count_words, cut_words
from gradus_worlds.memory.tools.writing import NOOP, write_insert

Respond = Callable[[Mapping[str, Any]], list[str]]


def _noop(data: Mapping[str, Any]) -> list[str]:
    return []


def _lines(data: Mapping[str, Any]) -> list[str]:
    """The lines of the chunk, each in pieces that an entry holds."""
    return [part for line in data["chunk"].splitlines() for part in cut_words(line, data["entry_words"])]


def _dump(data: Mapping[str, Any]) -> list[str]:
    """The chunk as it came, in as few entries as its length needs."""
    pieces: list[str] = []
    for part in _lines(data):
        longer = f"{pieces[-1]} {part}" if pieces else part
        if pieces and count_words(longer) <= data["entry_words"]:
            pieces[-1] = longer
        else:
            pieces.append(part)
    bank = data["banks"][data["index"] % len(data["banks"])]
    return [write_insert(bank, piece) for piece in pieces]


def _spam(data: Mapping[str, Any]) -> list[str]:
    """Every line as an entry, in two banks."""
    banks, lines = data["banks"], _lines(data)
    placed = [(banks[i % len(banks)], line) for i, line in enumerate(lines)]
    placed += [(banks[(i + 1) % len(banks)], line) for i, line in enumerate(lines)]
    return [write_insert(bank, line) for bank, line in placed]


def _heuristic(data: Mapping[str, Any]) -> list[str]:
    """Sentences with a name or a number in them."""
    banks, kept = data["banks"], list[str]()
    for line in data["chunk"].splitlines():
        speaker, separator, said = line.partition(": ")
        for sentence in re.split(r"(?<=[.!?])\s+", said if separator else line):
            if _tells(sentence, spoken=bool(separator)):
                kept += cut_words(f"{speaker}: {sentence}" if separator else sentence, data["entry_words"])
    return [write_insert(banks[(data["index"] + i) % len(banks)], text) for i, text in enumerate(dict.fromkeys(kept))]


def _tells(sentence: str, *, spoken: bool) -> bool:
    """A digit, or a capital that is not the beginning of what somebody says; a narrator may well begin with a name."""
    name = r"(?<!^)\b[A-Z][a-z]+" if spoken else r"\b[A-Z][a-z]+"
    return bool(re.search(r"\d", sentence) or re.search(name, sentence))


def scripted_policies(
    responses: Mapping[str, Respond] | None = None,
) -> dict[str, Callable[[str | None], Policy]]:
    """Name -> factory: those of every source, and a source's own ``responses`` in their place or beside them."""
    by_name: dict[str, Respond] = {
        "noop": _noop,
        "spam": _spam,
        "dump": _dump,
        "heuristic": _heuristic,
        "append-only": _append_lines,
        **(responses or {}),
    }
    return {name: policy_factory(name, _answer(respond)) for name, respond in by_name.items()}


def _answer(respond: Respond) -> Answer:
    """Calls as a text; no call means ``memory_noop``."""
    return lambda seen, script: "\n".join(respond(seen.data) or [NOOP])


def _append_lines(data: Mapping[str, Any]) -> list[str]:
    """Without a grammar: each line of at least five words, once, and never a change to what is there."""
    banks = data["banks"]
    kept = [line for line in dict.fromkeys(_lines(data)) if count_words(line) >= 5]
    return [write_insert(banks[(data["index"] + i) % len(banks)], line) for i, line in enumerate(kept)]
