"""Composing reward functions that have TRL's signature.

A reward function is ``f(prompts, completions, **columns) -> list[float | None]``, one number a completion, plain or async.
Prompts and completions are strings, or lists of chat messages; ``answer=...`` and every other column of the data set come by
name, as do ``completion_ids``, ``trainer_state``, ``log_extra`` and ``log_metric``. None means "does not apply here"; an exception in
place of a number, which TRL does not know, means that this completion has none.
Source of the convention: TRL 1.16, GRPOTrainer, "Using a custom reward function".
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from gradus.core import ConfigError
from gradus.core.records import LARGEST_REWARD
from gradus.rewards.limits import OutOfTime, limited

Messages = list[dict[str, Any]]
RewardFunction = Callable[..., "list[float | None] | Awaitable[list[float | None]]"]
_IN_TIME = 256  # completions that the limit on a call's time is meant for


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What reward functions are asked about. ``columns`` are the data set's, ``answer`` among them.

    ``messages``: the completion as a conversation, if it has several turns. ``chat``: the row that it belongs to is a chat.
    """

    prompt: str
    completion: str
    system_prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    completion_ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    chat: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoredCompletion:
    """``components`` are unweighted, None if a function does not apply or failed; ``terms`` weighted, only those that apply.

    ``value`` is the sum of the terms; None if a function failed or none applied, and ``error`` says which and why.
    """

    value: float | None
    components: Mapping[str, float | None]
    terms: Mapping[str, float]
    error: str | None = None


@dataclass(frozen=True)
class _Outcome:
    value: float | None = None
    error: str | None = None
    returned: str | None = None  # the type of an exception that came in place of a number


@dataclass(frozen=True)
class _Logged:
    """What one call of a function gave to log_extra and log_metric."""

    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)


# What a function raises that was written for the other form of prompts and completions.
_READS_MESSAGES = ("string indices must be", "string index out of range", "'str' object has no attribute 'get'")
_READS_TEXT = ("'list' object has no attribute", "expected string or bytes-like object, got 'list'")


@dataclass
class TrainerState:
    """What reward functions see of the training, as in TRL. ``epochs_a_step``: which share of the rows a step asks; None if rows have no end or are not known."""

    global_step: int = 0
    max_steps: int = 1  # functions divide by it
    epochs_a_step: float | None = None

    @property
    def epoch(self) -> float | None:
        """The passes over the rows that were made; None if nothing can be said, as transformers has it."""
        if not self.global_step:
            return 0.0
        return None if self.epochs_a_step is None else self.global_step * self.epochs_a_step


class WrongCount(ValueError):
    """A function returned more or fewer rewards than it got completions. One at a time it might seem right."""


