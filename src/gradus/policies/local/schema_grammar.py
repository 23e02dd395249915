"""A grammar from a JSON schema, by outlines-core."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from gradus.core import ConfigError, PolicyError
from gradus.core.values import Json
from gradus.policies.local.text_ids import TokenIds

_BYTE = len("<0x00>")  # how some vocabularies write a byte
_SAMPLE = '{"name": "a b", "n": -1.5e3, "none": [null, true]}'


class SchemaGrammar:
    """JSON that fits a schema, then a stop token; outlines-core makes the state machine.

    Args:
        schema: of JSON.
        tokenizer: of the model; added tokens are never legal but for ``stop_ids``.
        stop_ids: tokens that may end the answer once it is complete.

    Raises:
        ConfigError: outlines-core is not installed.
        PolicyError: it cannot read the schema, or the tokens of this tokenizer.
    """

    def __init__(self, schema: Json, tokenizer: Any, stop_ids: Iterable[int]) -> None:
        try:
            outlines: Any = import_module("outlines_core")
            schemas: Any = import_module("outlines_core.json_schema")
        except ImportError as error:
            raise ConfigError("constrain = true needs outlines-core; pip install 'gradus-rl[constrain]'") from error
        text = json.dumps(schema)
        self._stops = tuple(sorted(stop_ids))
        try:
            vocabulary = outlines.Vocabulary(self._stops[0], _spellings(tokenizer, self._stops))
            index = outlines.Index(schemas.build_regex_from_schema(text), vocabulary)
        except ValueError as error:
            raise PolicyError(f"an answer cannot be constrained to the schema {text:.200}: {error}") from error
        self._start: int = index.get_initial_state()
        self._finals: frozenset[int] = frozenset(index.get_final_states())
        self._next: dict[int, dict[int, int]] = index.get_transitions()
        self._legal: dict[int, TokenIds] = {}

    def begin(self) -> int:
        """The state before the first token of an answer."""
        return self._start

    def advance(self, state: int, token: int) -> int:
        """The state after ``token``, which was legal in ``state``."""
        return self._next[state][token]

    def legal(self, state: int) -> TokenIds:
        """Ids that may come next, sorted; never empty."""
        # One tuple for each state: the episodes of a run share them.
        if state not in self._legal:
            # The state machine has one stop token; an answer may end with any.
            ids = set(self._next.get(state, ())).difference(self._stops)
            if state in self._finals:
                ids |= set(self._stops)
            self._legal[state] = tuple(sorted(ids))
        return self._legal[state]


def _spellings(tokenizer: Any, stop_ids: Sequence[int]) -> dict[bytes, list[int]]:
    """The tokens of each piece of bytes, without added ones and those that end answers. Raises PolicyError if a text's tokens do not spell it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of: dict[str, int] = {character: byte for byte, character in bytes_to_unicode().items()}
    in_bytes = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
    pieces: dict[int, str] = {number: piece for piece, number in tokenizer.get_vocab().items()}
    spelled: dict[int, bytes] = {}
    # Added tokens are marks of the template, and no part of a text in JSON.
    for number in set(pieces).difference(tokenizer.added_tokens_decoder):
        piece = pieces[number]
        if in_bytes:
            spelled[number] = bytes(byte_of[character] for character in piece)
        elif len(piece) == _BYTE and piece.startswith("<0x"):
            spelled[number] = bytes([int(piece[3:5], 16)])
        else:
            spelled[number] = piece.replace("▁", " ").encode()
    # Tokenizers have many forms; what holds for all is that the tokens of a text spell the text.
    ids: list[int] = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    if b"".join(spelled.get(number, b"") for number in ids).strip() != _SAMPLE.encode():
        raise PolicyError("the bytes of this tokenizer's tokens are not known; set sampling.constrain = false")
    spellings: dict[bytes, list[int]] = {}
    for number in set(spelled).difference(stop_ids):
        spellings.setdefault(spelled[number], []).append(number)
    return spellings
