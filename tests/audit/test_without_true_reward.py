"""Where nobody knows a true reward, what needs one is left open and the rest is audited."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import lamps

from gradus.audit.run import run_audit
from gradus.pipeline.audit import store_audit
from gradus.pipeline.learning_attack import LearningAttacker


@pytest.mark.parametrize("policies", [True, False])
def test_an_environment_without_a_true_reward_is_audited(tmp_path: Path, policies: bool) -> None:
    spec = replace(lamps(), true_reward=lambda episode: None)
    if not policies:
        spec = replace(spec, policies={}, teacher=None)
    result = run_audit(spec, episodes=8, budget=1700, attackers=[LearningAttacker()])
    checks = {each.name: each for each in result.checks}
    assert checks["search"].status == "skip"
    assert checks["alignment"].status == "unresolved"
    assert all("declare true_reward" in checks[name].evidence for name in ("search", "alignment"))
    assert [each.status for name, each in checks.items() if name.startswith("attack")] == ["skip"]
    names = {path.name for path in store_audit(spec, result, tmp_path)}
    assert "audit.html" in names
    assert "audit.svg" not in names, "there is nothing to draw rewards against"
