"""Text made safe for a terminal, and the two global options ``--quiet`` and ``--verbose``.

The options are variables of the environment, so that processes that this one starts know them too.
"""

from __future__ import annotations

import os
import re
import sys

OUTPUT_VARIABLE = "GRADUS_OUTPUT"
QUIET, VERBOSE = "quiet", "verbose"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_PICTURES = 0x2400  # where Unicode has a picture of each control character


def quiet() -> bool:
    """Say whether only results, alerts and errors are printed (``--quiet``)."""
    return os.environ.get(OUTPUT_VARIABLE) == QUIET


def verbose() -> bool:
    """Say whether every step is printed with all its figures (``--verbose``)."""
    return os.environ.get(OUTPUT_VARIABLE) == VERBOSE


def go_around(damage: str, instead: str) -> None:
    """Warn of ``damage`` and name what is done ``instead``."""
    print(f"warning: {damage}; {instead}", file=sys.stderr)


def printable(text: str) -> str:
    """Replace control characters by pictures of them. An escape sequence could clear the screen or hide text.

    >>> printable("a\\x1b[2Jb")
    'a␛[2Jb'
    """
    return _CONTROLS.sub(_picture, text)


def beginning(text: str, most: int) -> str:
    """Return ``text``, or its first ``most`` characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}..."


def _picture(control: re.Match[str]) -> str:
    code = ord(control[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    # Those from 0x80 on have no picture; some terminals obey them as they do an escape.
    return "␡" if code == 0x7F else "\ufffd"
