"""Reads logs of inspect_ai (https://inspect.aisi.org.uk) as episodes, so that they can be compared.

The library reads them; it is imported when it is needed (``pip install 'gradus-rl[inspect]'``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentSpec,
    Episode,
    Failure,
    Grader,
    Reward,
    StopReason,
    StorageError,
    Task,
    Turn,
)
from gradus.core.errors import first_line

_WORDS = {"C": 1, "I": 0, "P": 0.5, "N": 0, "YES": 1, "NO": 0, "TRUE": 1, "FALSE": 0}  # as inspect_ai scores them


@dataclass(frozen=True, kw_only=True)
class InspectLog:
    """A log as ours: its task, its first scorer, an episode for each sample and epoch, and its settings."""

    task: str
    scorer: str
    episodes: Sequence[Episode]
    settings: Mapping[str, str]


def is_log(path: Path) -> bool:
    """Tells a log by its form: a file that ends in .eval or .json."""
    return path.is_file() and path.suffix in (".eval", ".json")


def read_log(path: Path, *, policy: str) -> InspectLog:
    """A log's samples as episodes of ``policy``. The first scorer's value is the reward; other scorers become metrics.

    Scorers are in the order of the log's results. A scorer that gives several values by name is as many scorers, ``scorer/name``. Values that
    are not a finite number are missing.

    Raises ConfigError if inspect_ai is not installed or the log holds no scored sample, StorageError if it cannot be read.
    """
    logs = _library()
    try:
        log = logs.read_eval_log(str(path), resolve_attachments=True)
    except Exception as error:  # the library raises what its parsers raise
        raise StorageError(f"{path} cannot be read by inspect_ai as a log: {first_line(error)}") from error
    samples: Sequence[Any] = log.samples or ()
    scorers = _scorers(log, samples)
    if not scorers:
        raise ConfigError(f"{path} holds no scored sample; run its evaluation to the end, with a scorer")
    generated = log.eval.model_generate_config.model_dump(exclude_none=True)
    settings = {"model": log.eval.model, **log.eval.task_args, **generated}
    return InspectLog(
        task=log.eval.task,
        scorer=scorers[0],
        episodes=[_episode(sample, log.eval.task, policy, scorers) for sample in samples],
        settings={name: str(value) for name, value in settings.items()},
    )


def _library() -> Any:
    try:
        from inspect_ai import log  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("logs of inspect_ai need its package: pip install 'gradus-rl[inspect]'") from error
    return log


def _scorers(log: Any, samples: Sequence[Any]) -> list[str]:
    """The names of all scores, in the order of the log's results; samples may lack some."""
    found = dict.fromkeys(name for sample in samples for name in _values(sample))
    if log.results:
        listed = [
            name for each in log.results.scores for name in (each.name, f"{each.scorer}/{each.name}", each.scorer)
        ]
    else:  # the evaluation was broken off
        listed = [each.name for each in log.eval.scorers or ()]
    return list(dict.fromkeys([name for name in listed if name in found] + list(found)))


def _episode(sample: Any, task: str, policy: str, scorers: Sequence[str]) -> Episode:
    given = _values(sample)
    values = {name: _number(value) for name, value in given.items()}
    failure = sample.error and Failure(stage="act", type="EvalError", message=sample.error.message)
    first = values.get(scorers[0])
    unread = f"the score {str(given.get(scorers[0]))[:80]!r} is not a finite number" if first is None else None
    reward = Reward(grader=scorers[0], value=first, error=unread)
    return Episode(
        task=Task(environment=task, seed=_stable(sample.id), condition="samples", id=_asked(sample)),
        policy=policy,
        turns=tuple(_turns(sample)),
        stop=StopReason.FAILED
        if failure
        else StopReason.TERMINATED
        if sample.limit is None
        else StopReason.TOKEN_LIMIT,
        member=sample.epoch - 1,
        reward=None if failure else reward,
        failure=failure or None,
        metrics={name: values.get(name) for name in scorers[1:]},
    )


def _values(sample: Any) -> dict[str, Any]:
    """A sample's scores by name; those of a scorer that gives several as ``scorer/name``."""
    values: dict[str, Any] = {}
    for scorer, score in (sample.scores or {}).items():
        if isinstance(score.value, Mapping):
            values |= {f"{scorer}/{name}": value for name, value in score.value.items()}
        else:
            values[scorer] = score.value
    return values


def _asked(sample: Any) -> str:
    """A hash of what a sample asks: ids such as 1, 2, 3 stand for other questions in another data set.

    The choices are sorted, and their target, which is a letter, is left out: an evaluation may shuffle them.
    """
    asked = sample.input if isinstance(sample.input, str) else [(each.role, each.text) for each in sample.input]
    answer = sorted(sample.choices) if sample.choices else sample.target
    return hashlib.blake2b(repr((asked, answer)).encode(errors="replace"), digest_size=8).hexdigest()


def _turns(sample: Any) -> Iterable[Turn]:
    """Each answer of the model with what it had read since its last one."""
    read: list[str] = []
    answers = 0
    for message in sample.messages:
        if message.role == "assistant":
            yield Turn(index=answers, observation="\n\n".join(read), action=message.text)
            read, answers = [], answers + 1
        else:
            read.append(message.text)


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.upper() in _WORDS:
        return float(_WORDS[value.upper()])
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _stable(name: int | str) -> int:
    """A number for a sample's id, the same in every log."""
    return name if isinstance(name, int) else int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest())


def log_spec(log: InspectLog) -> EnvironmentSpec:
    """Returns what a comparison must know of a log's task. Nothing can be rolled out in it."""

    def cannot(*_: Any) -> Any:
        raise ConfigError(f"{log.task} is known by its log alone; it cannot be rolled out here")

    return EnvironmentSpec(
        name=log.task,
        summary="a task of inspect_ai",
        make=cannot,
        graders={log.scorer: Grader(name=log.scorer, compute=cannot)},
        conditions={"samples": Condition(name="samples", seeds=())},
        train_task=cannot,
        max_turns=1,
    )
