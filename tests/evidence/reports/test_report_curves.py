"""Curves of a training run, from the lines of its metrics."""

from typing import Any

from gradus.evidence.reports.curves import LONGEST, grpo_curves


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "reward_mean": number / 10, **more}


def test_what_a_resumed_run_wrote_twice_counts_once() -> None:
    lines = [step(1), step(2), {**step(2), "reward_mean": 0.9}, step(3)]
    (curve,) = grpo_curves(lines)
    assert curve.series[0].x == [1, 2, 3]
    assert curve.series[0].y == [0.1, 0.9, 0.3]


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
