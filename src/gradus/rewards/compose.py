"""Composing reward functions that have TRL's signature.

A reward function is ``f(prompts, completions, **columns) -> list[float | None]``, one number a completion, plain or async.
Prompts and completions are strings, or lists of chat messages; ``answer=...`` and every other column of the data set come by
name, as do ``completion_ids``, ``trainer_state``, ``log_extra`` and ``log_metric``. None means "does not apply here"; an exception in
place of a number, which TRL does not know, means that this completion has none.
Source of the convention: TRL 1.16, GRPOTrainer, "Using a custom reward function".
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from gradus.core import ConfigError
from gradus.core.errors import OutOfTime
from gradus.core.foreign import GRADER_SECONDS, arguments_for, batch_seconds, raised_at, within
from gradus.core.frozen_record import frozen_record
from gradus.core.records import LARGEST_REWARD
from gradus.core.values import Json, JsonDict, number_of
from gradus.core.waiting import settled
from gradus.rewards.conventions import GOLD_COLUMNS, as_trl

Messages = list[JsonDict]
Columns = Json  # of one row of the data, by name
Weights = Mapping[str, float]  # by component
Values = Sequence[float | None]
RewardFunction = Callable[..., Values | Awaitable[Values]]


@frozen_record
class Completion:
    """One answer that reward functions score. ``columns`` are the data set's, ``answer`` among them.

    ``messages``: the completion as a conversation, if it has several turns. ``chat``: the row that it belongs to is a chat.
    """

    prompt: str
    completion: str
    system_prompt: str = ""
    columns: Columns = field(default_factory=JsonDict)
    completion_ids: tuple[int, ...] = ()
    messages: tuple[Json, ...] = ()
    chat: bool = False


@frozen_record
class ScoredCompletion:
    """The rewards of one completion. ``value`` is the sum of ``terms``, or None, and then ``error`` says why.

    ``components`` are unweighted, None if a function does not apply or failed; ``terms`` weighted, only those that apply.
    """

    value: float | None
    components: Mapping[str, float | None]
    terms: Weights
    error: str | None = None


@dataclass(frozen=True)
class _Outcome:
    """One function's reward of one completion, None if it does not apply or failed. ``kind``: the type of the exception.

    ``mistaken``: the function failed on the type of its arguments.
    """

    value: float | None = None
    error: str | None = None
    kind: str = ""
    mistaken: bool = False


class _Log:
    """What one call of a function gave to log_extra and log_metric."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.extras: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """Take one value a completion, as TRL's ``log_extra``."""
        cells = list(values)
        if len(cells) != self.rows:
            raise ValueError(f"log_extra got {len(cells)} values of {column!r} for {self.rows} completions")
        self.extras[column] = cells

    def metric(self, metric: str, value: Any) -> None:
        """Take one number, as TRL's ``log_metric``."""
        values = self.metrics.setdefault(metric, [])
        values.append(float(value))


# Whether functions get messages -> what Python calls their arguments in an error of a function that expects the other form.
_MISTAKEN = {False: ("'str'", "string"), True: ("list", "dict")}
_FORMS = {False: "plain text", True: "chat messages"}


@dataclass
class TrainerState:
    """The training as reward functions see it, as in TRL.

    ``epochs_a_step``: the share of the rows that a step asks; None if rows have no end or are not known.
    """

    global_step: int = 0
    max_steps: int = 1  # functions divide by it
    epochs_a_step: float | None = None

    @property
    def epoch(self) -> float | None:
        """Passes over the rows so far; None if they cannot be counted, as in transformers."""
        if not self.global_step:
            return 0.0
        return None if self.epochs_a_step is None else self.global_step * self.epochs_a_step


class WrongCount(ValueError):
    """A function returned more or fewer rewards than it got completions."""


