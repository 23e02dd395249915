"""Training sequences of random tokens, for tests of what is computed from them."""

import numpy as np
import torch

from gradus.training.data.sequences import TrainingSample

__all__ = ["random_sequences"]


def random_sequences(
    seed: int, *, groups: int = 3, members: int = 3, prefix: int = 20, suffix: int = 12, spread: int = 4
) -> list[TrainingSample]:
    """Groups with a shared prefix and random sampled tokens after it, of unequal lengths."""
    rng = np.random.default_rng(seed)
    samples: list[TrainingSample] = []
    for group in range(groups):
        shared = rng.integers(5, 200, prefix + int(rng.integers(0, spread + 1)))
        for _ in range(members):
            own = rng.integers(5, 200, max(1, suffix + int(rng.integers(-spread, spread + 1))))
            ids = np.concatenate([shared, own])
            places = len(shared) + rng.choice(len(own), max(1, len(own) // 2), replace=False)
            positions = np.sort(places).astype(np.int64)
            samples.append(
                TrainingSample(
                    key=(group, 0),
                    episode=len(samples),
                    ids=torch.from_numpy(ids.astype(np.int64)),
                    positions=torch.from_numpy(positions),
                    logprobs=torch.from_numpy(rng.normal(-3.0, 0.1, len(positions))),
                    turns=torch.zeros(len(positions), dtype=torch.int64),
                    offsets=torch.arange(len(positions)),
                )
            )
    return samples
