"""The doctor over an evaluation: a run that gained nothing, or ended far below its teacher, is not called healthy."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradus.runs.stages.doctor import diagnosis_of
from tests.fakes import policy_figures, results_document


def run_with(folder: Path, change: tuple[float, float, float], teacher: float, **more: Any) -> list[str]:
    figures = dict(zip(("mean", "low", "high"), change, strict=True))
    results = results_document("rhythm", {"grpo - sft": {"reward": figures}}) | more
    rewards = {"random": 0.0, "sft": 0.5, "grpo": 0.5 + change[0], "wise": teacher}
    results["conditions"]["main"]["policies"] = {name: policy_figures(reward=each) for name, each in rewards.items()}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "recipe.toml").write_text('[teach]\npolicy = "wise"\n')
    (folder / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    diagnoses = diagnosis_of(folder)["diagnoses"]
    assert all("on main" in each["evidence"] for each in diagnoses)
    return [each["rule"] for each in diagnoses]


@pytest.mark.parametrize(
    ("change", "teacher", "named"),
    [
        ((0.1, 0.05, 0.15), 0.7, []),
        ((0.0, -0.02, 0.02), 0.6, ["no gain by GRPO"]),
        ((-0.1, -0.15, -0.05), 0.5, ["worse in the evaluation"]),
        ((0.1, 0.05, 0.15), 0.9, ["far below its teacher"]),
        ((0.0, -0.02, 0.02), 0.8, ["no gain by GRPO", "far below its teacher"]),
    ],
)
def test_an_evaluation_is_diagnosed(tmp_path: Path, change: Any, teacher: float, named: list[str]) -> None:
    """A student at 0.08 under a teacher of 0.80, and a seed that gained 0.00, were "Healthy: nothing to do"."""
    assert sorted(run_with(tmp_path, change, teacher)) == sorted(named)


def test_a_quick_run_is_not_held_to_its_evaluation(tmp_path: Path) -> None:
    assert run_with(tmp_path, (0.0, -0.02, 0.02), 0.9, quick=True) == []


def test_the_diagnosis_speaks_of_the_condition_that_the_headline_speaks_of(tmp_path: Path) -> None:
    """A run proved a gain on 69 held-out rows, and its doctor said "no gain" of 19 rows of the training kind."""
    run_with(tmp_path, (0.0, -0.02, 0.02), 0.6)
    results = json.loads((tmp_path / "results.json").read_text())
    held_out = json.loads(json.dumps(results["conditions"]["main"]))
    held_out["pairs"]["grpo - sft"]["reward"] |= {"mean": 0.1, "low": 0.05, "high": 0.15, "decision": "better"}
    results["conditions"]["held-out"] = held_out
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert diagnosis_of(tmp_path)["diagnoses"] == []
