"""Figures for documents: drawn from stored data, the same bytes for the same data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradus.core import ConfigError
from gradus.evidence.reports import audit_figure, run_figures, scores_figure


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


def test_what_cannot_be_drawn_is_said(played: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        scores_figure(played.results, tmp_path / "a.gif")
    with pytest.raises(ConfigError, match="unknown figure 'joy'"):
        scores_figure(played.results, tmp_path / "a.png", measure="joy")
    with pytest.raises(ConfigError, match="no policies"):
        audit_figure({}, tmp_path / "a.png")


def test_the_name_of_a_point_stays_inside_the_axes(tmp_path: Path) -> None:
    points = [
        {"policy": name, "role": "exploit", "reward": {"mean": x}, "true_reward": {"mean": 0.0}}
        for name, x in (("a name of thirty characters ab", 0.0), ("close", 0.01), ("far", 1.0))
    ]
    drawn = texts(audit_figure({"grader": "v", "points": points}, tmp_path / "a.svg"))
    placed = drawn.partition("<!-- a name of thirty")[2].partition("translate(")[2]
    assert not placed or float(placed.split(" ")[0]) > 40  # left out, if there is no room


def test_a_run_gets_its_scores(played: Any, tmp_path: Path) -> None:
    assert run_figures(tmp_path) == []
    (tmp_path / "results.json").write_text(json.dumps(played.results))
    assert run_figures(tmp_path) == [tmp_path / "figures" / "scores.png"]
