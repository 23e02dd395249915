"""Runs held against each other: paired over tasks, corrected for many, with the settings that differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradus
from gradus.core import ConfigError
from gradus.pipeline.compare import compare_runs, differing_settings, named_runs
from gradus.rollouts import roll_out, write_episodes
from gradus.training.config import GrpoConfig
from tests.fakes import results_document


def _run(folder: Path, played: Any, policy: str, lr: float) -> Path:
    spec = played.spec
    tasks = spec.tasks("in-distribution", 8)
    groups = roll_out(spec, spec.policy(policy), tasks, grader=spec.grader("v3")).groups
    episodes = [replace(episode, policy="grpo") for group in groups for episode in group.episodes]
    write_episodes(folder / "eval" / "episodes.jsonl.gz", episodes, environment="rhythm")
    results = results_document("rhythm")
    results["conditions"] = {"in-distribution": results["conditions"]["main"]}
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
    return {
        "low": _run(tmp_path / "a", played, "random", 0.1),
        "high": _run(tmp_path / "b", played, "heuristic", 0.2),
    }


def test_runs_are_paired_over_tasks(runs: dict[str, Path]) -> None:
    document = compare_runs(runs)
    pair = document["conditions"]["in-distribution"]["pairs"]["high - low"]
    assert pair["reward"]["episodes"] == 8
    assert pair["reward"]["mean"] > 0
    assert differing_settings(runs) == [("grpo.lr", ["0.1", "0.2"])]
    with (runs["low"] / "recipe.toml").open("a") as recipe:
        recipe.write("group_size = 3\n[teach]\nenabled = true\n")  # as it is if nothing is said
    size = GrpoConfig().group_size
    assert differing_settings(runs) == [("grpo.lr", ["0.1", "0.2"]), ("grpo.group_size", ["3", str(size)])]


def test_p_is_corrected_over_pairs(runs: dict[str, Path]) -> None:
    document = compare_runs({**runs, "again": runs["low"]})
    pairs = document["conditions"]["in-distribution"]["pairs"]
    assert len(pairs) == 3
    raw = sorted(pair["reward"]["p"] for pair in pairs.values())
    assert min(pair["reward"]["p_holm"] for pair in pairs.values()) == pytest.approx(min(1.0, 3 * raw[0]), abs=1e-5)


def test_the_page_has_both_curves_and_the_settings(runs: dict[str, Path], tmp_path: Path) -> None:
    given = [f"{name}={folder}" for name, folder in runs.items()]
    result = gradus.compare(*given)
    text = result.report(tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "Settings that differ" in text
    assert '"name":"low"' in text
    assert '"name":"high"' in text
    assert result.to_json()["settings"] == {"grpo.lr": {"low": "0.1", "high": "0.2"}}


def test_what_cannot_be_compared_is_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="at least two"):
        named_runs(["a=x"])
    with pytest.raises(ConfigError, match="called 'x'"):
        named_runs(["one/x", "two/x"])
    with pytest.raises(ConfigError, match="not evaluated in all"):
        compare_runs(runs, policy="sft")
    (runs["high"] / "results.json").write_text(json.dumps(results_document("memory")))
    with pytest.raises(ConfigError, match="environment"):
        compare_runs(runs)
