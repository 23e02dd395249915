"""Text to token ids, and content that spells out special tokens kept apart from the tokens of the frame."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from gradus.policies.nano.model import splits_words

_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters, around a special token that content spells out
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}|[{_OPEN}{_CLOSE}]", re.DOTALL)
_PRIVATE = re.compile(f"[{_OPEN}{_CLOSE}]")
_KNOWN_WORDS = 2**14  # whose ids are kept


class TextIds:
    """A tokenizer's ids of texts, without added tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.frame: frozenset[str] = (
            frozenset()
        )  # tokens around messages: letters in content, also if not declared special
        self.special = _special_pattern(tokenizer)
        self.added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        self.encode: Callable[[str], list[int]] = _encoder(tokenizer)
        if self.special is not None and splits_words(tokenizer):
            self.encode = _by_words(self.encode, self.special)

    def letters(self, text: str) -> list[int]:
        """Ids where special tokens that the text spells out are ordinary letters."""
        core = _letters_core(self._tokenizer, self.frame)
        if core is None:
            return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return core.encode(text, add_special_tokens=False).ids

    def special_tokens(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """Special tokens in a text, from ``start`` on."""
        return self.special.finditer(text, start) if self.special else iter(())

    def mark(self, text: str, only: Collection[str] | None = None) -> str:
        """The text with marks around special tokens that it spells out, or around those of ``only`` that are in it."""
        text = self.plain(text)
        if self.special is None:
            return text
        marked = f"{_OPEN}{{}}{_CLOSE}"
        return self.special.sub(
            lambda each: marked.format(each[0]) if only is None or each[0] in only else each[0], text
        )

    def mark_all(self, text: str) -> str:
        """The text with marks around the whole of it, but for white space at its ends, which a template may strip."""
        said = self.plain(text)
        inside = said.strip()
        return said.replace(inside, f"{_OPEN}{inside}{_CLOSE}", 1) if inside else said

    def cut(self, text: str, token: str) -> tuple[str, str]:
        """Returns what stands before and behind the first ``token`` that is not marked as content; everything and nothing if there is none."""
        for match in re.finditer(f"{_OPEN}.*?{_CLOSE}|{re.escape(token)}", text, re.DOTALL):
            if match[0] == token:
                return text[: match.start()], text[match.end() :]
        return text, ""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def plain(self, text: str) -> str:
        """The text without private characters."""
        return _PRIVATE.sub("", text)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text in which content was marked: what is marked is letters, every other special token is itself."""
        ids: list[int] = []
        start = 0
        for mark in _MARKED.finditer(text):
            ids += self.encode(text[start : mark.start()]) if mark.start() > start else []
            ids += self.letters(mark[1]) if mark[1] else []
            start = mark.end()
        return ids + (self.encode(text[start:]) if start < len(text) else [])


_LETTERS: WeakKeyDictionary[Any, dict[frozenset[str], Any]] = WeakKeyDictionary()
_COPYING = threading.Lock()


def _letters_core(tokenizer: Any, frame: frozenset[str]) -> Any:
    """A copy of a fast tokenizer's core that splits special tokens and those of ``frame``; None for a slow tokenizer, which
    splits all added tokens.

    The wrapper would switch the one core that all threads encode with, while they encode.
    """
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return None
    from tokenizers import AddedToken

    with _COPYING:
        cores = _LETTERS.setdefault(tokenizer, {})
        if frame not in cores:
            letters = copy.deepcopy(core)
            letters.no_truncation()
            letters.no_padding()
            added = {str(token) for token in tokenizer.added_tokens_decoder.values()}
            letters.add_special_tokens(
                [AddedToken(token, special=True, normalized=False) for token in sorted(frame & added)]
            )
            letters.encode_special_tokens = True
            cores[frame] = letters
        return cores[frame]


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text -> ids without added tokens. A fast tokenizer's core is asked directly: at 3,000 short texts a step the wrapper
    around it costs more than the encoding. The wrapper is used if its state would change what the core does."""
    core = getattr(tokenizer, "backend_tokenizer", None)

    def encode(text: str) -> list[int]:
        if core is None or core.truncation is not None or core.padding is not None or core.encode_special_tokens:
            return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return core.encode(text, add_special_tokens=False).ids

    return encode


def _by_words(encode: Callable[[str], list[int]], special: re.Pattern[str]) -> Callable[[str], list[int]]:
    """The same ids for a nano tokenizer, which encodes each word by itself: its core takes 100 us for a line of 20 words, this takes 5."""
    known = lru_cache(maxsize=_KNOWN_WORDS)(lambda part: tuple(encode(part)))
    parts = re.compile(f"({special.pattern})")

    def encode_words(text: str) -> list[int]:
        ids: list[int] = []
        for part in filter(None, parts.split(text)):
            words = part.split(" ")
            # A line break or a further space is a token of its own, or none: where it stands decides.
            ids.extend(known(part) if "\n" in part or "" in words else chain.from_iterable(map(known, words)))
        return ids

    return encode_words


def _special_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    texts = sorted({str(token) for token in tokenizer.added_tokens_decoder.values()}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None
