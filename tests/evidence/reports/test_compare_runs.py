"""Runs held against each other: paired over tasks, corrected for many, with the settings that differ."""

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradus.core import ConfigError
from gradus.evidence.reports import show_results
from gradus.evidence.reports.verdict import verdict_on
from gradus.rollouts import read_episodes, roll_out, write_episodes
from gradus.runs.comparison import compare_runs, differing_settings, named_runs
from gradus.training.config import GrpoConfig
from tests.fakes import policy_figures, results_document


def _run(folder: Path, played: Any, policy: str, lr: float) -> Path:
    spec = played.spec
    tasks = spec.tasks("in-distribution", 8)
    groups = roll_out(spec, spec.policy(policy), tasks, grader=spec.grader("v3")).groups
    episodes = [replace(episode, policy="grpo") for group in groups for episode in group.episodes]
    write_episodes(folder / "eval" / "episodes.jsonl.gz", episodes, environment="rhythm")
    results = results_document("rhythm")
    results["conditions"] = {
        "in-distribution": {**results["conditions"]["main"], "policies": {"grpo": {**policy_figures(), "episodes": 8}}}
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "recipe.toml").write_text(f'environment = "rhythm"\n[grpo]\nlr = {lr}\ngroups = 8\n')
    (folder / "grpo").mkdir()
    steps = [{"kind": "step", "step": step, "reward_mean": 0.1 * step} for step in range(1, 5)]
    (folder / "grpo" / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    return folder


@pytest.fixture
def runs(played: Any, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return {"low": _run(tmp_path / "a", played, "random", 0.1), "high": _run(tmp_path / "b", played, "heuristic", 0.2)}


def test_runs_are_paired_over_tasks(runs: dict[str, Path]) -> None:
    document = compare_runs(runs)
    pair = document["conditions"]["in-distribution"]["pairs"]["high - low"]
    assert pair["reward"]["episodes"] == 8
    assert pair["reward"]["mean"] > 0
    assert differing_settings(runs) == {"grpo.lr": {"low": "0.1", "high": "0.2"}}
    with (runs["low"] / "recipe.toml").open("a") as recipe:
        recipe.write("group_size = 3\n[teach]\nenabled = true\n")  # as it is if nothing is said
    size = GrpoConfig().group_size
    assert differing_settings(runs) == {
        "grpo.lr": {"low": "0.1", "high": "0.2"},
        "grpo.group_size": {"low": "3", "high": str(size)},
    }


def test_runs_of_ones_own_code_are_compared_without_it(runs: dict[str, Path]) -> None:
    """From another folder the rows and the code were not found; where they were, they were imported."""
    for folder in runs.values():
        results = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(
            json.dumps({**results, "environment": "mine.py:spec", "grader": "rewards"})
        )
        (folder / "recipe.toml").write_text('environment = "mine.py:spec"\nrewards = ["mine.py:right"]\n')
    document = compare_runs(runs)
    assert (document["environment"], document["grader"]) == ("mine.py:spec", "rewards")
    assert document["conditions"]["in-distribution"]["pairs"]["high - low"]["reward"]["mean"] > 0


def test_runs_of_other_tasks_are_refused_and_quick_ones_said_to_be_so(runs: dict[str, Path]) -> None:
    """Ten of a hundred tasks were shared, and "100 episodes" stood there for both; that one was a quick run was said nowhere."""
    results = json.loads((runs["high"] / "results.json").read_text())
    (runs["high"] / "results.json").write_text(json.dumps({**results, "quick": True}))
    document = compare_runs(runs)
    assert "figures prove nothing: high" in " ".join(verdict_on(document).cautions)
    console = Console(file=StringIO(), width=100)
    console.print(show_results(document))
    assert "in-distribution, 8 episodes, grader v3" in console.file.getvalue()
    file = runs["high"] / "eval" / "episodes.jsonl.gz"
    stored = read_episodes(file).episodes
    for other in (stored[:3], [replace(each, task=replace(each.task, seed=each.task.seed + 1)) for each in stored]):
        write_episodes(file, other, environment="rhythm")
        with pytest.raises(ConfigError, match=rf"same tasks of in-distribution \(low has 8, high has {len(other)}\)"):
            compare_runs(runs)


def test_p_is_corrected_over_pairs(runs: dict[str, Path]) -> None:
    document = compare_runs({**runs, "again": runs["low"]})
    pairs = document["conditions"]["in-distribution"]["pairs"]
    assert len(pairs) == 3
    assert {pair["reward"]["level"] for pair in pairs.values()} == {round(1 - 0.05 / 3, 6)}


def test_what_cannot_be_compared_is_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="at least two"):
        named_runs(["a=x"])
    with pytest.raises(ConfigError, match="different names"):
        named_runs(["one/x", "two/x"])
    with pytest.raises(ConfigError, match="not evaluated in all"):
        compare_runs(runs, policy="sft")
    (runs["high"] / "results.json").write_text(json.dumps(results_document("memory")))
    with pytest.raises(ConfigError, match="environment"):
        compare_runs(runs)


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ("rewards = ['correctness']", "rewards = [['correctness', 10.0]]", "rewards: low ['correctness'], high [['correctness', 10.0]]"),
        ("weights = {play = 1}", "weights = {play = 2.0}", "weights.play: low 1, high 2.0"),
        ("rewards = ['length=1']", "rewards = [{function = 'length', settings = {limit = 9}}]", "'settings': {'limit': 9}"),
    ],
)  # fmt: skip
def test_rewards_of_one_name_and_another_composition_are_refused(
    runs: dict[str, Path], a: str, b: str, told: str
) -> None:
    for folder, table in ((runs["low"], a), (runs["high"], b)):
        (folder / "recipe.toml").write_text(f'environment = "rhythm"\n{table}\n')
    with pytest.raises(ConfigError, match="gradus eval with --grader") as refused:
        compare_runs(runs)
    assert told in str(refused.value)


def test_rewards_whose_code_changed_between_the_runs_are_refused(runs: dict[str, Path]) -> None:
    """A difference of two rewards was told as a gain."""
    for name, folder in runs.items():
        code = {"code of mine.py": f"{name:0<64}"}
        record = {"settings": {}, "data": {}, "code": code, "outputs": {}, "done": True, "seconds": 1.0, "cost": {}}
        (folder / "manifest.json").write_text(json.dumps({"stages": {"eval": record}, "summaries": {}}))
    with pytest.raises(ConfigError, match=r"not graded in one way \(code of mine.py: low low00000, high high0000\)"):
        compare_runs(runs)
    shutil.copy(runs["low"] / "manifest.json", runs["high"] / "manifest.json")
    assert compare_runs(runs)["conditions"]
