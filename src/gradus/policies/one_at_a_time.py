"""Locks what transformers and torch keep once for the whole process: the random state, and progress bars."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from logging import ERROR, getLogger
from threading import RLock

# One thread at a time makes or loads a model. Two would draw from each other's seed, and two that load would leave transformers
# without the method that ties a model's head to its embeddings.
_ONE_AT_A_TIME = RLock()


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Silences transformers' progress bars and what bitsandbytes recommends. One thread at a time: both are global."""
    from transformers.utils import logging

    with _ONE_AT_A_TIME:
        getLogger("bitsandbytes").setLevel(ERROR)
        was_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if was_enabled:
                logging.enable_progress_bar()


@contextmanager
def torch_seeded(seed: int) -> Generator[None]:
    """Seeds torch's draws inside, and puts its random state back afterwards."""
    import torch

    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        yield
