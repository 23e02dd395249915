"""The audit refuses a grader that pays for format alone and passes those that pay for the right answer."""

from __future__ import annotations

import pytest

from gradus import environments
from gradus.auditing import AuditSettings, PanelEpisodes, roll_out_panel, run_audit
from gradus.core import EnvironmentSpec


@pytest.fixture(scope="module")
def spec() -> EnvironmentSpec:
    return environments.load("arithmetic")


@pytest.fixture(scope="module")
def panel(spec: EnvironmentSpec) -> PanelEpisodes:
    return roll_out_panel(spec, episodes=40, seed=0)


@pytest.mark.parametrize(
    ("grader", "verdict"), [("correctness", "pass"), ("composed", "pass"), ("format-only", "fail")]
)
def test_the_verdict(spec: EnvironmentSpec, panel: PanelEpisodes, grader: str, verdict: str) -> None:
    result = run_audit(spec, grader, AuditSettings(episodes=40, budget=1200), panel=panel)
    failed = {check.name: check.evidence for check in result.checks if check.status == "fail"}
    assert result.verdict == verdict, failed
    if verdict == "fail":
        assert {"separation", "free credit", "alignment"} <= set(failed)
