"""What a run on a Tinker server refuses before anything is spent. No server is needed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gradus.core import ConfigError
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.tinker.service import TinkerService, server_of
from gradus.runs.recipe.record import Recipe
from gradus.training.tinker.reduction import DIVISORS


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(
        {"environment": "arithmetic", "model": {"path": "m"}, "trainer": "tinker:http://localhost:1", **changes}
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grpo": {"sampling": {"temperature": 0.7}}}, "temperature = 1"),
        ({"grpo": {"entropy_coef": 0.01}}, "entropy_coef = 0"),
        ({"grpo": {"optimizer": "muon"}}, "adamw"),
        ({"distill": {}}, "distill_coef"),
        ({"model": {}}, "model.path"),
        ({"prices": {"max_cost": 5.0}}, "needs a price"),
        ({"trainer": "tinker:localhost"}, "tinker:http://"),
    ],
)
def test_a_setting_that_no_server_keeps_is_refused_with_the_way_out(changes: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def test_no_server_is_one_sentence():
    with pytest.raises(ConfigError, match=r"no Tinker server answers at http://127\.0\.0\.1:9"):
        TinkerService("http://127.0.0.1:9").model_names()


def test_a_key_is_asked_for_beyond_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        TinkerService("https://tinker.example").model_names()


def test_addresses():
    assert server_of("local") is None
    assert server_of("tinker:https://host/") == "https://host"


def test_each_divisor_is_told_from_the_others_by_a_factor_of_two():
    ratios = sorted(divisor(32, [32, 96]) / divisor(8, [8]) for divisor in DIVISORS.values())
    assert ratios == [1, 2, 4, 8, 16]


def test_money_is_counted_only_with_a_price():
    counts = TokenCounts(prompt=1_000_000, sampled=2_000_000, trained=500_000)
    assert counts.cost(None) == 0.0
    assert counts.cost((1.0, 2.0, 4.0)) == pytest.approx(7.0)
