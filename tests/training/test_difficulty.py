"""Tasks by difficulty: what could teach something comes first, nothing is lost, and a resumed run draws the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import lamps
from short_runs import Stopped, grpo_config, same_weights, stop_after, train

from gradus.core import ConfigError, Episode, Group, Reward, StopReason, Task
from gradus.core.files import read_json
from gradus.training.config import GrpoConfig
from gradus.training.data.difficulty import TaskDifficulty


def settings(**changes: Any) -> GrpoConfig:
    return grpo_config(**{"tasks": 24, "task_order": "difficulty", **changes})


def group(task: Task, rewards: list[float]) -> Group:
    def episode(value: float) -> Episode:
        return Episode(
            task=task, policy="p", turns=(), stop=StopReason.TERMINATED, reward=Reward(grader="g", value=value)
        )

    return Group(task=task, episodes=tuple(episode(each) for each in rewards))


def answers(success: float, rng: np.random.Generator) -> list[float]:
    return [float(each) for each in rng.random(4) < success]


def test_tasks_that_are_half_solved_are_drawn_most_and_no_task_is_lost() -> None:
    difficulty, rng = TaskDifficulty(lamps(), settings(), ()), np.random.default_rng(0)
    pool = difficulty.draw(1, 0, 24, ())
    success = {task.id: (0.0, 0.5, 1.0)[place % 3] for place, task in enumerate(pool)}
    drawn: dict[str | None, int] = dict.fromkeys(success, 0)
    for step in range(1, 201):
        tasks = difficulty.draw(step, 0, 4, ())
        assert len({task.id for task in tasks}) == 4
        difficulty.observe(step, [group(task, answers(success[task.id], rng)) for task in tasks])
        for task in tasks:
            drawn[task.id] += 1
    half = sum(count for task, count in drawn.items() if success[task] == 0.5)
    assert half > 0.6 * 800  # by chance a third
    assert min(drawn.values()) >= 3  # what was solved, or never was, is looked at again


def test_the_signal_does_not_depend_on_the_scale_of_the_reward() -> None:
    drawn = []
    for scale, shift in ((1.0, 0.0), (10.0, -3.0)):
        difficulty, rng = TaskDifficulty(lamps(), settings(), ()), np.random.default_rng(1)
        for step in range(1, 21):
            tasks = difficulty.draw(step, 0, 4, ())
            difficulty.observe(step, [group(each, [scale * r + shift for r in answers(0.4, rng)]) for each in tasks])
        drawn.append([task.id for task in difficulty.draw(21, 0, 8, ())])
    assert drawn[0] == drawn[1]


def test_a_resumed_run_draws_and_learns_the_same(lamps_model: Path, tmp_path: Path) -> None:
    config = settings(max_steps=6, checkpoint_every=2)
    train(lamps_model, tmp_path / "whole", config)
    with pytest.raises(Stopped):
        train(lamps_model, tmp_path / "cut", config, on_step=stop_after(3))
    train(lamps_model, tmp_path / "cut", config, resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    splits = [read_json(tmp_path / name / "splits.json") for name in ("whole", "cut")]
    assert splits[0] == splits[1]
    assert 4 <= len(splits[0]["train"]) <= 24


def test_endless_tasks_cannot_come_again() -> None:
    with pytest.raises(ValueError, match="these are endless; set tasks"):
        settings(tasks=None)
    with pytest.raises(ConfigError, match="chooses 4 tasks a step, and 3 may be trained on"):
        TaskDifficulty(lamps(), settings(tasks=3), ())
