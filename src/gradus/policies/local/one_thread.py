"""One thread at a time makes or loads a model: all share torch's random state, and methods that transformers replaces meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

# Two threads would draw from each other's seed. Two that load would leave transformers without the method that ties a model's head to
# its embeddings, for as long as the process lives.
ONE_AT_A_TIME = RLock()


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """What torch draws in here comes from ``seed``; its state is afterwards what it was."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        yield
