"""The audit's prediction is printed with each figure under its own name; what would train is left out."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "audit_prediction.py"


def _records(gain: float) -> list[dict[str, Any]]:
    steps = [{"kind": "step", "step": 1, "reward_std": 0.05, "zero_variance_groups": 0.25}]
    told = {"kind": "validation", "decoding": "sampled"}
    rewards = [{"step": step, "rewards": [0.5 + 0.1 * step, 0.4 + 0.1 * step]} for step in (0, 1)]
    trues = [{"true_rewards": [1.0 + gain * step, 2.0 + gain * step]} for step in (0, 1)]
    return [*steps, *({**told, **a, **b} for a, b in zip(rewards, trues, strict=True))]


def test_the_reward_and_the_true_reward_are_two_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both were the true reward's, and the forecast was looked up under a word that it no longer has."""
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "metrics.jsonl").touch()
    script = runpy.run_path(str(SCRIPT))
    recipe = SimpleNamespace(grpo=SimpleNamespace(model_copy=lambda update: None))
    runs = iter([_records(-3.0), _records(1.0)])
    forecast = {"reward_std": 0.04, "zero_variance_groups": 0.0}
    stubs = {
        "load_recipe": lambda *_, **__: recipe,
        "train_grpo": lambda *_, **__: None,
        "read_metrics": lambda folder: next(runs),
        "foretold": lambda *_: forecast,
        "diagnose": lambda records: [],
        "said": lambda interval, digits: str(interval.mean),
        "draw": lambda runs: None,
    }
    script["main"].__globals__.update(stubs)
    monkeypatch.setattr(sys, "argv", ["audit_prediction.py", "--run", str(tmp_path)])
    script["main"]()
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["v2"]["reward"] == pytest.approx(0.1)
    assert document["v2"]["true_reward"] == pytest.approx(-3.0)
    assert document["v2"]["reward_std"] == [0.04, 0.05]