class Rewards:
    """Reward functions and their weights. Calling it scores completions; functions are asked one after another.

    ``messages``: prompts and completions reach the functions as chat messages (TRL's conversational format), else as strings. A function
    that was written for the other form, and fails on all completions for that, is asked again in its form, and from then on.
    ``time_limit``: seconds that a call may take for every 256 completions or part of them.

    A function that raises on a batch is asked again one completion at a time. A completion that raises again, or gets an
    exception as its reward, has an error, counted in ``errors`` under ``name: ExceptionType``. A batch that took too long, or
    returned a wrong number of rewards, is an error of all its completions. Raises ConfigError for names that meet twice.
    """

    def __init__(
        self,
        functions: Sequence[tuple[RewardFunction, float] | RewardFunction],
        *,
        messages: bool = False,
        time_limit: float = GRADER_SECONDS.batch,
    ) -> None:
        if not functions:
            raise ConfigError("Rewards needs at least one reward function, got none")
        self.functions: dict[str, RewardFunction] = {}
        self.weights: dict[str, float] = {}
        for entry in functions:
            function, weight = (entry, 1.0) if callable(entry) else entry
            self._add(function, weight)
        self.messages = messages
        self._forms: dict[str, bool] = {}  # whether a function gets messages, once it gave a reward
        self.time_limit = time_limit
        self.errors: Counter[str] = Counter()
        self.extras: dict[str, list[Any]] = {}  # log_extra's columns in the last call, None for a row that failed
        self.metrics: dict[str, list[float]] = {}  # log_metric's values in the last call
        self.trainer_state = TrainerState()

    def _add(self, function: RewardFunction, weight: float) -> None:
        """Takes one more function, in TRL's signature from now on."""
        name = reward_name(function)
        if name in self.functions:
            raise ConfigError(
                f"reward components need different names, got {name!r} twice; set function.component_name"
            )
        if not math.isfinite(weight):
            raise ConfigError(f"the weight of reward {name!r} must be finite, got {weight}")
        # Under the name of the author's own function, which may now be wrapped.
        self.functions[name] = as_trl(function)
        self.weights[name] = float(weight)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Rewards of no success and of full success, for components whose functions declare a ``component_range``."""
        ranges: dict[str, tuple[float, float]] = {}
        for name, function in self.functions.items():
            limits = getattr(function, "component_range", None)
            if limits is not None:
                low, high = limits
                ranges[name] = (float(low), float(high))
        return ranges

    @property
    def remote(self) -> bool:
        """True if one of the functions asks a server."""
        return any(getattr(function, "remote", False) for function in self.functions.values())

    def reads_messages(self, name: str) -> bool:
        """True if a function gets chat messages: all do, or it has shown that it was written for them."""
        return self._forms.get(name, self.messages)

    def __call__(self, completions: Sequence[Completion]) -> list[ScoredCompletion]:
        """Score completions, in order."""
        if not completions:
            return []
        self.extras = {}
        self.metrics = {}
        outcomes = [self._ask_in_its_form(name, completions) for name in self.functions]
        return [self._combine(row) for row in zip(*outcomes, strict=True)]

    def _combine(self, outcomes: Sequence[_Outcome]) -> ScoredCompletion:
        """Adds up the rewards of one completion. One function that failed leaves it without a reward: a part of a sum is another reward."""
        components: dict[str, float | None] = {}
        terms: dict[str, float] = {}
        errors: list[str] = []
        for name, outcome in zip(self.functions, outcomes, strict=True):
            components[name] = outcome.value
            if outcome.value is not None:
                terms[name] = self.weights[name] * outcome.value
            if outcome.error:
                self.errors[f"{name}: {outcome.kind}"] += 1
                errors.append(f"reward {name!r} {outcome.error}")
        if not terms and not errors:
            errors = [f"None came from every reward function ({', '.join(components)})"]
        if errors:
            return ScoredCompletion(value=None, components=components, terms={}, error="; ".join(errors))
        value = math.fsum(terms.values())
        return ScoredCompletion(value=value, components=components, terms=terms)

    def _ask_in_its_form(self, name: str, rows: Sequence[Completion]) -> list[_Outcome]:
        """Asks a function, and again in the other form if it shows by all its errors that it was written for that."""
        outcomes = self._ask(name, rows, range(len(rows)))
        if not _all_failed(outcomes):
            if any(row.completion for row in rows):  # an empty text and no messages may look alike
                self._forms.setdefault(name, self.messages)
            return outcomes
        if name in self._forms or not any(outcome.mistaken for outcome in outcomes):
            return outcomes
        other = not self.messages
        self._forms[name] = other
        retried = self._ask(name, rows, range(len(rows)))
        if not _all_failed(retried):
            warnings.warn(f"reward {name!r} reads {_FORMS[other]}: it gets {_FORMS[other]}", stacklevel=2)
            return retried
        del self._forms[name]
        return outcomes

    def _ask(self, name: str, rows: Sequence[Completion], places: range) -> list[_Outcome]:
        """Asks a function about the rows at ``places``, and again about each of them if it raised."""
        function = self.functions[name]
        log = _Log(len(places))  # of this call: what a call logged that failed is not kept
        limit = batch_seconds(len(places), self.time_limit)
        try:
            arguments = self._arguments(name, rows[places.start : places.stop], log)
            answer = within(limit, f"reward {name!r}", lambda: settled(function(**arguments)))
            return self._accepted(answer, log, len(rows), places)
        except (Exception, SystemExit) as error:  # graders written as scripts end by sys.exit()
            # One at a time, a function that counts wrongly might seem right, and one that hangs would hang for each.
            if len(places) == 1 or isinstance(error, OutOfTime | WrongCount):
                return [self._failed(name, error) for _ in places]
        return [self._ask(name, rows, range(place, place + 1))[0] for place in places]

    def _accepted(self, answer: Any, log: _Log, rows: int, places: range) -> list[_Outcome]:
        """Returns a call's outcomes and keeps what it logged, its extras at the places of its rows. Raises if they are not valid."""
        outcomes = _outcomes(answer, len(places))
        for metric, numbers in log.metrics.items():
            self.metrics.setdefault(metric, []).extend(numbers)
        for column, cells in log.extras.items():
            extra = self.extras.setdefault(column, [None] * rows)
            extra[places.start : places.stop] = cells
        return outcomes

    def _failed(self, name: str, error: Exception | SystemExit) -> _Outcome:
        """Says what was raised, and where in the user's file."""
        kind = type(error).__name__
        if isinstance(error, OutOfTime):
            return _Outcome(error=str(error).removeprefix(f"reward {name!r} "), kind=kind)
        names_other_form = any(word in str(error) for word in _MISTAKEN[self.reads_messages(name)])
        return _Outcome(
            error=f"raised {kind}: {error}{raised_at(error)}",
            kind=kind,
            mistaken=names_other_form and isinstance(error, TypeError | AttributeError),
        )

    def _arguments(self, name: str, rows: Sequence[Completion], log: _Log) -> JsonDict:
        """The keyword arguments of one call; a function without ``**kwargs`` gets only what it names."""
        # Rows may lack some, which are None there.
        columns = dict.fromkeys(column for row in rows for column in row.columns)
        arguments: JsonDict = {}
        for column in columns:
            arguments[column] = [copied_cell(row.columns.get(column)) for row in rows]
        messages = self.reads_messages(name)
        arguments["prompts"] = [_prompt(row, messages) for row in rows]
        arguments["completions"] = [_completion(row, messages) for row in rows]
        arguments["completion_ids"] = [list(row.completion_ids) for row in rows]
        arguments["trainer_state"] = self.trainer_state
        arguments["log_extra"] = log.extra
        arguments["log_metric"] = log.metric

        function = self.functions[name]
        parameters = inspect.signature(function).parameters.values()
        needed = [parameter.name for parameter in parameters if _is_needed(parameter)]
        if "answer" in columns:
            for gold in GOLD_COLUMNS.intersection(needed) - arguments.keys():
                arguments[gold] = arguments["answer"]
        missing = [name for name in needed if name not in arguments]
        if missing:
            listed = ", ".join(columns) or "none"
            raise TypeError(f"it takes {', '.join(missing)}, which the data do not have; the columns are: {listed}")
        return arguments_for(function, arguments)


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Says whether a function cannot be called without this argument."""
    by_name = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return by_name and parameter.default is inspect.Parameter.empty


_CHANGEABLE: tuple[type[Any], ...] = (list, dict, set)


def copied_cell(cell: Any) -> Any:
    """Copies a cell of a row for one call: a function that changes a list, dict or set must not change the row."""
    return copy.deepcopy(cell) if isinstance(cell, _CHANGEABLE) else cell


def reward_name(function: RewardFunction) -> str:
    """Returns the component's name: the attribute ``component_name`` if there is one, else the function's own."""
    plain = function  # a partial has no name of its own
    while isinstance(plain, partial):
        plain = plain.func
    return getattr(function, "component_name", None) or getattr(plain, "__name__", None) or type(plain).__name__


def completion_text(completion: str | Messages) -> str:
    """Returns the text of a completion in either format, without the messages of the system and of tools."""
    if isinstance(completion, str):
        return completion
    spoken = [message for message in completion if message.get("role") not in ("system", "tool")]
    return "\n".join(str(message.get("content") or "") for message in spoken)


def _prompt(row: Completion, messages: bool) -> str | Messages:
    """The prompt as a text, or as messages with the system prompt first."""
    if not messages:
        return row.prompt
    system = [{"role": "system", "content": row.system_prompt}] if row.system_prompt else []
    return [*system, {"role": "user", "content": row.prompt}]


def _completion(row: Completion, messages: bool) -> str | Messages:
    """The completion as a text, or as messages: a conversation's own, else one of the assistant."""
    if not messages:
        return row.completion
    return [dict(message) for message in row.messages] or [{"role": "assistant", "content": row.completion}]


