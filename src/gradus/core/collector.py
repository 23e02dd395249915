"""How often Python looks for cycles of objects."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Records hold no cycles, and looking for some at every 700th object costs a fifth of a rollout's time."""
    gc.set_threshold(100_000, 50, 50)
