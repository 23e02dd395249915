"""Processes of our own code: how they begin, how they end with the one that started them."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Make Python look for cycles of objects less often.

    Records hold no cycles, and looking for some at every 700th object costs a fifth of a rollout's time.
    """
    gc.set_threshold(100_000, 50, 50)
