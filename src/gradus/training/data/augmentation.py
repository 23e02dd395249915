"""Changes SFT's sequences before they are learned: noise in earlier answers, and fewer turns at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gradus.training.data.sequences import TrainingSample

Pools = Mapping[int, Tensor]


def answer_pools(sequences: Sequence[TrainingSample]) -> Pools:
    """Place within an answer -> the token ids that were said there, each once. Noise is drawn from these."""
    offsets = torch.cat([sequence.offsets for sequence in sequences])
    said = torch.cat([sequence.ids[sequence.positions] for sequence in sequences])
    return {place: said[offsets == place].unique() for place in offsets.unique().tolist()}


def with_history_noise(
    sequence: TrainingSample, share: float, pools: Pools, rng: np.random.Generator
) -> TrainingSample:
    """Replace ``share`` of the answer tokens that are read; what is learned at their places stays what it was.

    Only tokens that can be something else are touched, so a stop token that ends every answer stays.
    """
    targets = sequence.targets if sequence.targets is not None else sequence.ids[sequence.positions]
    ids = sequence.ids.clone()
    noisy = torch.from_numpy(rng.random(sequence.actions) < share)
    for place, pool in pools.items():
        chosen = (noisy & (sequence.offsets == place)).nonzero()[:, 0]
        if len(pool) > 1 and len(chosen):
            ids[sequence.positions[chosen]] = torch.from_numpy(rng.choice(pool.numpy(), size=len(chosen)))
    return replace(sequence, ids=ids, targets=targets)


def short_turns(sequence: TrainingSample, turns: int) -> TrainingSample:
    """The sequence with only its first ``turns`` turns learned; what comes after them is not computed either."""
    return sequence.only(sequence.turns < sequence.turns.min() + turns)
