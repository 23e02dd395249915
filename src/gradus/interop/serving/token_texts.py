"""The text and the bytes of single tokens, some of which are halves of characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

_HALF = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def added_texts(tokenizer: Any, ids: Sequence[int], begin: int = 0) -> list[str]:
    """What each token from ``begin`` on adds to the text of ``ids``; a character belongs to the token that completes it."""

    def decode(first: int, last: int) -> str:
        return tokenizer.decode(list(ids[first:last]), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    texts: list[str] = []
    first, told = max(begin - 1, 0), begin  # one token before the new ones shows whether they begin with a space
    for place in range(begin + 1, len(ids) + 1):
        before, now = decode(first, told), decode(first, place)
        if now.endswith(_HALF) and place < len(ids):
            texts.append("")
            continue
        texts.append(now[len(before) :])
        first, told = max(place - 1, 0), place
    return texts


def token_bytes(tokenizer: Any, token: int, added: str | None = None) -> bytes:
    """The bytes of a token, whose text may end within a character. ``added``: what it adds to a text, where that is known."""
    alone = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if _HALF in alone:
        spelled = tokenizer.convert_ids_to_tokens(token)
        if match := _BYTE.fullmatch(spelled):
            return bytes([int(match[1], 16)])
        if all(letter in _bytes_of_letters() for letter in spelled):
            return bytes(_bytes_of_letters()[letter] for letter in spelled)
    return (alone if added is None or _HALF in added else added).encode()


@cache
def _bytes_of_letters() -> dict[str, int]:
    """The bytes that letters stand for in byte-level vocabularies: printable ones themselves, the others in turn from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + at): byte for at, byte in enumerate(others)}}