def _all_failed(outcomes: Sequence[_Outcome]) -> bool:
    return all(outcome.error for outcome in outcomes)


def _outcomes(values: Any, rows: int) -> list[_Outcome]:
    """Returns one outcome for each row. Raises ValueError unless there is a number, None or an exception for each."""
    # A mapping would give its keys, a text its characters, and a set has no order.
    is_list = isinstance(values, Iterable) and not isinstance(values, Mapping | str | set)
    if not is_list:
        raise ValueError(f"returned a {type(cast(Any, values)).__name__}; return a list with one reward per completion")
    rewards = list(cast(Iterable[Any], values))
    if len(rewards) != rows:
        raise WrongCount(f"returned {len(rewards)} rewards for {rows} completions; return one per completion")
    return [_outcome(reward) for reward in rewards]


def _outcome(reward: Any) -> _Outcome:
    """Reads what a function returned for one completion. Raises ValueError or TypeError for what is no finite number."""
    if reward is None:
        return _Outcome()
    if isinstance(reward, Exception):
        return _Outcome(error=f"failed: {reward}", kind=type(reward).__name__)
    value = number_of(reward)
    if not math.isfinite(value):
        raise ValueError("returned a reward that is not finite; return None if it does not apply")
    if abs(value) > LARGEST_REWARD:
        raise ValueError(f"returned a reward that is larger than {LARGEST_REWARD:g}")
    return _Outcome(value=value)
