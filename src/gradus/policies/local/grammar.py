"""Grammars: which token may come next, given the tokens of the answer so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from gradus.core import ConfigError
from gradus.policies.local.text_ids import TokenIds

Encode = Callable[[str], Sequence[int]]
# Readings of the tokens so far: (place, tokens of its word so far). The place behind the last one waits for a stop token.
GrammarState = frozenset[tuple[int, TokenIds]]


class Grammar(Protocol):
    """A state machine over token ids."""

    def begin(self) -> Any:
        """The state before the first token of an answer."""
        ...

    def advance(self, state: Any, token: int) -> Hashable:
        """The state after ``token``, which was legal in ``state``."""
        ...

    def legal(self, state: Any) -> TokenIds:
        """Ids that may come next, sorted; never empty."""
        ...


class WordGrammar:
    """One word from a list at each place, separated by spaces, then a stop token. A state machine over token ids, whose states are hashable.

    Args:
        places: the legal words at each place (``EnvironmentSpec.grammar``).
        encode: text -> token ids, as the tokenizer writes it in the middle of a line.
        stop_ids: tokens that may end the answer once all places are filled.

    A word may take several tokens, and one word's tokens may begin another's; all readings are followed at once.

    Raises:
        ConfigError: a place has no word, or a word has no tokens or one that ends answers.
    """

    def __init__(self, places: Sequence[Sequence[str]], encode: Encode, stop_ids: Iterable[int]) -> None:
        self._stops = tuple(sorted(stop_ids))
        self._words: list[list[TokenIds]] = []
        for place, words in enumerate(places):
            if not words:
                raise ConfigError(f"place {place + 1} of the grammar has no legal word; name at least one")
            spellings = {spell(word, place, encode, self._stops) for word in words}
            self._words.append(sorted(spellings))
        self._legal: dict[GrammarState, TokenIds] = {}

    def begin(self) -> GrammarState:
        """The state before the first token of an answer."""
        return frozenset({(0, ())})

    def advance(self, state: GrammarState, token: int) -> GrammarState:
        """The state after ``token``, which was legal in ``state``."""
        following: set[tuple[int, TokenIds]] = set()
        for place, part in state:
            if place == len(self._words):
                continue
            grown = (*part, token)
            for word in self._words[place]:
                # One word may begin another: both readings are followed.
                if word == grown:
                    following.add((place + 1, ()))
                elif word[: len(grown)] == grown:
                    following.add((place, grown))
        return frozenset(following)

    def legal(self, state: GrammarState) -> TokenIds:
        """Ids that may come next, sorted; never empty."""
        # States repeat from answer to answer; what may follow is computed once for each.
        if state not in self._legal:
            ids: set[int] = set()
            for place, part in state:
                ids |= self._next_tokens(place, part)
            self._legal[state] = tuple(sorted(ids)) or self._stops
        return self._legal[state]

    def _next_tokens(self, place: int, part: TokenIds) -> set[int]:
        if place == len(self._words):
            return set(self._stops)
        count = len(part)
        longer = [word for word in self._words[place] if len(word) > count]
        return {word[count] for word in longer if word[:count] == part}


def spell(word: str, place: int, encode: Encode, stop_ids: Iterable[int]) -> TokenIds:
    """Token ids of a word as they stand inside a line: what a word adds behind another one."""
    ids = tuple(encode(word if place == 0 else f" {word}"))
    alone = tuple(encode(word))
    # Tokenizers that imply the space before a word would write it twice.
    if place and len(ids) > len(alone):
        twice = tuple(encode(f"{word} {word}"))
        if twice == alone + alone:
            ids = alone
    if not ids:
        raise ConfigError(f"the tokenizer has no tokens for the word {word!r} of the grammar")
    if not set(stop_ids).isdisjoint(ids):
        raise ConfigError(f"the word {word!r} of the grammar holds a token that ends answers; choose another word")
    return ids
