"""Text that others wrote, made safe to print: a terminal obeys control characters, whoever wrote them."""

from __future__ import annotations

import codecs
import re

STAND_IN = "gradus-stand-in"  # what an output does with characters that it does not have: the name of an error handler
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_PICTURES = 0x2400  # where Unicode has a picture of each control character
_BARS = dict(zip("▁▂▃▄▅▆▇█", "_.-:=+*#", strict=True))  # of small curves, low to high
_ALIKE = {**dict.fromkeys("−–—─━", "-"), "\u00a0": " ", "·": ".", "→": ">", "’": "'", "“": '"', "”": '"', **_BARS}


def printable(text: str) -> str:
    """``text`` with control characters as pictures of them. An escape sequence could clear the screen or hide what stands there.

    >>> printable("a\\x1b[2Jb")
    'a␛[2Jb'
    """
    return _CONTROLS.sub(_picture, text)


def beginning(text: str, most: int) -> str:
    """``text``, or its first ``most`` characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}..."


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(_PICTURES + code) if code < 0x20 else "␡" if code == 0x7F else "\ufffd"


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """A hyphen for the sign of a negative number, and so on; a question mark for what has nothing like it in ASCII."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(each, "?") for each in missing), error.end


codecs.register_error(STAND_IN, _stand_in)
