"""How much is said while something runs: ``--quiet`` and ``--verbose``, handed on to processes by the environment."""

from __future__ import annotations

import os

VARIABLE = "GRADUS_OUTPUT"
QUIET, VERBOSE = "quiet", "verbose"


def quiet() -> bool:
    """Whether only results, alerts and errors are wanted."""
    return os.environ.get(VARIABLE) == QUIET


def verbose() -> bool:
    """Whether every step is wanted with all its figures."""
    return os.environ.get(VARIABLE) == VERBOSE
