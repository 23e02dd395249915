"""Curves of a training run, from the lines of its metrics."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gradus.evidence.reports.curves import LONGEST, grpo_curves, overlaid, running_mean, sft_curves


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "reward_mean": number / 10, **more}


def test_what_a_resumed_run_wrote_twice_counts_once() -> None:
    lines = [step(1), step(2), {**step(2), "reward_mean": 0.9}, step(3)]
    (curve,) = grpo_curves(lines)
    assert curve.series[0].x == [1, 2, 3]
    assert curve.series[0].y == [0.1, 0.9, 0.3]


def test_dots_are_spoken_of_where_there_are_some() -> None:
    """The page of several seeds shows one line of each and no dot."""
    checked = {"kind": "validation", "step": 0, "decoding": "sampled", "reward_mean": 0.05}
    with_dots, without = grpo_curves([checked, step(1), step(2)]), grpo_curves([step(1), step(2)])
    assert with_dots[0].note == "mean reward; dots are validation"
    assert without[0].note == "mean reward"
    assert overlaid({"seed 0": with_dots, "seed 1": with_dots})[0].note == "mean reward"


def test_figures_that_are_never_there_have_no_chart() -> None:
    assert [curve.title for curve in grpo_curves([step(1, kl=None, metrics={"play": None})])] == ["Reward"]
    assert grpo_curves([]) == []
    assert sft_curves([{"kind": "sft", "step": 1, "loss": None}]) == []


def test_the_first_steps_of_sft_do_not_press_all_others_together() -> None:
    fallen = [{"kind": "sft", "step": number, "loss": 14.0 if number < 5 else 1.0} for number in range(100)]
    assert sft_curves(fallen)[0].top == 1.1
    level = [{"kind": "sft", "step": number, "loss": 1.0 + number / 1000} for number in range(100)]
    assert sft_curves(level)[0].top is None


def test_kinds_of_one_metric_share_a_chart() -> None:
    lines = [
        step(1, metrics={"recall": 0.5, "recall/late": 0.1}),
        step(2, metrics={"recall/late": 0.2, "recall/early": 0.9}),
    ]
    curves = {curve.title: curve for curve in grpo_curves(lines)}
    assert [series.name for series in curves["recall"].series] == ["training"]
    late, early = curves["recall by kind"].series
    assert (late.name, late.y) == ("late", [0.1, 0.2])
    assert (early.name, [value for value in early.y if value is not None]) == ("early", [0.9])


def test_components_and_metrics_bring_their_own_names() -> None:
    curves = grpo_curves([step(1, components={"tidy": 0.2, "kind": 0.4}, metrics={"belief_mae": 0.3})], "true joy")
    titles = {curve.title: curve for curve in curves}
    assert [series.name for series in titles["Components of the reward"].series] == ["tidy", "kind"]
    assert titles["belief mae"].series[0].y == [0.3]


def test_a_schedule_shows_its_weights_and_where_its_stages_begin() -> None:
    lines = [
        step(n, stage="form" if n <= 3 else "sums", weights={"format": 1.0, "correct": float(n > 3)})
        for n in range(1, 31)
    ]
    curves = {curve.title: curve for curve in grpo_curves(lines)}
    weights = curves["Weights of the components"]
    assert [series.name for series in weights.series] == ["format", "correct"]
    assert weights.series[1].y == [0.0] * 3 + [1.0] * 27
    assert all(not series.smooth for series in weights.series)  # a running mean would blur the step
    assert curves["Reward"].series[0].smooth
    for curve in curves.values():
        assert [(mark.x, mark.name) for mark in curve.marks] == [(1.0, "form"), (4.0, "sums")]
    assert grpo_curves([step(1)])[0].marks == []


def test_validation_is_drawn_as_dots_by_decoding() -> None:
    lines = [step(1), step(2)]
    lines += [{"kind": "validation", "step": 2, "decoding": name, "reward_mean": 0.5} for name in ("sampled", "greedy")]
    (curve,) = grpo_curves(lines)
    assert [(series.name, series.dots) for series in curve.series] == [
        ("training", False),
        ("validation, sampled", True),
        ("validation, greedy", True),
    ]


def test_a_long_run_is_thinned() -> None:
    (curve,) = grpo_curves([step(number) for number in range(1, 5000)])
    assert len(curve.series[0].x) <= LONGEST


def test_what_is_measured_now_and_then_is_drawn_however_long_the_run_is() -> None:
    """With 1,200 steps each second point is drawn, and validation at every 50th step fell between them."""
    for steps in (600, 1200, 12_000, 12_001):
        lines = [{"kind": "sft", "step": number, "loss": 1.0 / number} for number in range(1, steps + 1)]
        for line in lines[49::50]:
            line["validation_loss"] = 2.0
        training, validation = sft_curves(lines)[0].series
        assert (training.name, len(training.x) <= LONGEST, training.x[-1]) == ("training", True, steps)
        assert (validation.name, validation.dots, validation.x[-1]) == ("validation", True, steps // 50 * 50)
        assert len(validation.x) == min(steps // 50, LONGEST)


def test_gaps_that_come_at_the_pace_of_thinning_hide_nothing() -> None:
    lines = [step(number, kl=None if number % 3 == 1 else 0.5) for number in range(1, 3 * LONGEST + 1)]
    (kl,) = (curve.series[0] for curve in grpo_curves(lines) if curve.title == "KL")
    assert kl.y == [0.5] * LONGEST


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), st.integers(1, 15))
def test_a_running_mean_stays_within_its_values(values: list[float], window: int) -> None:
    curves = running_mean(values, window)
    assert len(curves) == len(values)
    assert all(value is not None and min(values) - 1e-6 <= value <= max(values) + 1e-6 for value in curves)


def test_gaps_are_neither_zero_nor_spread() -> None:
    assert running_mean([1.0, None, 3.0], 3) == [1.0, 2.0, 3.0]
    assert running_mean([None, None], 3) == [None, None]


def test_a_chart_of_many_runs_is_no_larger_than_one_of_eight() -> None:
    """The page of sixty runs had every point of each, and four megabytes."""
    lines = [{"kind": "step", "step": step, "reward_mean": step / 100} for step in range(600)]

    def points(runs: int) -> list[int]:
        (chart,) = overlaid({str(number): grpo_curves(lines) for number in range(runs)})
        assert all(len(each.x) == len(each.y) == len(each.smooth) for each in chart.series)
        assert all(each.y == [x / 100 for x in each.x] for each in chart.series)
        return [len(each.x) for each in chart.series]

    assert points(8) == [600] * 8
    assert points(60) == [75] * 60
