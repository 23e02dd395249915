"""Damage that a command can go around: it is named on standard error, or refused with ``--strict``."""

from __future__ import annotations

import os
import sys

from gradus.core.errors import StorageError

VARIABLE = "GRADUS_STRICT"


def go_around(damage: str, instead: str) -> None:
    """Name ``damage`` and what is done ``instead``. Raises StorageError if ``--strict`` was given."""
    if os.environ.get(VARIABLE):
        raise StorageError(f"{damage}; without --strict: {instead}")
    print(f"warning: {damage}; {instead}", file=sys.stderr)
