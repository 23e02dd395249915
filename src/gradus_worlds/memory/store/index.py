"""The entries of a memory with their index: BM25 over entries and over banks, from the postings of a query's tokens.

The scores are those of one fresh index over all live entries (Lucene's BM25). Entries are short (48 words at most), so their
length is not normalized (b = 0). Banks are of any length, so theirs is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gradus_worlds.memory.store.records import Entry, Operation
from gradus_worlds.memory.text import index_tokens

K1 = 1.2
BANK_B = 0.75


@dataclass(frozen=True, kw_only=True)
class Matches:
    """The live entries that hold tokens of a query.

    ``postings``: token -> entry id -> how often the entry holds the token; tokens that no entry holds are left out. ``bank_of``: the
    bank of each of these entries. ``lengths``: tokens in each bank that has any. ``documents``: number of live entries.
    """

    postings: Mapping[str, Mapping[int, int]]
    bank_of: Mapping[int, str]
    lengths: Mapping[str, int]
    documents: int


def inverse_document_frequency(documents: int, holding: int) -> float:
    """Lucene's BM25 idf, never negative: ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def rank_banks(matches: Matches, k: int) -> list[tuple[str, float]]:
    """The ``k`` best banks as (bank, score), best first; a bank without any of the tokens is not among them."""
    if not matches.lengths:
        return []
    mean_length = sum(matches.lengths.values()) / len(matches.lengths)
    scores = dict.fromkeys(matches.lengths, 0.0)
    for _, holders in sorted(matches.postings.items()):
        counts: Counter[str] = Counter()
        for entry_id, count in holders.items():
            counts[matches.bank_of[entry_id]] += count
        weight = inverse_document_frequency(len(matches.lengths), len(counts))
        for bank, count in counts.items():
            damping = K1 * (1 - BANK_B + BANK_B * matches.lengths[bank] / mean_length)
            scores[bank] += weight * count / (count + damping)
    ranked = [(bank, score) for bank, score in scores.items() if score > 0]
    return sorted(ranked, key=lambda item: -item[1])[:k]


def rank_entries(matches: Matches, n: int, banks: Collection[str] | None = None) -> list[tuple[int, float]]:
    """The ``n`` best entries as (id, score), best first, of ``banks`` or of all; never one with score 0.

    Of two entries with the same score the newer one comes first.
    """
    scores: dict[int, float] = {}
    for _, holders in sorted(matches.postings.items()):
        weight = inverse_document_frequency(matches.documents, len(holders))
        for entry_id, count in holders.items():
            scores[entry_id] = scores.get(entry_id, 0.0) + weight * count / (count + K1)
    rounded = [
        (entry_id, round(score, 5))
        for entry_id, score in scores.items()
        if banks is None or matches.bank_of[entry_id] in banks
    ]
    return sorted(rounded, key=lambda item: (-item[1], -item[0]))[:n]


def content_key(entry: Entry) -> tuple[str, str]:
    """Returns what two entries may not share: the bank and the text without case."""
    return entry.bank, entry.content.casefold()


@dataclass(kw_only=True)
class Shelf:
    """Core, live entries, log of operations, and the postings of the entries' tokens."""

    next_id: int = 1
    core: str = ""
    sequence: int = 0
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    operations: list[Operation] = field(default_factory=list[Operation])
    _by_content: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _postings: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    _lengths: Counter[str] = field(default_factory=Counter[str])

    def get(self, entry_id: int) -> Entry | None:
        """A live entry."""
        return self.entries.get(entry_id)

    def id_of(self, key: tuple[str, str]) -> int | None:
        """The live entry with this :func:`content_key`."""
        return self._by_content.get(key)

    def put(self, entry: Entry) -> None:
        """Keep an entry, in place of the one with its id."""
        old = self.entries.get(entry.id)
        if old is not None:
            self._forget(old)
        self.entries[entry.id] = entry
        self._by_content[content_key(entry)] = entry.id
        tokens = index_tokens(entry.content)
        for token, count in Counter(tokens).items():
            self._postings.setdefault(token, {})[entry.id] = count
        self._lengths[entry.bank] += len(tokens)
        self.next_id = max(self.next_id, entry.id + 1)

    def drop(self, entry_id: int) -> None:
        """Forget an entry."""
        self._forget(self.entries.pop(entry_id))

    def _forget(self, entry: Entry) -> None:
        self._by_content.pop(content_key(entry), None)
        tokens = index_tokens(entry.content)
        for token in set(tokens):
            del self._postings[token][entry.id]
        self._lengths[entry.bank] -= len(tokens)

    def log(self, operation: Operation) -> None:
        """Note that an operation was carried out."""
        self.sequence = operation.sequence
        self.operations.append(operation)

    def matches(self, tokens: Sequence[str], banks: Sequence[str]) -> Matches:
        """The entries that hold any of ``tokens``."""
        postings = {token: held for token in set(tokens) if (held := self._postings.get(token))}
        return Matches(
            postings=postings,
            bank_of={entry_id: self.entries[entry_id].bank for held in postings.values() for entry_id in held},
            lengths={bank: self._lengths[bank] for bank in banks if self._lengths[bank]},
            documents=len(self.entries),
        )
