"""Results by task that another evaluator wrote, as episodes: lm-eval's samples, inspect's JSON logs, and plain lines of tasks and rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gradus.core import ConfigError, Episode, Reward, StopReason, Task
from gradus.core.files import read_json, read_json_lines
from gradus.core.values import Json, is_table

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect's correct, partial, incorrect, no answer
TASKS = "tasks"
Scores = Mapping[tuple[str, int], float]  # (task, sample or seed) -> reward


def task_scores(path: Path) -> Scores:
    """The reward of each task and sample of a file. Raises ConfigError for a file of another form."""
    if path.suffix == ".eval":
        raise ConfigError(f"{path} is compressed in inspect's own way; write it as JSON: inspect log convert --to json")
    if path.suffix == ".json":
        rows = [_inspect(sample) for sample in _samples(read_json(path))]
    else:
        rows = [_line(line) for line in read_json_lines(path)]
    scores: dict[tuple[str, int], float] = {}
    for row in rows:
        if row is None:
            raise ConfigError(
                f"{path} has no results by task; expected lm-eval's samples_*.jsonl, inspect's log as JSON (inspect log convert --to json), "
                'or lines {"task": ..., "seed": 0, "reward": 1.0}'
            )
        task, sample, value = row
        scores.setdefault((task, sample), value)  # lm-eval has a line a filter, the first of which is its main one
    if not scores:
        raise ConfigError(f"{path} is empty")
    return scores


def _line(line: Json) -> tuple[str, int, float] | None:
    """A line of lm-eval, whose first metric counts, or of one's own."""
    metrics = line.get("metrics")
    if "doc_id" in line and isinstance(metrics, list) and metrics:
        return _row(line["doc_id"], 0, line.get(cast(str, metrics[0])))
    if "task" in line:
        return _row(line["task"], line.get("seed", 0), line.get("reward"))
    return None


def _samples(document: Any) -> Sequence[Json]:
    """The samples of a log of inspect."""
    return list(document.get("samples", [{}])) if is_table(document) else [{}]


def _inspect(sample: Json) -> tuple[str, int, float] | None:
    """A sample of inspect, whose first scorer counts."""
    scores = sample.get("scores")
    if not is_table(scores) or not scores:
        return None
    score: Any = next(iter(scores.values()))
    value = score.get("value") if is_table(score) else None
    if isinstance(value, str):
        value = _LETTERS.get(value)
    return _row(sample.get("id"), sample.get("epoch", 1), value)


def _row(task: Any, sample: Any, value: Any) -> tuple[str, int, float] | None:
    """Task, sample and score; None if there is no number."""
    return (str(task), int(sample), float(value)) if isinstance(value, int | float) else None


def task_episodes(path: Path) -> list[Episode]:
    """An episode for each task and sample of a file, in an order of the tasks alone."""
    scores = task_scores(path)
    episodes: list[Episode] = []
    # Files are paired by a task's seed and id, so neither may depend on the order of the lines.
    for number, key in enumerate(sorted(scores)):
        task = Task(environment=TASKS, seed=number, condition=TASKS, id=json.dumps(key))
        reward = Reward(grader="score", value=scores[key], components={"score": scores[key]})
        episodes.append(Episode(task=task, policy="", turns=(), stop=StopReason.TERMINATED, reward=reward))
    return episodes
