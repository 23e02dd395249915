"""Room for rows in the settings of a nano model: how long its answers may be, and its context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gradus.core import EnvironmentSpec
from gradus.environments.verifiable import Item, TableTasks, in_format
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.rewards import gold_answer

_LOOKED_AT = 64  # of the longest rows
_SAMPLED = 2000  # rows whose words stand for those of all
_FRAME = 8  # tokens of the chat template
_ROUND = 16


def with_room_for_rows(table: dict[str, Any], spec: EnvironmentSpec) -> dict[str, Any]:
    """The recipe with room for the longest answers and prompts. Where an answer is cut, GRPO has nothing to reward.

    Lengths are estimated from above: a word that the vocabulary may not have counts as its letters.
    """
    tasks = spec.data_set
    if not isinstance(tasks, TableTasks) or "nano" not in table.get("model", {}):
        return table
    items = list({id(item): item for rows in tasks.splits.values() for item in rows}.values())
    words = {*text_vocabulary(items[:_SAMPLED], [tasks.system_prompt, in_format("known", "")]).words}
    sampling, nano = table["grpo"].setdefault("sampling", {}), table["model"]["nano"]
    answer = _longest(items, _answer, words) + 1  # and the token that ends it
    sampling["max_new_tokens"] = max(sampling.get("max_new_tokens", 0), _rounded(answer))
    prompt = _longest(items, lambda item: f"{item.system or tasks.system_prompt} {item.question}", words)
    nano["context"] = max(nano.get("context", 0), _rounded(prompt + sampling["max_new_tokens"] + _FRAME))
    return table


def _answer(item: Item) -> str:
    """What a teacher says."""
    return in_format(item.worked or "known", gold_answer(item.answer)) if item.answer else ""


def _longest(items: Sequence[Item], text_of: Callable[[Item], str], words: Collection[str]) -> int:
    texts = sorted(map(text_of, items), key=len)[-_LOOKED_AT:]
    return max(sum(1 if word in words else len(word) + 1 for word in text.split()) for text in texts)


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND
