"""TRL's way to write an agent's task, unchanged: tool functions, ``environment_factory`` classes and reward functions.

What is the same as in TRL 1.16's GRPOTrainer: which methods are tools, what ``reset`` gets and where its text goes, what a tool's
result and an exception look like, what reward functions are given, and that ``get_reward`` is one more reward of weight 1.
What differs: randomness that ``reset`` takes from ``random`` or numpy is seeded by the task, so that a group shares it.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from gradus.core import Condition, ConfigError, EnvironmentSpec, Message, Task, child_seed
from gradus.core.values import is_storable
from gradus.core.waiting import settled
from gradus.environments.tools import ToolEnvironment
from gradus.environments.tools.environment import plain_text, public_methods
from gradus.environments.verifiable.rows import read_content
from gradus.rewards import RewardFunction, Rewards, grader_of, reward_name
from gradus.rewards.compose import is_async

Row = Mapping[str, Any]
_TRAIN = 1_000_000  # seeds of training tasks without rows begin here
_KEPT = 0.2  # of the rows, for evaluation


def trl_environment(
    name: str,
    *,
    rows: Sequence[Row] = (),
    reward_funcs: RewardFunction | Sequence[RewardFunction | tuple[RewardFunction, float]] = (),
    tools: Sequence[Callable[..., Any]] = (),
    environment_factory: Callable[[], Any] | None = None,
    max_tool_calling_iterations: int = 8,
) -> EnvironmentSpec:
    """An environment out of what TRL's GRPOTrainer is given. ``rows`` is its ``train_dataset``: a list, or a ``datasets.Dataset``.

    The last fifth of what the rows ask is kept for evaluation, each question once; rows that ask the same are in one part. If all rows
    are the same, as where a factory's ``reset`` draws what is asked, tasks differ by their seed alone. Reward functions that take
    ``environments`` get copies of the instances, with what of their attributes JSON can hold. A pair is a function and its weight.

    Raises:
        ConfigError: nothing gives a reward, the factory cannot be called, there are neither rows nor a factory, a row has no prompt,
            or without a factory the rows ask fewer than two things.
    """
    if environment_factory is not None and not callable(environment_factory):
        kind = type(environment_factory).__name__
        raise ConfigError(
            f"environment_factory makes an instance for each episode: give the class, {kind}, got an instance of it"
        )
    functions = _weighted_rewards(reward_funcs, environment_factory)
    if environment_factory is None and not len(rows):
        raise ConfigError("nothing says what to ask: give rows with a prompt, or an environment_factory")
    train, held = _split([dict(row) for row in rows], own_reset=environment_factory is not None)
    listed = [*train, *held]

    def train_task(index: int) -> Task:
        if not held:
            return Task(environment=name, seed=_TRAIN + index)
        return Task(environment=name, seed=index, options={"row": index % len(train)})

    def make() -> ToolEnvironment:
        instance = _Rollout(listed, len(train), tools, environment_factory)
        return ToolEnvironment(
            instance, check=False, show=plain_text, show_error=lambda error: str({"error": str(error)})
        )

    condition = Condition(name="main", seeds=range(200))
    if held:
        condition = Condition(name="main", seeds=range(len(held)), options={"held_out": len(train)})
    return EnvironmentSpec(
        name=name,
        summary="tools and rewards as TRL takes them",
        make=make,
        graders={"rewards": grader_of(Rewards(functions, messages=True), name="rewards", per_turn=False)},
        conditions={"main": condition},
        train_task=train_task,
        content=(lambda task: _as_json(listed[_row(task.seed, task.options, len(train))])) if held else None,
        true_reward=lambda episode: episode.reward.value if episode.reward else None,
        true_reward_name="reward",
        max_turns=max_tool_calling_iterations + 1,
    )


def _split(rows: Sequence[Row], *, own_reset: bool) -> tuple[list[Row], list[Row]]:
    """Rows for training and for evaluation. ``own_reset``: a row's other columns go to a ``reset``, and are part of what is asked."""
    questions: dict[str, list[Row]] = {}
    for number, row in enumerate(rows, start=1):
        _check_prompt(row, number, may_be_empty=own_reset)
        questions.setdefault(_as_json(row if own_reset else row["prompt"]), []).append(row)
    if len(questions) < 2:
        if own_reset:
            return list(rows), []
        raise ConfigError(f"expected two rows or more that ask different things, one for evaluation, got {len(rows)}")
    kept = max(1, round(len(questions) * _KEPT))
    groups = list(questions.values())
    return [row for group in groups[:-kept] for row in group], [group[0] for group in groups[-kept:]]


def _check_prompt(row: Row, number: int, *, may_be_empty: bool) -> None:
    """Raise ConfigError for a row that does not say what to ask."""
    if "prompt" not in row:
        raise ConfigError(
            f"row {number} has no column 'prompt', it has {', '.join(row) or 'none'}; rename the one that asks"
        )
    prompt = row["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list | tuple) or not all(
        isinstance(each, Mapping) and "role" in each for each in messages
    ):
        raise ConfigError(
            f"the prompt of row {number} is {prompt!r:.60}; expected a text, or a list of messages with role and content"
        )
    said = "".join(read_content(each.get("content")) for each in messages)
    if not messages or not (said or may_be_empty):
        raise ConfigError(f"the prompt of row {number} asks nothing, got {prompt!r:.60}; leave the row out")


