"""Logs of inspect_ai (https://inspect.aisi.org.uk): read as episodes, so that they can be compared, and written from ours.

The library reads and writes them; it is imported when it is needed (``pip install 'gradus-rl[inspect]'``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentSpec,
    Episode,
    Failure,
    Grader,
    Message,
    Reward,
    StopReason,
    StorageError,
    Task,
    Turn,
)
from gradus.core.errors import first_line
from gradus.version import __version__

_WORDS = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    "YES": 1.0,
    "NO": 0.0,
    "TRUE": 1.0,
    "FALSE": 0.0,
}  # as inspect_ai scores them


_PACKAGE = "gradus-rl"  # in a log's packages: we wrote it


@dataclass(frozen=True, kw_only=True)
class InspectLog:
    """A log as ours: its task, its first scorer, an episode for each sample and epoch, and its settings."""

    task: str
    scorer: str
    episodes: Sequence[Episode]
    settings: Mapping[str, str]


def is_log(path: Path) -> bool:
    """Whether a path has the form of a log: a file that ends in .eval or .json."""
    return path.is_file() and path.suffix in (".eval", ".json")


def read_log(path: Path, *, policy: str) -> InspectLog:
    """A log's samples as episodes of ``policy``. The first scorer's value is the reward; other scorers become metrics.

    Scorers are in the order of the log's results. A scorer that gives several values by name is as many scorers, ``scorer/name``. Values that
    are no finite number are missing. What a sample's metadata say of its task is read if Gradus wrote the log; anyone else may mean
    something else by them.
    Raises ConfigError if inspect_ai is not installed or the log holds no scored sample, StorageError if it cannot be read.
    """
    logs = _library()
    try:
        log = logs.read_eval_log(str(path), resolve_attachments=True)
    except Exception as error:  # the library raises what its parsers raise
        raise StorageError(f"{path} is no log that inspect_ai can read: {first_line(error)}") from error
    samples: Sequence[Any] = log.samples or ()
    scorers = _scorers(log, samples)
    if not scorers:
        raise ConfigError(f"{path} holds no scored sample; run its evaluation to the end, with a scorer")
    own = _PACKAGE in (log.eval.packages or {})
    generated = log.eval.model_generate_config.model_dump(exclude_none=True)
    settings = {"model": log.eval.model, **log.eval.task_args, **generated}
    return InspectLog(
        task=log.eval.task,
        scorer=scorers[0],
        episodes=[_episode(sample, log.eval.task, policy, scorers, own=own) for sample in samples],
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


def _episode(sample: Any, task: str, policy: str, scorers: Sequence[str], *, own: bool) -> Episode:
    given = _values(sample)
    values = {name: _number(value) for name, value in given.items()}
    failure = sample.error and Failure(stage="act", type="EvalError", message=sample.error.message)
    first = values.get(scorers[0])
    unread = f"the score {str(given.get(scorers[0]))[:80]!r} is no finite number" if first is None else None
    reward = Reward(grader=scorers[0], value=first, error=unread)
    told = (sample.metadata or {}) if own else {}
    return Episode(
        task=Task(
            environment=task,
            seed=told["seed"] if isinstance(told.get("seed"), int) else _stable(sample.id),
            condition=str(told.get("condition", "samples")),
            id=str(told.get("task", "")) if own else _asked(sample),
        ),
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
        return _WORDS[value.upper()]
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _stable(name: int | str) -> int:
    """A number for a sample's id, the same in every log."""
    return name if isinstance(name, int) else int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest())


def log_spec(log: InspectLog) -> EnvironmentSpec:
    """What a comparison must know of a log's task. Nothing can be rolled out in it."""

    def cannot(*_: Any) -> Any:
        raise ConfigError(f"{log.task} is known by its log alone; it cannot be rolled out here")

    conditions = dict.fromkeys(each.task.condition for each in log.episodes)
    return EnvironmentSpec(
        name=log.task,
        summary="a task of inspect_ai",
        make=cannot,
        graders={log.scorer: Grader(name=log.scorer, compute=cannot)},
        conditions={name: Condition(name=name, seeds=()) for name in conditions},
        train_task=cannot,
        max_turns=1,
    )


