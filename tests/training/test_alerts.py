"""What a run does with its alerts, and that a resumed run does the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from short_runs import ctrl_c_after, grpo_config, lines, same_weights, train

from gradus.evidence.health import RULES, Monitor
from gradus.evidence.health.history import History
from gradus.training.config import GrpoConfig
from gradus.training.engine.loss_step import run_update
from gradus.training.grpo import GrpoResult
from gradus.training.run.alerts import spike_limit

Records = Sequence[Mapping[str, Any]]


def settings(**changes: Any) -> GrpoConfig:
    base = {"max_steps": 12, "groups": 2, "validation_every": 4, "validation_tasks": 4, "checkpoint_every": 3}
    return grpo_config(**{**base, **changes})


def growing(taken: Records) -> list[dict[str, Any]]:
    """Warns from step 2 on, and asks to stop from step 4 on."""
    count = sum(record["kind"] == "step" for record in taken)
    severity = "stop" if count >= 4 else "warn"
    alert = {"rule": "test", "severity": severity, "evidence": "e", "remedy": "r", "adjust": {"lr": 0.5}}
    return [alert] if count >= 2 else []


def test_warn_stop_and_adjust(lamps_model: Path, tmp_path: Path) -> None:
    actions = {}
    for on_alert in ("warn", "stop", "adjust"):
        result = train(lamps_model, tmp_path / on_alert, settings(max_steps=6, on_alert=on_alert), monitor=growing)
        actions[on_alert] = [(one["step"], one["action"]) for one in lines(tmp_path / on_alert, "alert")]
        assert (result.stopped, result.steps) == (("test", 4) if on_alert == "stop" else (None, 6))
    assert actions["warn"] == [(2, "warned"), (4, "warned")]
    assert actions["stop"] == [(2, "warned"), (4, "stopped")]
    assert actions["adjust"] == [(2, "learning rate x 0.5"), (4, "learning rate x 0.25")]
    assert [one["lr"] for one in lines(tmp_path / "adjust", "step")] == pytest.approx(
        [3e-3, 3e-3, 1.5e-3, 1.5e-3, 7.5e-4, 7.5e-4]
    )


def test_a_stopped_run_stays_stopped(lamps_model: Path, tmp_path: Path) -> None:
    config = settings(max_steps=6, on_alert="stop")
    train(lamps_model, tmp_path / "run", config, monitor=growing)
    again = train(lamps_model, tmp_path / "run", config, monitor=growing, resume=True)
    assert (again.steps, again.stopped) == (4, "test")


def test_the_limit_of_a_spike_is_the_rules_own() -> None:
    """The loop skips what the rule "gradient spike" would tell: the same factor, window and least number of steps."""
    rule = next(each for each in RULES if each.name == "gradient spike")
    norms = [1.0, 1.2, 0.9, 1.1, 3.0, 0.8, 0.5, 1.3, 9.0, 20.0, *([0.2] * 60)]
    for count in range(1, len(norms)):
        before = [{"kind": "step", "step": i, "grad_norm": norm} for i, norm in enumerate(norms[:count])]
        limit = spike_limit(before)
        for norm in (1.0, 1.9, 2.1, 9.9, 10.3, 12.1):
            spiked = rule.check(History([*before, {"kind": "step", "step": count, "grad_norm": norm}]))
            assert (spiked is not None) == (limit is not None and norm > limit), (count, norm)


@pytest.fixture
def spiking(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of updates whose loss, and so whose gradient, is a thousand times as large."""
    wanted: set[int] = set()
    taken = {"updates": 0}

    def inflated(loaded: Any, optimizer: Any, batches: Any, loss: Any, *rest: Any, **options: Any) -> Any:
        taken["updates"] += 1
        factor = 1000.0 if taken["updates"] in wanted else 1.0
        return run_update(loaded, optimizer, batches, lambda batch: factor * loss(batch), *rest, **options)

    monkeypatch.setattr("gradus.training.engine.update.run_update", inflated)
    return wanted


def test_a_spike_moves_no_weight_and_three_restore_the_best(
    lamps_model: Path, tmp_path: Path, spiking: set[int]
) -> None:
    spiking.update({7, 9, 11})
    folder = tmp_path / "run"
    train(lamps_model, folder, settings(on_alert="adjust", checkpoint_every=1, keep_checkpoints=12), monitor=Monitor())
    taken = lines(folder, "step")
    assert [record["step"] for record in taken if record["skipped_updates"]] == [7, 9, 11]
    weights = [load_file(folder / "checkpoints" / f"step-{step:06d}" / "weights.safetensors") for step in range(1, 13)]

    def same(one: int, other: int) -> bool:
        return all(weights[one - 1][name].equal(weights[other - 1][name]) for name in weights[0])

    assert same(6, 7)
    assert same(8, 9)
    assert not same(7, 8)
    alerts = [one for one in lines(folder, "alert") if one["rule"] == "gradient spike"]
    best = max(one["step"] for one in lines(folder, "validation") if one["best"] and one["step"] < 11)
    assert [one["action"] for one in alerts][:2] == ["skipped 1 update", "skipped 1 update"]
    assert alerts[2]["action"] == f"skipped 1 update, restored step {best}, learning rate x 0.5"
    if best:
        assert same(best, 11)
    assert taken[11]["lr"] == pytest.approx(0.5 * taken[10]["lr"])


def adjusting(taken: Records) -> list[dict[str, Any]]:
    """A monitor that asks for everything: a lower rate at step 5, the best weights at step 9 and at step 11."""
    count = sum(record["kind"] == "step" for record in taken)
    adjust = {5: {"lr": 0.5}, 9: {"restore": "best"}, 11: {"restore": "best", "lr": 0.5}}.get(count)
    base = {"rule": f"rule {count}", "severity": "warn", "evidence": "e", "remedy": "r"}
    return [{**base, "adjust": adjust}] if adjust else []


ADJUST = settings(on_alert="adjust", validation_every=2, lr=2e-2)


@pytest.fixture(scope="module")
def unbroken(lamps_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GrpoResult]:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    return folder, train(lamps_model, folder, ADJUST, monitor=adjusting)


@pytest.mark.parametrize("after", [7, 9])  # between two adjustments, and at one
def test_a_resumed_run_with_alerts_is_the_unbroken_one(
    unbroken: tuple[Path, GrpoResult], lamps_model: Path, tmp_path: Path, after: int
) -> None:
    whole, wanted = unbroken
    broken = tmp_path / "broken"

    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, broken, ADJUST, monitor=adjusting, on_step=ctrl_c_after(after))
    resumed = train(lamps_model, broken, ADJUST, monitor=adjusting, resume=True)
    assert (resumed.best_step, resumed.best_reward) == (wanted.best_step, wanted.best_reward)
    assert same_weights(whole, broken, "best")
    assert same_weights(whole, broken)
    alerts = [lines(run, "alert") for run in (whole, broken)]
    assert alerts[0] == alerts[1]
    assert any("restored step" in one["action"] for one in alerts[0])
