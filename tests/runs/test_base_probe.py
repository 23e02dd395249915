"""A published model is asked before anything is spent; what has nothing to learn from is refused; a time fits the settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import ConfigError
from gradus.core.documents import MANIFEST
from gradus.rewards import choose_rewards
from gradus.runs.forecast.base_probe import way_out
from gradus.runs.forecast.time import fit_to_time, fitted_job, is_probed, look_at_base, seconds_of
from gradus.runs.job import Job, resolve
from gradus.runs.recipe.load import load_recipe

REWARDS = """def nothing(completions, **columns):
    return [0.0 for _ in completions]


def letters(completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_tiny_qwen2(folder / "model", context=2048)
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(80)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "base_rewards.py").write_text(REWARDS)
    return folder


def job_with(folder: Path, reward: str) -> Job:
    recipe = load_recipe(
        f"jsonl:{folder / 'rows.jsonl'}",
        model=str(folder / "model"),
        rewards=choose_rewards([f"{folder / 'base_rewards.py'}:{reward}"]),
        changes=["grpo.sampling.max_new_tokens=24", "grpo.groups=4", "grpo.group_size=4"],
    )
    return resolve(recipe)


def test_a_base_without_any_variance_is_refused_with_a_way_out(folder: Path, tmp_path: Path) -> None:
    """Nothing said that the reward was 0 in 19 of 20 settings; the forecast was 93 hours, and the doctor found nothing unusual."""
    job = job_with(folder, "nothing")
    assert is_probed(job)
    lines: list[str] = []
    with pytest.raises(
        ConfigError, match="nothing to learn from here: all its answers to each of 16 questions earn the same"
    ):
        fitted_job(job, tmp_path, time=None, fixed=(), anyway=False, tell=lines.append)
    assert "the base earns 0" in lines[0]
    assert not (tmp_path / MANIFEST).exists()
    fitted_job(job, tmp_path, time="10m", fixed=(), anyway=True, tell=lines.append)
    assert (tmp_path / MANIFEST).is_file()


def test_a_resumed_run_keeps_the_settings_that_were_fitted(folder: Path, tmp_path: Path) -> None:
    job = job_with(folder, "letters")
    lines: list[str] = []
    first = fitted_job(job, tmp_path, time="5m", fixed=("grpo.groups",), anyway=False, tell=lines.append)
    assert first.recipe.grpo.groups == 4
    assert "for 5m (--time changes it)" in lines[-1]
    again = fitted_job(job, tmp_path, time="5m", fixed=("grpo.groups",), anyway=False, tell=lines.append)
    assert again.recipe == first.recipe
    assert len(lines) == 4  # the second time nothing was asked


def test_a_steps_cost_is_that_of_its_parts_on_one_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One first update was timed with two clocks, so that training took 0.0 s and an update 8.5 s."""
    costs = iter([{"train": 9.0, "update": 8.0}, {"train": 3.2, "update": 0.5}])
    steps: list[float] = []

    def update(*arguments: Any) -> Any:
        steps.append(1.0)
        return SimpleNamespace(seconds=next(costs))

    monkeypatch.setattr("gradus.runs.forecast.base_probe.policy_update", update)
    job = job_with(folder, "letters")
    probe = look_at_base(job, time=None, fixed=()).probe
    assert len(steps) == 2
    config = job.recipe.grpo
    trained = 4 * 4  # a quarter of the questions, four answers each
    assert probe.train == pytest.approx(3.2 / config.epochs / trained)
    assert probe.update == pytest.approx(0.5 / (config.epochs * config.minibatches))
    assert probe.rollout > 0


def test_less_time_makes_a_shorter_run_and_what_a_person_set_stays(folder: Path) -> None:
    job = job_with(folder, "letters")
    probe = replace(look_at_base(job, time=None, fixed=()).probe, rollout=0.5, train=0.5, update=0.5, paid=None)
    runs = [fit_to_time(job, probe, seconds, ()) for seconds in (600.0, 7200.0)]
    assert runs[0][0].grpo.max_steps < runs[1][0].grpo.max_steps
    assert all(seconds < 1.3 * limit for (_, _, seconds), limit in zip(runs, (600.0, 7200.0), strict=True))
    kept, changes, _ = fit_to_time(job, probe, 600.0, ("grpo.max_steps", "eval.episodes"))
    assert kept.grpo.max_steps == job.recipe.grpo.max_steps
    assert not {"grpo.max_steps", "eval.episodes"} & changes.keys()


def test_the_way_out_follows_from_what_the_answers_show(folder: Path) -> None:
    job = job_with(folder, "nothing")
    probe, spec = look_at_base(job, time=None, fixed=()).probe, job.environment
    for seen, way in (
        ({"stated": 0.5, "asks_for_tags": True}, "--reward final_answer"),
        ({"stated": 0.0, "cut": replace(probe.cut, mean=0.9)}, "max_new_tokens=48"),
        (
            {"stated": 0.5, "asks_for_tags": False, "cut": replace(probe.cut, mean=0.0)},
            "say in the question how to answer",
        ),
    ):
        assert way in way_out(replace(probe, **seen), spec, job.recipe.grpo)[1]


@pytest.mark.parametrize("wrong", ["20", "m", "0m", "20 days"])
def test_a_time_is_a_number_and_a_unit(wrong: str) -> None:
    with pytest.raises(ConfigError, match="as in --time 20m"):
        seconds_of(wrong)
