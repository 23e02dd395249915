"""A run is an object: two jobs of one process know nothing of each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_qwen2 import make_tiny_qwen2

import gradus
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.rollouts import read_episodes
from gradus.runs.job import resolve
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import RunContext

Reward = Callable[..., list[float]]
SMALL: dict[str, Any] = {
    "model.nano.hidden_size": 16, "model.nano.layers": 1, "model.nano.heads": 2, "model.nano.intermediate_size": 32,
    "teach.episodes": 8, "sft.max_steps": 1, "grpo.max_steps": 2, "grpo.groups": 2, "grpo.group_size": 2, "grpo.threads": 1, "sft.threads": 1,
    "grpo.validation_every": 0, "eval.episodes": 4,
}  # fmt: skip


def rows(word: str) -> list[dict[str, str]]:
    return [{"question": f"{word} {number} ?", "answer": str(number)} for number in range(60)]


def constant(value: float) -> Reward:
    def score(completions: list[str], **_: Any) -> list[float]:
        return [value] * len(completions)

    return score


def test_two_jobs_keep_their_own_rows_and_rewards_under_one_name() -> None:
    """The first recipe of a process served the rows and the reward of the second."""
    jobs = {word: make_job(rows(word), rewards=[constant(value)]) for word, value in (("one", 1.0), ("two", 2.0))}
    assert len({(job.recipe.environment, job.recipe.rewards[0].function) for job in jobs.values()}) == 1
    for word, job in jobs.items():
        episodes = gradus.roll_out(job.environment, "gold", episodes=4).episodes
        assert all(word in episode.turns[0].observation for episode in episodes)
        assert {episode.reward.value for episode in episodes if episode.reward} == {{"one": 1.0, "two": 2.0}[word]}


def test_two_threads_train_side_by_side(tmp_path: Path) -> None:
    """All episodes that the second of two threads evaluated were questions of the first."""

    def train(word: str, value: float) -> gradus.Run:
        options: dict[str, Any] = {"rewards": [constant(value)], "settings": SMALL, "out": tmp_path / word}
        return gradus.train(None, rows(word), quick=True, anyway=True, **options)  # a constant reward fails its audit

    with ThreadPoolExecutor(2) as pool:
        runs = dict(zip(("one", "two"), pool.map(train, ("one", "two"), (1.0, 2.0)), strict=True))
    for word, value in (("one", 1.0), ("two", 2.0)):
        episodes = read_episodes(runs[word].folder / "eval" / "episodes.jsonl.gz").episodes
        assert episodes
        assert all(word in episode.turns[0].observation for episode in episodes)
        assert {episode.reward.value for episode in episodes if episode.reward} == {value}
        assert {record["reward_mean"] for record in runs[word].metrics()} == {value}


def test_a_job_with_other_settings_has_the_same_objects() -> None:
    job = make_job(rows("one"), rewards=[constant(1.0)])
    other = job.with_recipe(job.recipe.model_copy(update={"seed": 5}))
    assert (other.recipe.seed, other.bare, other.rewards) == (5, job.bare, job.rewards)
    assert not job.portable
    assert make_job("arithmetic").portable
    assert make_job("arithmetic", rewards=["correctness"]).portable


def test_a_name_that_stands_for_nothing_is_refused_at_the_door() -> None:
    recipe = make_job(rows("one"), rewards=[constant(1.0)]).recipe
    with pytest.raises(ConfigError, match="unknown environment 'rows'"):
        resolve(recipe)
    with pytest.raises(
        ConfigError, match=r"'score' is a function of another session; give it again with rewards=\[...\]"
    ):
        resolve(Recipe(environment="arithmetic", rewards=recipe.rewards))


def test_a_run_can_be_named_in_another_way_and_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(folder: Path | str, model: Path | str) -> Any:
        job = make_job("arithmetic", model=model, online=False)
        context = RunContext(job, Path(folder), redo=False, console=Console(quiet=True))
        return context.inputs(("model",)).settings["model"]["path"]

    make_tiny_qwen2(tmp_path / "both" / "model")
    before = settings(tmp_path / "both" / "run", tmp_path / "both" / "model")
    monkeypatch.chdir(tmp_path)
    assert settings("both/run", "both/model") == before
    (tmp_path / "both").rename(tmp_path / "moved")
    assert settings("moved/run", "moved/model") == before
    make_tiny_qwen2(tmp_path / "other")
    assert settings("moved/run", "other") != before
    assert settings("moved/run", "owner/name") == "owner/name"
