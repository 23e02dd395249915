"""Grammars: which token may come next, given the tokens of the answer so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from gradus.core import ConfigError


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

    def __init__(
        self, places: Sequence[Sequence[str]], encode: Callable[[str], Sequence[int]], stop_ids: Iterable[int]
    ) -> None:
        self._stops = tuple(sorted(stop_ids))
        self._words: list[tuple[tuple[int, ...], ...]] = []
        for place, words in enumerate(places):
            if not words:
                raise ConfigError(f"place {place + 1} of the grammar has no legal word; name at least one")
            self._words.append(tuple(sorted({spell(word, place, encode, self._stops) for word in words})))
        # A reading is (place, tokens of its word so far); the place behind the last one waits for a stop token.
        self._legal: dict[Hashable, tuple[int, ...]] = {}

    def begin(self) -> Hashable:
        """The state before the first token of an answer."""
        return frozenset({(0, ())})

    def advance(self, state: Hashable, token: int) -> Hashable:
        """The state after ``token``, which was legal in ``state``."""
        following: set[tuple[int, tuple[int, ...]]] = set()
        for place, part in state:  # type: ignore[attr-defined]
            if place == len(self._words):
                continue
            grown = (*part, token)
            for word in self._words[place]:
                if word == grown:
                    following.add((place + 1, ()))
                elif word[: len(grown)] == grown:
                    following.add((place, grown))
        return frozenset(following)

    def legal(self, state: Hashable) -> tuple[int, ...]:
        """Ids that may come next, sorted; never empty."""
        if state not in self._legal:
            ids: set[int] = set()
            for place, part in state:  # type: ignore[attr-defined]
                if place == len(self._words):
                    ids.update(self._stops)
                else:
                    ids.update(
                        w[len(part)] for w in self._words[place] if w[: len(part)] == part and len(w) > len(part)
                    )
            self._legal[state] = tuple(sorted(ids)) or self._stops
        return self._legal[state]


def spell(word: str, place: int, encode: Callable[[str], Sequence[int]], stop_ids: Iterable[int]) -> tuple[int, ...]:
    """Token ids of a word as they stand inside a line: what a word adds behind another one."""
    ids = tuple(encode(word if place == 0 else f" {word}"))
    alone = tuple(encode(word))
    # Tokenizers that imply the space before a word would write it twice.
    if place and len(ids) > len(alone) and ids[-len(alone) :] == alone:
        joined = tuple(encode(f"{word} {word}"))
        ids = alone if joined == alone + alone else ids
    if not ids:
        raise ConfigError(f"the tokenizer has no tokens for the word {word!r} of the grammar")
    if not set(stop_ids).isdisjoint(ids):
        raise ConfigError(f"the word {word!r} of the grammar holds a token that ends answers; choose another word")
    return ids
