"""BM25 (Lucene's form) over the entries of a memory or over its banks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")
K1 = 1.2  # how soon a word that is repeated counts no more; Lucene's
# Entries are short (48 words at most), so their length is not normalized (b = 0). Banks are of any length, so theirs is.
ENTRY_B = 0.0
BANK_B = 0.75


def inverse_document_frequency(documents: int, holding: int) -> float:
    """Lucene's BM25 idf, never negative: ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def bm25(documents: Mapping[K, Mapping[str, int]], query: Sequence[str], b: float) -> dict[K, float]:
    """The scores of the documents (token -> count) that have a token of the query. ``b``: how far length is normalized."""
    lengths = {key: sum(counts.values()) for key, counts in documents.items()}
    mean_length = sum(lengths.values()) / max(1, len(lengths))
    scores: dict[K, float] = {}
    # Sorted, so that sums are the same on every machine.
    for token in sorted(set(query)):
        holders = [key for key, counts in documents.items() if token in counts]
        weight = inverse_document_frequency(len(documents), len(holders))
        for key in holders:
            count = documents[key][token]
            damping = K1 * (1 - b + b * lengths[key] / mean_length)
            scores[key] = scores.get(key, 0.0) + weight * count / (count + damping)
    return scores
