"""The index of a memory: BM25 over entries and over banks, from the postings of a query's tokens.

The scores are those of one fresh index over all live entries (Lucene's BM25). Entries are short (48 words at most), so their
length is not normalized (b = 0). Banks are of any length, so theirs is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")
K1 = 1.2
BANK_B = 0.75


def inverse_document_frequency(documents: int, holding: int) -> float:
    """Lucene's BM25 idf, never negative: ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


class Index:
    """The counts of tokens in each entry, kept as entries come and go."""

    def __init__(self) -> None:
        self._bank_of: dict[int, str] = {}
        self._postings: dict[str, dict[int, int]] = {}
        self._lengths: Counter[str] = Counter()

    def put(self, entry_id: int, bank: str, tokens: Sequence[str]) -> None:
        """Take in a new entry."""
        self._bank_of[entry_id] = bank
        self._lengths[bank] += len(tokens)
        for token, count in Counter(tokens).items():
            self._postings.setdefault(token, {})[entry_id] = count

    def drop(self, entry_id: int, tokens: Sequence[str]) -> None:
        """Forget an entry with these tokens."""
        self._lengths[self._bank_of.pop(entry_id)] -= len(tokens)
        for token in set(tokens):
            del self._postings[token][entry_id]

    def rank_banks(self, tokens: Sequence[str], banks: Sequence[str], k: int) -> list[tuple[str, float]]:
        """The ``k`` best banks as (bank, score), best first; a bank without any of the tokens is not among them."""
        lengths = {bank: self._lengths[bank] for bank in banks if self._lengths[bank]}
        mean_length = sum(lengths.values()) / max(1, len(lengths))
        postings: list[Counter[str]] = []
        for counts in self._postings_of(tokens):
            by_bank: Counter[str] = Counter()
            for entry_id, count in counts.items():
                by_bank[self._bank_of[entry_id]] += count
            postings.append(by_bank)
        dampings = {bank: K1 * (1 - BANK_B + BANK_B * length / mean_length) for bank, length in lengths.items()}
        scores = _scores(postings, len(lengths), dampings.__getitem__)
        ranked = [(bank, scores[bank]) for bank in lengths if bank in scores]
        return sorted(ranked, key=lambda item: -item[1])[:k]

    def rank_entries(
        self, tokens: Sequence[str], n: int, banks: Collection[str] | None = None
    ) -> list[tuple[int, float]]:
        """The ``n`` best entries as (id, score), best first, of ``banks`` or of all; never one with score 0.

        Of two entries with the same score the newer one comes first.
        """
        scores = _scores(self._postings_of(tokens), len(self._bank_of), lambda _: K1)
        ranked = [(entry_id, round(score, 5)) for entry_id, score in scores.items()]
        if banks is not None:
            ranked = [item for item in ranked if self._bank_of[item[0]] in banks]
        return sorted(ranked, key=lambda item: (-item[1], -item[0]))[:n]

    def _postings_of(self, tokens: Sequence[str]) -> list[Mapping[int, int]]:
        """For each token that an entry has: entry id -> how often."""
        postings = [self._postings.get(token) for token in sorted(set(tokens))]
        return [counts for counts in postings if counts]


def _scores(postings: Iterable[Mapping[K, int]], documents: int, damping: Callable[[K], float]) -> dict[K, float]:
    """The BM25 score of each document that has one of the tokens."""
    scores: dict[K, float] = {}
    for counts in postings:
        weight = inverse_document_frequency(documents, len(counts))
        for document, count in counts.items():
            scores[document] = scores.get(document, 0.0) + weight * count / (count + damping(document))
    return scores
