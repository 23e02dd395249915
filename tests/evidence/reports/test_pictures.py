"""Figures for documents: drawn from stored data, the same bytes for the same data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradus.core import ConfigError
from gradus.evidence.evaluation import evaluate
from gradus.evidence.reports import audit_figure, curves_figure, pictures, run_figures, scores_figure
from gradus.evidence.reports.curves import Curve, Series


def texts(path: Path) -> str:
    """An SVG names what it draws in comments; they are the labels."""
    ElementTree.parse(path)
    return path.read_text(encoding="utf-8")


def test_scores_name_every_policy_and_condition(played: Any, tmp_path: Path) -> None:
    first = texts(scores_figure(played.results, tmp_path / "a.svg"))
    for name in ("heuristic+constant", "in-distribution (8)", "held-out (8)", "reward, v3"):
        assert f"<!-- {name} -->" in first
    assert texts(scores_figure(played.results, tmp_path / "b.svg")) == first


def test_audits_are_drawn(tmp_path: Path) -> None:
    good = {"policy": "good", "role": "ladder", "reward": {"mean": 0.6}, "true_reward": {"mean": 2.0}}
    cheat = {"policy": "cheat", "role": "exploit", "reward": {"mean": 0.9}, "true_reward": {"mean": -1.0}}
    assert "<!-- cheat -->" in texts(audit_figure({"grader": "v2", "points": [good, cheat]}, tmp_path / "a.svg"))
    file = audit_figure({"grader": "v2", "points": [good, cheat]}, tmp_path / "c.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_curves_name_their_lines(tmp_path: Path) -> None:
    lines = [Series(name=name, x=[1, 2, 3], y=[0.1, None, up]) for name, up in (("seed 0", 0.4), ("seed 1", 0.5))]
    drawn = texts(curves_figure([Curve(title="Reward", note="", series=lines)], tmp_path / "a.svg"))
    for name in ("Reward", "seed 0", "seed 1"):
        assert f"<!-- {name} -->" in drawn


def test_what_cannot_be_drawn_is_said(played: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        scores_figure(played.results, tmp_path / "a.gif")
    with pytest.raises(ConfigError, match="unknown figure 'joy'"):
        scores_figure(played.results, tmp_path / "a.png", measure="joy")
    with pytest.raises(ConfigError, match="no policies"):
        audit_figure({}, tmp_path / "a.png")


def test_a_name_may_hold_dollar_signs(tmp_path: Path) -> None:
    lines = [Series(name=name, x=[1, 2], y=[0.1, 0.2]) for name in (r"constant:$\boxed{4}$", "other")]
    assert r"\boxed{4}" in texts(curves_figure([Curve(title="$", note="", series=lines)], tmp_path / "a.svg"))


def test_curves_say_what_they_go_along_and_each_line_is_named_where_its_color_means_it(tmp_path: Path) -> None:
    """A panel had no legend, and another one gave its color a different name; legends lay over lines."""

    def curve(title: str, *names: str, **more: Any) -> Curve:
        lines = [Series(name=name, x=[1, 2], y=[0.1, 0.2 * place]) for place, name in enumerate(names)]
        return Curve(title=title, note="", series=lines, **more)

    unlike = [curve("a", "sft", "noop", x="day"), curve("b", "sft", "spam"), curve("c", "sft", "spam")]
    drawn = texts(curves_figure(unlike, tmp_path / "a.svg"))
    assert drawn.count("<!-- sft -->") == 3
    assert "<!-- day -->" in drawn
    assert texts(curves_figure(unlike[1:], tmp_path / "b.svg")).count("<!-- sft -->") == 1


def test_an_axis_ends_where_the_page_ends_it(tmp_path: Path) -> None:
    line = Series(name="training", x=[1, 2, 3], y=[14.47, 0.6, 0.5])
    drawn = texts(curves_figure([Curve(title="Loss", note="", series=[line], top=1.0)], tmp_path / "a.svg"))
    assert "up to 14.47" in drawn
    assert "<!-- 15 -->" not in drawn


def test_the_name_of_a_point_stays_inside_the_axes(tmp_path: Path) -> None:
    points = [
        {"policy": name, "role": "exploit", "reward": {"mean": x}, "true_reward": {"mean": 0.0}}
        for name, x in (("a name of thirty characters ab", 0.0), ("close", 0.01), ("far", 1.0))
    ]
    drawn = texts(audit_figure({"grader": "v", "points": points}, tmp_path / "a.svg"))
    placed = drawn.partition("<!-- a name of thirty")[2].partition("translate(")[2]
    assert not placed or float(placed.split(" ")[0]) > 40  # left out, if there is no room


def test_the_picture_of_an_episode_shows_the_condition_of_the_page_and_names_it(
    played: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bayes, conditions = played.spec.policy("bayes"), ["in-distribution", "held-out"]
    evaluation = evaluate(played.spec, {"bayes": bayes}, conditions=conditions, episodes=3)
    (tmp_path / "results.json").write_text(json.dumps(evaluation.to_json()))
    drawn: dict[str, list[str]] = {}

    def keep(curves: Sequence[Curve], path: Path) -> Path:
        drawn[path.stem] = [curve.title for curve in curves]
        return path

    monkeypatch.setattr(pictures, "curves_figure", keep)
    run_figures(tmp_path)
    assert drawn["episode"] == ["belief mae by day, in-distribution"]
