"""A line now and then while many rows are read: nobody should wonder whether anything goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from gradus.core.printing import quiet

T = TypeVar("T")
PATIENCE = 2.0  # seconds before the first line
EVERY = 5.0  # seconds between two lines
_LOOK = 256  # rows between two looks at the clock


def told(rows: Iterable[T], what: str) -> Iterator[T]:
    """The rows. If they take long, standard error says how many are done."""
    say_at = time.monotonic() + PATIENCE
    whole = f" of {len(rows):,}" if isinstance(rows, Sized) else ""
    for number, row in enumerate(rows):
        if number % _LOOK == 0 and time.monotonic() > say_at:
            say_at = time.monotonic() + EVERY
            if not quiet():
                print(f"{what}: {number:,}{whole}", file=sys.stderr, flush=True)
        yield row
