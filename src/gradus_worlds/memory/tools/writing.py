"""Writes calls: compact, and in fragments that a nano tokenizer can have as one word each.

What is written is plain JSON. Between the fixed fragments and the free text stands a space, which the memory evens out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from gradus.core import child_rng
from gradus_worlds.memory.store.memory import Schema

NOOP = '{"name":"memory_noop","arguments":{}}'
_END = '"}}'
_MOST_REFUSALS = 8  # told of different ones in a turn
_RANDOM_WORDS = ("city", "friend", "work", "dish", "fear", "unknown", "now", "is", "yes", "no", "never", "always")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _head(tool: str, bank: str) -> str:
    """The beginning of a call, up to its first free text."""
    text = "content" if tool == "insert" else "old_content"
    return f'{{"name":"memory_{tool}","arguments":{{"category":{json.dumps(bank)},"{text}":"'


_NEW_CONTENT = '","new_content":"'
_CORE_HEAD = '{"name":"core_memory_update","arguments":{"content":"'


def write_insert(bank: str, content: str) -> str:
    """A ``memory_insert`` call.

    >>> write_insert("values", "Ann cause rivers")
    '{"name":"memory_insert","arguments":{"category":"values","content":" Ann cause rivers "}}'
    """
    return f"{_head('insert', bank)} {_quoted(content)} {_END}"


def write_update(bank: str, old: str, content: str) -> str:
    """A ``memory_update`` call of the entry that holds ``old``: to write words again is easier to learn than to find a number."""
    return f"{_head('update', bank)} {_quoted(old)} {_NEW_CONTENT} {_quoted(content)} {_END}"


def write_delete(bank: str, old: str) -> str:
    """A ``memory_delete`` call of the entry that holds ``old``."""
    return f"{_head('delete', bank)} {_quoted(old)} {_END}"


def entry_name(content: str) -> str:
    """Returns what names an entry in a call: who and what, its first two words.

    >>> entry_name("Tavo city Reku , formerly Mila")
    'Tavo city'
    """
    return " ".join(content.split()[:2])


def write_core(content: str) -> str:
    """A ``core_memory_update`` call."""
    return f"{_CORE_HEAD} {_quoted(content)} {_END}"


def fragments(banks: Iterable[str]) -> list[str]:
    """The fixed stretches of every call over these banks, none of which holds a space."""
    heads = [_head(tool, bank) for bank in banks for tool in ("insert", "update", "delete")]
    return [NOOP, _CORE_HEAD, _NEW_CONTENT, _END, *heads]


def system_prompt_of(schema: Schema) -> str:
    """The rules, short enough to be read again at every chunk."""
    return (
        "You read a dialogue in chunks, once, and keep a memory to answer questions from. Answer with JSON calls, one a line: "
        f"{_head('insert', 'CATEGORY')}TEXT{_END} {_head('update', 'CATEGORY')}OLD{_NEW_CONTENT}TEXT{_END} "
        f"{_head('delete', 'CATEGORY')}OLD{_END} {_CORE_HEAD}TEXT{_END} {NOOP} "
        f"CATEGORY:{','.join(schema.banks)} TEXT:who,what,value;{schema.entry_words}-words-at-most "
        'OLD:words-of-one-entry-only;or-"entry_id":ID Memory:TEXT|CATEGORY|ID'
    )


def refusals(messages: Iterable[str]) -> list[str]:
    """Returns what is told of refused calls: each message once, the first few and how many more. An answer may hold a hundred broken calls,
    and a model would read nothing but them in its next turn."""
    different = list(dict.fromkeys(messages))
    more = len(different) - _MOST_REFUSALS
    return different if more <= 0 else [*different[:_MOST_REFUSALS], f"{more} more"]


def random_answer(schema: Schema, seed: int) -> str:
    """Some legal answer, out of ``seed``: a call of a random kind with a random text, for search and hygiene."""
    rng = child_rng(seed, "memory-random-answer")
    bank = rng.choice(list(schema.banks))
    text = " ".join(rng.choice(_RANDOM_WORDS) for _ in range(rng.randint(1, 12)))
    return rng.choice((NOOP, write_insert(bank, text), write_core(text), write_delete(bank, text)))
