"""Takes reward functions as other projects write them: one completion at a time, by the names of their parameters.

verl: ``compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score": float}``. verifiers: ``f(completion, answer,
**more) -> float``. Plain functions: ``f(response, gold) -> bool``. Functions with ``completions`` are TRL's and stay as they are.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TEXT = ("solution_str", "completion", "response", "prediction", "output", "model_output", "text", "solution")
_GOLD = ("ground_truth", "answer", "gold", "target", "reference", "expected", "label")
_EMPTY: Mapping[str, Any] = {"data_source": "", "extra_info": {}, "info": {}, "state": {}, "task": ""}


def as_trl(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in TRL's signature, ``f(prompts, completions, **columns)``; unchanged if it has that already or another form."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    known = "completions" in parameters or not any(name in parameters for name in _TEXT)
    return function if known else OneByOne(function)


class OneByOne:
    """A function of one completion, called for each. It can be pickled as the function can."""

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("prompts", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("completions", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function  # inspect finds the source there

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """One reward a completion; an awaitable of them if the function is asynchronous."""
        function = self.__wrapped__
        rows = [_row(prompts[place], completions[place], columns, place) for place in range(len(completions))]
        results = [function(**_arguments(function, row)) for row in rows]
        if any(inspect.isawaitable(each) for each in results):
            return _awaited(results)
        return [_number(each) for each in results]


async def _awaited(results: Sequence[Any]) -> list[Any]:
    return [_number(each) for each in await asyncio.gather(*results)]


def _row(prompt: Any, completion: Any, columns: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Returns what is known of one completion, by name."""
    own = {name: values[place] for name, values in columns.items() if isinstance(values, list | tuple)}
    return {**_EMPTY, **own, "prompt": prompt, "completion": completion}


def _arguments(function: Callable[..., Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that the function names, of what is known of a completion; its text and gold answer may have other names."""
    parameters = inspect.signature(function).parameters
    text = next(name for name in _TEXT if name in parameters)
    gold = next((name for name in _GOLD if name in parameters and name != text), None)
    known = {**row, text: row["completion"]}
    if gold is not None:
        known.setdefault(gold, row.get("answer"))
    more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return known if more else {name: known[name] for name in parameters if name in known}


def _number(result: Any) -> Any:
    """The score of a result; verl may return a record of it."""
    if isinstance(result, Mapping):
        result = result.get("score")
    return float(result) if isinstance(result, bool) else result
