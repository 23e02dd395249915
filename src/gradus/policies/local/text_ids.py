"""Text to token ids, and back: special tokens that content spells out stay letters, and thoughts have the one form ``<think>``.

Most templates leave thoughts to the model, which writes ``<think>`` itself. Some end the prompt with an open ``<think>``.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokenizers import AddedToken

TokenIds = tuple[int, ...]

# Private characters, around a special token that content spells out.
_MARK = "\ue000"
_END = "\ue001"
_MARKED = re.compile(f"{_MARK}(.*?){_END}|[{_MARK}{_END}]", re.DOTALL)
_PRIVATE = re.compile(f"[{_MARK}{_END}]")
_HALF = "\ufffd"
_OPEN = re.compile(r"<(think|thinking|thought|reasoning)>\s*$")
_SPOKEN = re.compile(r"</?(think|thinking|thought|reasoning|tools?|tool_call|tool_response)>")


class TextIds:
    """A tokenizer's ids of texts, without added tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._core = getattr(tokenizer, "backend_tokenizer", None)
        # Tokens around messages: letters in content, also if they are not declared special.
        self.frame: frozenset[str] = frozenset()
        self.added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        # Longest first: one added token may begin another.
        longest_first = sorted(set(self.added.values()), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        self._special = re.compile(pattern or "(?!)")  # without added tokens it never matches
        self._letters: dict[frozenset[str], Any] = {}

    def encode(self, text: str) -> list[int]:
        """Ids in which special tokens of the text are themselves.

        A fast tokenizer's core is asked directly: at 3,000 short texts a step the wrapper around it costs more than the
        encoding. The wrapper is used if its state would change what the core does.
        """
        if not text:
            return []
        core = self._core
        if core is None or core.truncation is not None or core.padding is not None or core.encode_special_tokens:
            return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return core.encode(text, add_special_tokens=False).ids

    def letters(self, text: str) -> list[int]:
        """Ids in which special tokens that the text spells out are ordinary letters.

        A copy of the tokenizer's core splits them: the wrapper would switch the one core that all threads encode with.
        """
        # A frame that grows later needs another copy, in which its tokens are special too.
        if self.frame not in self._letters:
            core = copy.deepcopy(self._tokenizer.backend_tokenizer)
            tokens = sorted(self.frame.intersection(self.added.values()))
            core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
            core.encode_special_tokens = True
            self._letters[self.frame] = core
        return self._letters[self.frame].encode(text, add_special_tokens=False).ids

    def special_tokens(self, text: str, start: int = 0) -> list[re.Match[str]]:
        """Special tokens in a text, from ``start`` on."""
        return list(self._special.finditer(text, start))

    def mark(self, text: str, only: Collection[str] | None = None) -> str:
        """The text with marks around special tokens that it spells out, or around those of ``only`` that are in it."""

        def marked(match: re.Match[str]) -> str:
            token = match[0]
            return f"{_MARK}{token}{_END}" if only is None or token in only else token

        return self._special.sub(marked, _PRIVATE.sub("", text))

    def cut(self, text: str, token: str) -> tuple[str, str]:
        """Returns what stands before and behind the first ``token`` that is not marked as content; everything and nothing without one."""
        for match in re.finditer(f"{_MARK}.*?{_END}|{re.escape(token)}", text, re.DOTALL):
            if match[0] == token:
                return text[: match.start()], text[match.end() :]
        return text, ""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a text in which content was marked: what is marked is letters, every other special token is itself."""
        ids: list[int] = []
        start = 0
        for mark in _MARKED.finditer(text):
            ids += self.encode(text[start : mark.start()])
            if mark[1]:
                ids += self.letters(mark[1])
            start = mark.end()
        return ids + self.encode(text[start:])


def open_thought(prompt: str) -> str:
    """Returns the tag that the prompt leaves open, with what stands behind it; empty if it leaves none.

    >>> open_thought("<|im_start|>assistant\\n<think>\\n"), open_thought("<|im_start|>assistant\\n")
    ('<think>\\n', '')
    """
    match = _OPEN.search(prompt)
    return match[0] if match else ""


def tokens_to_stop(
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    ids: Sequence[int],
) -> int | None:
    """Returns how many tokens it takes to spell one of the stop strings; None if all of them spell none."""

    def holds(count: int) -> bool:
        text = decode(ids[:count])
        return any(stop in text for stop in stops)

    if not stops or not holds(len(ids)):
        return None
    # Decoding is not additive, but a text that holds the stop string holds it with more tokens too.
    return bisect_left(range(len(ids)), True, key=holds)


def is_spoken(token: str) -> bool:
    """Says if a token is a tag that belongs to what is said, though some templates write it around messages as well."""
    return _SPOKEN.fullmatch(token) is not None


def close_thought(opened: str, text: str) -> str:
    """Returns what is said behind an open thought: its end first, if ``text`` has no thought of its own.

    >>> close_thought("<think>\\n", "4"), close_thought("<think>\\n", "<think>\\n2 + 2</think>4"), close_thought("", "4")
    ('\\n</think>\\n\\n4', '2 + 2</think>4', '4')
    """
    tag = opened.strip()
    if text.startswith(opened):
        return text[len(opened) :]
    if text.lstrip().startswith(tag):
        return text.lstrip()[len(tag) :].lstrip("\n")
    end = tag.replace("<", "</")
    return text if end in text else f"\n{end}\n\n{text}"


class RunningText:
    """Tells what each token adds to a text. A token costs the same however long the text is.

    Texts of tokens do not simply add up: a character may have several tokens, and some tokenizers drop a space at the
    beginning. So new tokens are decoded together with the complete characters before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._complete = 0  # tokens of the window that spell complete characters
        self._emitted = ""  # of the window's text

    def add(self, token: int) -> str:
        """Returns what the text gains; nothing while the token may be half of a character."""
        self._window.append(token)
        text = self._decode(self._window)
        settled = text.rstrip(_HALF)
        added = settled[len(self._emitted) :]
        # The window forgets what was complete before the last token: its cost stays the same.
        if settled == text:
            self._window = self._window[self._complete :]
            self._complete = len(self._window)
            self._emitted = self._decode(self._window)
        elif added:
            self._emitted = settled
        return added
