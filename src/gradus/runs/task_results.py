"""Results by task that another evaluator wrote, as episodes: lm-eval's samples, inspect's JSON logs, and plain lines of tasks and rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gradus.core import ConfigError, Episode, Reward, StopReason, Task
from gradus.core.files import read_json, read_json_lines
from gradus.core.values import Json

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect's correct, partial, incorrect, no answer
TASKS = "tasks"
Scores = Mapping[tuple[str, int], float]  # (task, sample or seed) -> reward


def task_scores(path: Path) -> Scores:
    """The reward of each task and sample of a file. Raises ConfigError for a file of another form."""
    if path.suffix == ".eval":
        raise ConfigError(f"{path} is compressed in inspect's own way; write it as JSON: inspect log convert --to json")
    scores: dict[tuple[str, int], float] = {}
    try:
        rows = (
            map(_inspect, read_json(path)["samples"]) if path.suffix == ".json" else map(_line, read_json_lines(path))
        )
        for task, sample, value in rows:
            # lm-eval has a line a filter, the first of which is its main one
            scores.setdefault((task, sample), value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"{path} has no results by task; expected lm-eval's samples_*.jsonl, inspect's log as JSON (inspect log convert --to json), "
            'or lines {"task": ..., "seed": 0, "reward": 1.0}'
        ) from error
    if not scores:
        raise ConfigError(f"{path} is empty")
    return scores


def _line(line: Json) -> tuple[str, int, float]:
    """Task, sample and score of a line of lm-eval, whose first metric counts, or of one's own."""
    if "doc_id" in line:
        return str(line["doc_id"]), 0, float(line[line["metrics"][0]])
    return str(line["task"]), int(line.get("seed", 0)), float(line["reward"])


def _inspect(sample: Json) -> tuple[str, int, float]:
    """The same of a sample of inspect, whose first scorer counts."""
    first, *_ = sample["scores"].values()
    score = first["value"]
    if score in _LETTERS:
        score = _LETTERS[score]
    return str(sample["id"]), int(sample.get("epoch", 1)), float(score)


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
