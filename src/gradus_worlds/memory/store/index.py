"""The index of a memory: BM25 over entries and over banks, from the postings of a query's tokens.

The scores are those of one fresh index over all live entries (Lucene's BM25). Entries are short (48 words at most), so their
length is not normalized (b = 0). Banks are of any length, so theirs is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

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
        """Take in an entry that is not there."""
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
        scores: dict[str, float] = dict.fromkeys(lengths, 0.0)
        for holders in self._holders(tokens):
            counts: Counter[str] = Counter()
            for entry_id, count in holders.items():
                counts[self._bank_of[entry_id]] += count
            weight = inverse_document_frequency(len(lengths), len(counts))
            for bank, count in counts.items():
                damping = K1 * (1 - BANK_B + BANK_B * lengths[bank] / mean_length)
                scores[bank] += weight * count / (count + damping)
        ranked = [(bank, score) for bank, score in scores.items() if score > 0]
        return sorted(ranked, key=lambda item: -item[1])[:k]

    def rank_entries(
        self, tokens: Sequence[str], n: int, banks: Collection[str] | None = None
    ) -> list[tuple[int, float]]:
        """The ``n`` best entries as (id, score), best first, of ``banks`` or of all; never one with score 0.

        Of two entries with the same score the newer one comes first.
        """
        scores: dict[int, float] = {}
        for holders in self._holders(tokens):
            weight = inverse_document_frequency(len(self._bank_of), len(holders))
            for entry_id, count in holders.items():
                scores[entry_id] = scores.get(entry_id, 0.0) + weight * count / (count + K1)
        found = [
            (entry_id, round(score, 5))
            for entry_id, score in scores.items()
            if banks is None or self._bank_of[entry_id] in banks
        ]
        return sorted(found, key=lambda item: (-item[1], -item[0]))[:n]

    def _holders(self, tokens: Sequence[str]) -> list[Mapping[int, int]]:
        """For each token that is held: entry id -> how often."""
        return [held for token in sorted(set(tokens)) if (held := self._postings.get(token))]
