"""The words of calls in the plain form, for a nano model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gradus.core import ToolCall, Vocabulary
from gradus.core.calls import write_calls


def call_vocabulary(calls: Sequence[ToolCall], texts: Iterable[str] = ()) -> Vocabulary:
    """A vocabulary in which ``calls`` (examples that use every tool and every value) and ``texts`` are made of whole words.

    Names, keys and values of a call are one token each, wherever in the arguments they stand. Anything else is spelled.

    >>> words = call_vocabulary([ToolCall(name="add", arguments={"a": "one", "b": "two"})]).words
    >>> '"one",' in words, '"one"}}' in words, '{"b":' in words
    (True, True, True)
    """
    words: dict[str, None] = {}
    for call in calls:
        words.update(dict.fromkeys(write_calls([call]).split()))
        for key, value in call.arguments.items():
            words.update(dict.fromkeys((f'{{"{key}":', f'"{key}":')))
            if " " not in str(value) and not isinstance(value, Mapping | list):
                said = json.dumps(value, ensure_ascii=False)
                words.update(dict.fromkeys((f"{said},", f"{said}}}}}")))
    for text in texts:
        words.update(dict.fromkeys(text.split()))
    characters = sorted({character for word in words for character in word} | set('0123456789{}[]":,.-'))
    return Vocabulary(words=[word for word in words if "▁" not in word], pieces=characters)