def _as_json(value: Any) -> str:
    return json.dumps(value, default=str)


def _weighted_rewards(
    given: RewardFunction | Sequence[RewardFunction | tuple[RewardFunction, float]], factory: Callable[[], Any] | None
) -> list[tuple[RewardFunction, float]]:
    """The reward functions with their weights, and the factory's own ``get_reward`` behind them."""
    given = [cast(RewardFunction, given)] if callable(given) else given  # TRL takes one function without a list too
    pairs = [each if isinstance(each, tuple) else (each, 1.0) for each in given]
    functions = [(_with_environments(function, factory), weight) for function, weight in pairs]
    if factory is not None and hasattr(factory, "get_reward"):
        functions.append((_own_reward(getattr(factory, "__name__", "environment")), 1.0))
    if not functions:
        raise ConfigError("nothing gives a reward: give reward_funcs, or a factory that is a class with get_reward")
    return functions


class _Rollout:
    """One instance of the factory's class with its row, as :class:`ToolEnvironment` runs it."""

    def __init__(
        self, rows: Sequence[Row], trained: int, tools: Sequence[Any], factory: Callable[[], Any] | None
    ) -> None:
        self._rows, self._trained, self._row = rows, trained, dict[str, Any]()
        self._environment = factory() if factory else None
        own = public_methods(type(self._environment)) if factory else []
        names = [each for each in own if each not in ("reset", "get_reward")]
        self.tools = [*tools, *(getattr(self._environment, each) for each in names)]
        self.system_prompt = ""

    def reset(self, seed: int, **options: Any) -> list[Message]:
        """The row's prompt, and behind its last message what the instance's own ``reset`` says."""
        self._row = dict(self._rows[_row(seed, options, self._trained)]) if self._rows else {}
        prompt = self._row.get("prompt", "")
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [{**each, "content": read_content(each.get("content"))} for each in given]
        self.system_prompt = ""
        if messages[0]["role"] == "system" and len(messages) > 1:
            self.system_prompt = str(messages.pop(0)["content"])
        with _seeded(seed):
            said = self._environment.reset(**self._row) if self._environment is not None else None
        if said is not None:
            messages[-1]["content"] += said
        return [Message(role=each["role"], content=str(each["content"])) for each in messages]

    def outcome(self) -> Mapping[str, Any]:
        """The row's columns for reward functions, and the instance's attributes as far as JSON holds them."""
        own = getattr(self._environment, "get_reward", None)
        columns = {key: value for key, value in self._row.items() if key != "prompt"}
        attributes = {} if self._environment is None else vars(self._environment)
        state = {key: value for key, value in attributes.items() if is_storable(value)}
        value = settled(own()) if own else None
        return {"columns": {**columns, "environment_state": state, "environment_reward": value}}


def _row(seed: int, options: Mapping[str, Any], trained: int) -> int:
    """The number of a task's row: training tasks name it, those of the condition count from where the kept rows begin. A seed alone is a
    row for training."""
    if "held_out" in options:
        return int(options["held_out"]) + seed
    return int(options["row"]) if "row" in options else seed % trained


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's and numpy's shared random numbers, begun by the seed, and as they were afterwards."""
    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(child_seed(seed, "trl reset"))
    np.random.seed(child_seed(seed, "trl reset") % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)  # noqa: NPY002


def _own_reward(name: str) -> RewardFunction:
    def own(environment_reward: Sequence[float | None], **columns: Any) -> list[float | None]:
        return list(environment_reward)

    own.component_name = name  # type: ignore[attr-defined]
    return own


def _with_environments(function: RewardFunction, factory: Any) -> RewardFunction:
    """A reward function that takes ``environments``, given instances that hold the attributes of those that ran."""
    parameters = inspect.signature(function).parameters
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if factory is None or ("environments" not in parameters and not open_ended):
        return function

    def call(environment_state: Sequence[Mapping[str, Any]], **columns: Any) -> Any:
        given = {**columns, "environments": [_restored(factory, state) for state in environment_state]}
        return function(**{key: value for key, value in given.items() if open_ended or key in parameters})

    async def waited(environment_state: Sequence[Mapping[str, Any]], **columns: Any) -> Any:
        return await call(environment_state, **columns)

    wrapper = waited if is_async(function) else call  # async functions wait at the same time
    wrapper.component_name = reward_name(function)  # type: ignore[attr-defined]
    return wrapper


def _restored(factory: Any, state: Mapping[str, Any]) -> Any:
    kind: Any = factory if isinstance(factory, type) else type(factory())
    instance = kind.__new__(kind)
    instance.__dict__.update(state)
    return instance