class Rewards:
    """Reward functions and their weights. Calling it scores completions.

    ``messages``: prompts and completions reach the functions as chat messages (TRL's conversational format), else as strings.
    A function that raises on a batch is asked again one completion at a time; those that raise again, or return an exception, are errors
    of that completion, counted in ``errors`` under ``name: ExceptionType``. A wrong number of rewards is an error of all its completions. ``time_limit``: seconds that a call of a function may take for
    every 256 completions or part of them; a batch that took longer is an error of all its completions. Raises ConfigError for names that meet twice.
    """

    def __init__(
        self,
        functions: Sequence[tuple[RewardFunction, float] | RewardFunction],
        *,
        messages: bool = False,
        time_limit: float = 600.0,
    ) -> None:
        pairs = [pair if isinstance(pair, tuple) else (pair, 1.0) for pair in functions]
        if not pairs:
            raise ConfigError("Rewards needs at least one reward function, got none")
        names = [reward_name(function) for function, _ in pairs]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ConfigError(
                f"reward components need different names, got {twice[0]!r} twice; set function.component_name"
            )
        for name, (_, weight) in zip(names, pairs, strict=True):
            if not math.isfinite(weight):
                raise ConfigError(f"the weight of reward {name!r} must be finite, got {weight}")
        self.functions = {name: function for name, (function, _) in zip(names, pairs, strict=True)}
        self.weights: dict[str, float] = {name: float(weight) for name, (_, weight) in zip(names, pairs, strict=True)}
        self.messages = messages
        self.time_limit = time_limit
        self.errors: Counter[str] = Counter()
        self.extras: dict[
            str, list[Any]
        ] = {}  # what functions gave to log_extra in the last call, None for a row that failed
        self.metrics: dict[str, list[float]] = {}  # and to log_metric
        self.trainer_state = TrainerState()

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """What no success and full success earn, of components whose functions say so by ``component_range``."""
        said = {name: getattr(function, "component_range", None) for name, function in self.functions.items()}
        return {name: (float(each[0]), float(each[1])) for name, each in said.items() if each is not None}

    @property
    def remote(self) -> bool:
        """Whether one of the functions asks a server."""
        return any(getattr(function, "remote", False) for function in self.functions.values())

    def __call__(self, completions: Sequence[Completion]) -> list[ScoredCompletion]:
        """Score completions, in order."""
        if not completions:
            return []
        self.extras, self.metrics = {}, {}
        outcomes = self._ask_all(list(completions))
        return [self._combine({name: each[row] for name, each in outcomes.items()}) for row in range(len(completions))]

    def _combine(self, outcomes: Mapping[str, _Outcome]) -> ScoredCompletion:
        components = {name: outcome.value for name, outcome in outcomes.items()}
        failures = [f"reward {name!r} {outcome.error}" for name, outcome in outcomes.items() if outcome.error]
        terms = {name: self.weights[name] * value for name, value in components.items() if value is not None}
        if failures:
            return ScoredCompletion(value=None, components=components, terms={}, error="; ".join(failures))
        if not terms:
            return ScoredCompletion(value=None, components=components, terms={}, error="no reward function applies")
        if not sum(map(abs, terms.values())) <= LARGEST_REWARD:
            return self._too_large(components, terms)
        return ScoredCompletion(value=math.fsum(terms.values()), components=components, terms=terms)

    def _too_large(self, components: Mapping[str, float | None], terms: Mapping[str, float]) -> ScoredCompletion:
        largest = max(terms, key=lambda name: abs(terms[name]))
        self.errors[f"{largest}: OverflowError"] += 1
        said = (
            f"reward {largest!r} times its weight is {terms[largest]:.3g}; expected at most {LARGEST_REWARD:g} together"
        )
        return ScoredCompletion(value=None, components=components, terms={}, error=said)

    def _ask_all(self, rows: list[Completion]) -> dict[str, list[_Outcome]]:
        places = range(len(rows))
        outcomes = {
            name: self._ask(name, rows, places) for name, function in self.functions.items() if not is_async(function)
        }
        waiting = [name for name in self.functions if name not in outcomes]
        if waiting:

            async def together() -> list[list[_Outcome]]:
                return list(await asyncio.gather(*(self._ask_async(name, rows, places) for name in waiting)))

            outcomes.update(zip(waiting, _run(together), strict=True))
        return {name: outcomes[name] for name in self.functions}

    def _ask(self, name: str, rows: list[Completion], places: range) -> list[_Outcome]:
        """What a function says of the rows at ``places``."""
        function, logged = self.functions[name], _Logged()
        try:
            seconds = self._seconds(places)
            answer = limited(function, seconds)(**self._arguments(function, rows[places.start : places.stop], logged))
            if inspect.isawaitable(answer):
                answer = _run(partial(_in_time, answer, seconds))
            return self._accepted(name, answer, logged, len(rows), places)
        except (Exception, SystemExit) as error:
            if len(places) == 1 or isinstance(error, OutOfTime | WrongCount):
                return [self._failed(name, error) for _ in places]
        return [self._ask(name, rows, range(place, place + 1))[0] for place in places]

    async def _ask_async(self, name: str, rows: list[Completion], places: range) -> list[_Outcome]:
        function, logged = self.functions[name], _Logged()
        try:
            answer = function(**self._arguments(function, rows[places.start : places.stop], logged))
            if inspect.isawaitable(answer):
                answer = await _in_time(answer, self._seconds(places))
            return self._accepted(name, answer, logged, len(rows), places)
        except (Exception, SystemExit) as error:
            if len(places) == 1 or isinstance(error, OutOfTime | WrongCount):
                return [self._failed(name, error) for _ in places]
        return [(await self._ask_async(name, rows, range(place, place + 1)))[0] for place in places]

    def _seconds(self, places: range) -> float:
        """The time for a call about these rows: a whole file is one call, and a step of training is one."""
        return self.time_limit * math.ceil(len(places) / _IN_TIME)

    def _accepted(self, name: str, answer: Any, logged: _Logged, rows: int, places: range) -> list[_Outcome]:
        """A call's outcomes; what it logged is kept only if they are valid, its extras at the places of its rows."""
        outcomes = _checked(answer, len(places))
        self.errors.update(f"{name}: {each.returned}" for each in outcomes if each.returned)
        for metric, values in logged.metrics.items():
            self.metrics.setdefault(metric, []).extend(values)
        for column, values in logged.extras.items():
            self.extras.setdefault(column, [None] * rows)[places.start : places.stop] = values
        return outcomes

    def _failed(self, name: str, error: Exception | SystemExit) -> _Outcome:
        self.errors[f"{name}: {type(error).__name__}"] += 1
        if isinstance(error, OutOfTime):
            return _Outcome(error=str(error))
        way_out = ""
        if not self.messages and str(error).startswith(_READS_MESSAGES):
            way_out = "; if it reads chat messages, as in completion[0]['content'], set reward_messages = true (or give --messages)"
        elif self.messages and str(error).startswith(_READS_TEXT):
            way_out = "; it gets chat messages, as the rows are chats: read completion[0]['content'], or set reward_messages = false (--texts)"
        return _Outcome(error=f"raised {type(error).__name__}: {error}{way_out}")

    def _arguments(self, function: RewardFunction, rows: list[Completion], logged: _Logged) -> dict[str, Any]:
        """The keyword arguments of one call; a function without ``**kwargs`` gets only what it names."""
        columns = dict.fromkeys(key for row in rows for key in row.columns)
        arguments: dict[str, Any] = {key: [copied_cell(row.columns.get(key)) for row in rows] for key in columns}
        arguments |= {
            "prompts": [_prompt(row, self.messages) for row in rows],
            "completions": [_completion(row, self.messages) for row in rows],
            "completion_ids": [list(row.completion_ids) for row in rows],
            "trainer_state": self.trainer_state,
            "log_extra": partial(_log_extra, logged, len(rows)),
            "log_metric": lambda metric, value: logged.metrics.setdefault(metric, []).append(float(value)),
        }
        parameters = inspect.signature(function).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        needed = [each.name for each in parameters if each.kind in named and each.default is inspect.Parameter.empty]
        if missing := [name for name in needed if name not in arguments]:
            has = ", ".join(columns) or "none"
            raise TypeError(f"it takes {', '.join(missing)}, which is no column of the data; the columns are: {has}")
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return arguments
        return {parameter.name: arguments[parameter.name] for parameter in parameters if parameter.name in arguments}


