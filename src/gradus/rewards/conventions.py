"""Takes reward functions as other projects write them: one completion at a time, by the names of their parameters.

verl: ``compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score": float}``. verifiers: ``f(completion, answer,
**more) -> float``. Plain functions: ``f(response, gold) -> bool``. Inspect: ``async score(state, target) -> Score``, or what ``@scorer``
decorates. Functions with ``completions`` are TRL's and stay as they are.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gradus.core.foreign import arguments_for
from gradus.core.values import Json, JsonDict, is_table

_TEXT = ("solution_str", "completion", "response", "prediction", "output", "model_output", "text", "solution")
_GOLD = ("ground_truth", "answer", "gold", "target", "reference", "expected", "label")
GOLD_COLUMNS = {*_GOLD, "solution"}  # what functions of all completions call the column of gold answers
_INSPECT = "__registry_info__"  # what Inspect's decorators leave on a function
_MODEL = "gradus/policy"  # a name, as a state of Inspect has one
_COLUMN: tuple[type[Any], ...] = (list, tuple)
# What verl and verifiers pass beside text and gold answer: a function may require one that the data do not have.
_EMPTY: Json = {"data_source": "", "extra_info": {}, "info": {}, "state": {}, "task": ""}


def as_trl(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in TRL's signature, ``f(prompts, completions, **columns)``; unchanged if it has that already or another form."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built in C have no signature
        return function
    if {"state", "target"} <= set(parameters):
        return OneByOne(InspectScorer(function))
    if hasattr(function, _INSPECT):
        return as_trl(function())  # what @scorer decorates makes scorers, here with its defaults
    if "completions" in parameters or not any(name in parameters for name in _TEXT):
        return function
    return OneByOne(function)


class InspectScorer:
    """A scorer of Inspect as a function of one completion: it gets Inspect's own state and target, and its grades count as Inspect counts them."""

    def __init__(self, score: Callable[..., Any]) -> None:
        self.__wrapped__ = score  # inspect finds the source there
        self.__name__ = getattr(score, "__qualname__", "score").split(".")[0]
        # inspect would follow __wrapped__ to the signature of the scorer.
        self.__signature__ = inspect.signature(self.__call__)

    async def __call__(self, prompt: Any, completion: Any, answer: Any, **columns: Any) -> float:
        """The reward of a completion, by the last answer of a state that holds nothing else."""
        # By name: Inspect is no dependency, and is there if somebody's scorer is.
        model: Any = importlib.import_module("inspect_ai.model")
        scorer: Any = importlib.import_module("inspect_ai.scorer")
        solver: Any = importlib.import_module("inspect_ai.solver")
        output = model.ModelOutput.from_content(_MODEL, _text_of(completion))
        target = scorer.Target(answer)
        question = _text_of(prompt)
        state = solver.TaskState(
            model=model.ModelName(_MODEL),
            sample_id=1,
            epoch=1,
            input=question,
            messages=[model.ChatMessageUser(content=question), output.message],
            target=target,
            output=output,
            metadata=columns,
        )
        score = await self.__wrapped__(state, target)
        return float(scorer.value_to_float()(score.value))


def _text_of(message: Any) -> str:
    """A text, or the content of the last of some messages."""
    return message if isinstance(message, str) else str(message[-1]["content"])


class OneByOne:
    """A function of one completion, called for each. It can be pickled as the function can."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function  # inspect finds the source there
        # inspect would follow __wrapped__ to the signature of the function of one completion.
        self.__signature__ = inspect.signature(self.__call__)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """One reward a completion; an awaitable of them if the function is asynchronous."""
        results: list[Any] = []
        for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            row = dict(_EMPTY)
            for name, values in columns.items():
                if isinstance(values, _COLUMN):  # trainer_state and the like belong to no completion
                    row[name] = values[number]
            row |= {"prompt": prompt, "completion": completion}
            arguments = _arguments(self.__wrapped__, row)
            results.append(self.__wrapped__(**arguments))
        # All are called before any is awaited, so that they wait beside each other.
        if any(inspect.isawaitable(result) for result in results):
            return _awaited(results)
        return [_number(result) for result in results]


async def _awaited(results: Sequence[Any]) -> list[Any]:
    """Waits for all results at once."""
    return [_number(result) for result in await asyncio.gather(*results)]


def _arguments(function: Callable[..., Any], row: Json) -> JsonDict:
    """Returns the arguments that the function names, out of what is known of a completion; its text and gold answer may have other names."""
    parameters = inspect.signature(function).parameters
    text = next(name for name in _TEXT if name in parameters)
    arguments = {**row, text: row["completion"]}
    gold = next((name for name in _GOLD if name in parameters), None)
    if gold:
        arguments.setdefault(gold, row.get("answer"))
    return arguments_for(function, arguments)


def _number(result: Any) -> Any:
    """The score of a result; verl may return a record of it."""
    if is_table(result):
        result = result.get("score")
    return float(result) if isinstance(result, bool) else result
