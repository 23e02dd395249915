"""Training sequences of random tokens, for tests of what is computed from them."""

from __future__ import annotations

import numpy as np

from gradus.training.data.sequences import TrainingSequence

__all__ = ["random_sequences"]


def random_sequences(
    seed: int, *, groups: int = 3, members: int = 3, prefix: int = 20, suffix: int = 12, spread: int = 4
) -> list[TrainingSequence]:
    """Groups with a shared prefix and random sampled tokens behind it, of unequal lengths."""
    rng = np.random.default_rng(seed)
    found: list[TrainingSequence] = []
    for group in range(groups):
        shared = rng.integers(5, 200, prefix + int(rng.integers(0, spread + 1)))
        for _ in range(members):
            own = rng.integers(5, 200, max(1, suffix + int(rng.integers(-spread, spread + 1))))
            ids = np.concatenate([shared, own])
            places = len(shared) + rng.choice(len(own), max(1, len(own) // 2), replace=False)
            positions = np.sort(places).astype(np.int64)
            found.append(
                TrainingSequence(
                    key=(group, 0),
                    episode=len(found),
                    ids=ids.astype(np.int64),
                    positions=positions,
                    logprobs=rng.normal(-3.0, 0.1, len(positions)),
                    turns=np.zeros(len(positions), dtype=np.int64),
                    offsets=np.arange(len(positions)),
                )
            )
    return found
