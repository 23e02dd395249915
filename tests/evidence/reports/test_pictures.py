"""Figures for documents: drawn from stored data, the same bytes for the same data."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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
    def point(policy: str, role: str, reward: float, aim: float) -> dict[str, Any]:
        figures = {"reward": {"mean": reward}, "true_reward": {"mean": aim}}
        return {"policy": policy, "role": role} | {
            name: {**each, "low": None, "high": None} for name, each in figures.items()
        }

    good, cheat = point("good", "ladder", 0.6, 2.0), point("cheat", "exploit", 0.9, -1.0)
    assert "<!-- cheat -->" in texts(audit_figure({"grader": "v2", "points": [good, cheat]}, tmp_path / "a.svg"))
    file = audit_figure({"grader": "v2", "points": [good, cheat]}, tmp_path / "c.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_run_gets_its_scores(played: Any, tmp_path: Path) -> None:
    assert run_figures(tmp_path) == []
    (tmp_path / "results.json").write_text(json.dumps(played.results))
    assert run_figures(tmp_path) == [tmp_path / "figures" / "scores.png"]