def write_logs(episodes: Sequence[Episode], folder: Path, *, model: str) -> list[Path]:
    """One log a policy and condition, as ``CONDITION-POLICY.eval``; returns the paths. Open them with ``inspect view``."""
    logs = _library()
    several: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        several.setdefault((episode.task.condition, episode.policy), []).append(episode)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for (condition, policy), each in several.items():
        name = f"{condition}-{policy}".replace("/", "_").replace(":", "_")
        taken = sum(other.stem == name or other.stem.startswith(f"{name}~") for other in written)
        path = folder / (f"{name}~{taken + 1}.eval" if taken else f"{name}.eval")
        logs.write_eval_log(_log(logs, each, condition, f"gradus/{policy}", model), str(path))
        written.append(path)
    return written


def _log(logs: Any, episodes: Sequence[Episode], condition: str, name: str, model: str) -> Any:
    samples = [_sample(logs, episode, name) for episode in episodes]
    now = datetime.now(UTC).isoformat()
    ids = list(dict.fromkeys(sample.id for sample in samples))
    spec = logs.EvalSpec(
        created=now,
        task=episodes[0].task.environment,
        dataset=logs.EvalDataset(name=condition, samples=len(ids), sample_ids=ids),
        model=name,
        model_args={"checkpoint": model},
        config=logs.EvalConfig(epochs=1 + max(episode.member for episode in episodes)),
        packages={_PACKAGE: __version__},
    )
    graders = [each.reward.grader for each in episodes if each.reward and each.reward.value is not None]
    scores = [
        logs.EvalScore(name=scorer, scorer=scorer, metrics=_metrics(logs, [(s.id, s.scores[scorer].value) for s in samples if scorer in s.scores]))
        for scorer in dict.fromkeys([*graders, *(scorer for sample in samples for scorer in sample.scores)])
    ]  # fmt: skip
    whole = sum(sample.error is None for sample in samples)
    results = logs.EvalResults(total_samples=len(samples), completed_samples=whole, scores=scores)
    stats = logs.EvalStats(started_at=now, completed_at=now)
    return logs.EvalLog(version=2, status="success", eval=spec, results=results, stats=stats, samples=samples)


def _metrics(logs: Any, scored: Sequence[tuple[int | str, float]]) -> dict[str, Any]:
    """Mean and standard error of (sample's id, value). A task's epochs are not independent, so they are one figure, as inspect_ai has it."""
    of_sample: dict[int | str, list[float]] = {}
    for name, value in scored:
        of_sample.setdefault(name, []).append(value)
    values = [fmean(epochs) for epochs in of_sample.values()]
    metrics = {"mean": fmean(values)}
    if len(values) > 1:
        metrics["stderr"] = stdev(values) / len(values) ** 0.5
    return {name: logs.EvalMetric(name=name, value=value) for name, value in metrics.items()}


def _sample(logs: Any, episode: Episode, model: str) -> Any:
    from inspect_ai.model import ModelOutput  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import Score  # pyright: ignore[reportMissingImports]

    messages = [_message(each) for each in _conversation(episode)]
    values = {"true_reward": episode.metrics.get("true_reward"), **episode.metrics}
    graded = episode.reward
    scores = {name: Score(value=value) for name, value in values.items() if value is not None and isfinite(value)}
    if graded is not None and graded.value is not None:
        scores.pop(graded.grader, None)  # a metric of the grader's name
        first = Score(value=graded.value, metadata={"components": dict(graded.components)})
        scores = {graded.grader: first, **scores}
    failed = episode.failure and {
        "message": f"{episode.failure.type}: {episode.failure.message}",
        "traceback": "",
        "traceback_ansi": "",
    }
    return logs.EvalSample(
        id=f"{episode.task.condition}/{episode.task.seed}",
        epoch=episode.member + 1,
        input=episode.turns[0].observation if episode.turns else "",
        target="",
        messages=messages,
        output=ModelOutput.from_content(model, episode.turns[-1].action if episode.turns else ""),
        scores=scores,
        metadata={
            "condition": episode.task.condition,
            "seed": episode.task.seed,
            "task": episode.task.id,
            "stop": str(episode.stop),
        },
        error=failed or None,
    )  # fmt: skip


def _conversation(episode: Episode) -> Iterable[Message]:
    if episode.system_prompt:
        yield Message(role="system", content=episode.system_prompt)
    for turn in episode.turns:
        yield from turn.messages or (Message(role="user", content=turn.observation),)
        yield Message(role="assistant", content=turn.action, calls=turn.calls)


def _message(message: Message) -> Any:
    from inspect_ai.model import (  # pyright: ignore[reportMissingImports]
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )

    if message.role == "tool":
        return ChatMessageTool(
            content=message.content, tool_call_id=message.call_id or None, function=message.name or None
        )
    kinds = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}
    return kinds.get(message.role, ChatMessageUser)(content=message.content)