def copied_cell(cell: Any) -> Any:
    """A cell of a row for one call: what is done to its lists, dicts and sets must not reach the row."""
    if type(cell) is dict:
        return {key: copied_cell(each) for key, each in cast(dict[Any, Any], cell).items()}
    if type(cell) is list:
        return [copied_cell(each) for each in cast(list[Any], cell)]
    return set(cast(set[Any], cell)) if type(cell) is set else cell


def _log_extra(logged: _Logged, rows: int, column: str, values: Sequence[Any]) -> None:
    given = list(values)
    if len(given) != rows:
        raise ValueError(f"log_extra got {len(given)} values of {column!r} for {rows} completions")
    logged.extras[column] = given


def reward_name(function: RewardFunction) -> str:
    """The component's name: the attribute ``component_name`` if there is one, else the function's own."""
    plain = _unwrapped(function)
    return getattr(function, "component_name", None) or getattr(plain, "__name__", None) or type(plain).__name__


def is_async(function: RewardFunction) -> bool:
    """Whether a function is a coroutine function, also behind ``functools.partial`` or as an object's ``__call__``."""
    return inspect.iscoroutinefunction(_unwrapped(function))


def completion_text(completion: str | Messages) -> str:
    """The text of a completion in either format; of chat messages, what was said, without the system's and the tools' messages."""
    if isinstance(completion, str):
        return completion
    said = [message for message in completion if message.get("role") not in ("system", "tool")]
    return "\n".join(str(message.get("content") or "") for message in said)


def _unwrapped(function: Any) -> Any:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    if not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return function.__call__
    return function


def _prompt(row: Completion, messages: bool) -> str | Messages:
    if not messages:
        return row.prompt
    system = [{"role": "system", "content": row.system_prompt}] if row.system_prompt else []
    return [*system, {"role": "user", "content": row.prompt}]


def _completion(row: Completion, messages: bool) -> str | Messages:
    if not messages:
        return row.completion
    return [dict(message) for message in row.messages] or [{"role": "assistant", "content": row.completion}]


def _checked(values: Any, rows: int) -> list[_Outcome]:
    """What a function returned, as one finite number or None a row. Raises ValueError otherwise."""
    if isinstance(values, Mapping | str | set) or not isinstance(values, Iterable):  # keys or characters are no rewards
        raise ValueError(f"returned a {type(values).__name__}; return a list with one reward per completion")
    listed = list(values)
    if len(listed) != rows:
        raise WrongCount(f"returned {len(listed)} rewards for {rows} completions; return one per completion")
    failures = [
        _Outcome(error=f"failed: {value}", returned=type(value).__name__) if isinstance(value, Exception) else None
        for value in listed
    ]
    numbers = [None if value is None or isinstance(value, Exception) else float(value) for value in listed]
    if any(number is not None and not math.isfinite(number) for number in numbers):
        raise ValueError("returned a reward that is not finite; return None if it does not apply")
    if any(number is not None and abs(number) > LARGEST_REWARD for number in numbers):
        raise ValueError(f"returned a reward that is larger than {LARGEST_REWARD:g}")
    return [failure or _Outcome(value=number) for failure, number in zip(failures, numbers, strict=True)]


async def _in_time(answer: Awaitable[Any], seconds: float) -> Any:
    """What ``answer`` gives. Raises OutOfTime if it takes too long; a TimeoutError of its own is an error like others."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if limit.expired():
            raise OutOfTime(f"took more than {seconds:g} s") from None
        raise


def _run(work: Callable[[], Any]) -> Any:
    """Run a coroutine to its end, also where an event loop is already running (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
