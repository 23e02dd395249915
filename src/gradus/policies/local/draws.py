"""Draws from torch's one random state, which all threads of a process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_ONE_AT_A_TIME = Lock()  # two threads would draw from each other's seed


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """What torch draws in here comes from ``seed``; its state is afterwards what it was."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        yield
