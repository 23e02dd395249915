"""What a run does with its alerts, and that a resumed run does the same."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from short_runs import grpo_config, lines, train

from gradus.training.config import GrpoConfig

Records = Sequence[Mapping[str, Any]]


def settings(**changes: Any) -> GrpoConfig:
    base = {"max_steps": 12, "groups": 2, "validation_every": 4, "validation_tasks": 4, "checkpoint_every": 3}
    return grpo_config(**{**base, **changes})


def growing(taken: Records) -> list[dict[str, Any]]:
    """Warns from step 2 on, and asks to stop from step 4 on."""
    count = sum(record["kind"] == "step" for record in taken)
    severity = "stop" if count >= 4 else "warn"
    alert = {"rule": "test", "severity": severity, "evidence": "e", "remedy": "r"}
    return [alert] if count >= 2 else []


def test_warn_and_stop(lamps_model: Path, tmp_path: Path) -> None:
    actions = {}
    for on_alert in ("warn", "stop"):
        result = train(lamps_model, tmp_path / on_alert, settings(max_steps=6, on_alert=on_alert), monitor=growing)
        actions[on_alert] = [(one["step"], one["action"]) for one in lines(tmp_path / on_alert, "alert")]
        assert (result.stopped, result.steps) == (("test", 4) if on_alert == "stop" else (None, 6))
    assert actions["warn"] == [(2, "warned"), (4, "warned")]
    assert actions["stop"] == [(2, "warned"), (4, "stopped")]


def test_a_stopped_run_stays_stopped(lamps_model: Path, tmp_path: Path) -> None:
    config = settings(max_steps=6, on_alert="stop")
    train(lamps_model, tmp_path / "run", config, monitor=growing)
    again = train(lamps_model, tmp_path / "run", config, monitor=growing, resume=True)
    assert (again.steps, again.stopped) == (4, "test")
