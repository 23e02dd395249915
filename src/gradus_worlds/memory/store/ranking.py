"""BM25 over entries and over banks, computed from the postings of a query's tokens.

The scores are those of one fresh index over all live entries (Lucene's BM25). Entries are short (48 words at most), so their
length is not normalized (b = 0). Banks are of any length, so theirs is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
