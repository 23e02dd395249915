"""Figures for documents: drawn from stored data, the same bytes for the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradus.core import ConfigError
from gradus.reports import audit_figure, curves_figure, scores_figure
from gradus.reports.curves import Curve, Series


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
