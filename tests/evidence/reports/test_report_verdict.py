"""The sentences of a verdict say what the intervals carry and no more."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.evidence.reports import verdict_on
from gradus.evidence.reports.results import figure
from gradus.runs.stages.evaluation import best_is_the_start
from gradus.stats import format_interval, format_money, format_number, format_signed
from tests.fakes import paired_mean, policy_figures, results_document

numbers = st.floats(min_value=-100, max_value=100)


def document(
    reward: tuple[float, float, float], true: tuple[float, float, float], *, turned: bool = False
) -> dict[str, Any]:
    def stored(mean: float, low: float, high: float) -> dict[str, Any]:
        values = (-mean, -high, -low) if turned else (mean, low, high)
        return dict(zip(("mean", "low", "high"), values, strict=True))

    policy = policy_figures(
        reward={"mean": 0.5, "low": 0.4, "high": 0.6}, true_reward={"mean": 1.0, "low": 0.5, "high": 1.5}
    )
    name = "sft - grpo" if turned else "grpo - sft"
    results = results_document("rhythm", {name: {"reward": stored(*reward), "true_reward": stored(*true)}}, grader="v9")
    home = {**results["conditions"]["main"], "policies": {"sft": policy, "grpo": policy}}
    return {**results, "true_reward_name": "episode reward", "conditions": {"home": home}}


@pytest.mark.parametrize(
    ("reward", "true", "words"),
    [
        ((0.1, 0.05, 0.15), (1.0, 0.5, 1.5), "GRPO made the student better"),
        ((0.1, -0.05, 0.25), (1.0, 0.5, 1.5), "raised episode reward; the change of the reward is not significant"),
        ((0.1, -0.05, 0.25), (1.0, -0.5, 1.5), "changed nothing significantly"),
        ((0.1, 0.05, 0.15), (1.0, -0.5, 1.5), "raised the reward; the change of episode reward is not significant"),
        ((-0.1, -0.2, -0.05), (1.0, -0.5, 1.5), "GRPO made the student worse"),
        ((-0.1, -0.2, -0.05), (1.0, 0.5, 1.5), "lowered the reward and raised episode reward"),
        ((0.1, 0.05, 0.15), (-1.0, -1.5, -0.5), "which looks like reward hacking"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_headline_follows_the_intervals(reward: Any, true: Any, words: str, turned: bool) -> None:
    verdict = verdict_on(document(reward, true, turned=turned))
    assert words in verdict.headline
    assert " on home: reward 0.50 to 0.50, " in verdict.headline


def test_a_gain_over_the_base_comes_first_if_grpo_added_nothing_to_it() -> None:
    """A run from 0.00 to 1.00 began with "GRPO changed nothing significantly"."""
    pairs = {
        "grpo - sft": {"reward": {"mean": 0.0, "low": -0.1, "high": 0.1}},
        "grpo - base": {"reward": {"mean": 0.5, "low": 0.4, "high": 0.6}},
    }
    results = results_document("rhythm", pairs, grader="v9")
    home = results["conditions"]["main"]
    home["policies"] = {name: policy_figures(reward=mean) for name, mean in (("base", 0), ("sft", 0.5), ("grpo", 0.5))}
    headline = verdict_on({**results, "conditions": {"home": home}}).headline
    assert headline.startswith("grpo is significantly above base on home: reward 0.00 to 0.50, +0.50")
    assert "GRPO added nothing significant to sft: reward 0.50 to 0.50" in headline


@pytest.mark.parametrize(("low", "cautions"), [(-0.1, 1), (0.1, 0)])
def test_a_student_that_is_not_above_the_commonest_answer_is_said_to_be(low: float, cautions: int) -> None:
    results = results_document(
        "rhythm", {"grpo - constant": {"reward": {"mean": 0.2, "low": low, "high": 0.4}}}, grader="v9"
    )
    home = results["conditions"]["main"]
    home["policies"] = {name: policy_figures(reward=mean) for name, mean in (("constant", 0.25), ("grpo", 0.45))}
    found = [
        each for each in verdict_on(results).cautions if "the commonest answer, which earns 0.25 by itself" in each
    ]
    assert len(found) == cautions


@given(mean=numbers, below=st.floats(0.001, 50), above=st.floats(0.001, 50))
def test_above_is_said_exactly_where_the_interval_is_above_0(mean: float, below: float, above: float) -> None:
    low, high = mean - below, mean + above
    (claim,) = verdict_on(document((mean, low, high), (mean, low, high))).claims["home"]
    expected = "shown" if low > 0 else "refuted" if high < 0 else "open"
    assert claim.state == expected


def test_an_undefined_interval_proves_nothing() -> None:
    results = document((0.5, 0.4, 0.6), (1.0, 0.5, 1.5))
    pair = results["conditions"]["home"]["pairs"]["grpo - sft"]
    pair["reward"] |= {"low": None, "high": None, "decision": "too few", "units": 12}
    assert "(12 independent tasks are too few, 40 are needed)" in verdict_on(results).headline
    pair["reward"] |= {"units": 60, "differing": 3}
    assert "(3 of 60 tasks differ from the others, 8 are needed)" in verdict_on(results).headline
    assert verdict_on(results).claims["home"][0].state == "open"


def stored_pairs(*names: str) -> dict[str, Any]:
    """Policies that rise in reward by their place in ``names``' order, and the pairs of these names."""
    pair = {"reward": {"mean": 0.1, "low": 0.05, "high": 0.15, "wins": 7}}
    policies = sorted({part for name in names for part in name.split(" - ")})
    results = results_document("rhythm", dict.fromkeys(names, pair), grader="v9")
    home = results["conditions"]["main"]
    home["policies"] = {name: policy_figures(reward=place) for place, name in enumerate(policies)}
    return {**results, "conditions": {"home": home}}


def test_every_pair_that_was_asked_for_is_told() -> None:
    """Of three checkpoints against one base, the screen told of the one that came next to it."""
    claims = verdict_on(stored_pairs("b - a", "c - a", "d - a")).claims["home"]
    assert [claim.text.partition(" in ")[0] for claim in claims] == ["d is above a", "c is above a", "b is above a"]


def test_a_quick_run_says_that_it_is_one(played: Any) -> None:
    assert any("toy size" in caution for caution in verdict_on(played.results, quick=True).cautions)


@given(numbers)
def test_numbers_are_written_with_a_true_minus_and_without_negative_zero(value: float) -> None:
    for text in (format_number(value), format_signed(value)):
        assert not text.startswith("-")
        assert text.strip("+\N{MINUS SIGN}0.") or not text.startswith("\N{MINUS SIGN}")
        assert float(text.replace("−", "-")) == pytest.approx(value, rel=0.05, abs=1e-12)


def test_small_numbers_keep_figures_that_can_be_read() -> None:
    small = (0.0123, 0.00123, -0.0004, 1.2e-05, 1e-9, 1e-17, 0.0)
    assert [format_number(each) for each in small] == [
        "0.012",
        "0.00123",
        "−0.0004",
        "1.2e-05",
        "1e-09",
        "0.000",
        "0.000",
    ]
    assert [format_number(each, 2) for each in small[:2]] == ["0.012", "0.0012"]
    assert [format_signed(each) for each in (1.2e-05, -1.2e-05, 0.0)] == ["+1.2e-05", "−1.2e-05", "0.000"]
    assert [format_money(each) for each in (0.0, 0.00423, 0.42, 1234.5)] == ["$0.00", "$0.0042", "$0.42", "$1,234.50"]


def test_missing_is_a_dash_and_not_0() -> None:
    assert format_number(None) == "–"
    assert figure({"mean": None, "low": None, "high": None}) is None
    assert format_interval(figure({"mean": 0.5, "low": None, "high": None})) == "0.500"


def test_the_headline_gives_before_and_after_on_held_out_data() -> None:
    results = document((0.1, 0.05, 0.15), (1.0, 0.5, 1.5))
    home = results["conditions"]["home"]
    held = {
        **home,
        "policies": {
            "sft": policy_figures(reward=0.727, true_reward=9.1),
            "grpo": policy_figures(reward=0.782, true_reward=9.9),
        },
    }
    results["conditions"] = {"home": home, "held-out": held}
    headline = verdict_on(results).headline
    assert headline.startswith(
        "GRPO made the student better on held-out tasks: reward 0.73 to 0.78, +0.10 (95 % CI +0.05 to +0.15); "
    )
    assert "episode reward 9.10 to 9.90" in headline


@pytest.mark.parametrize(
    ("greedy", "said"),
    [
        ((0.017, -0.005, 0.040), "Greedy: not significant: +0.017 (95 % CI -0.005 to +0.04)."),
        ((0.12, 0.02, 0.22), "Greedy: +0.12 (95 % CI +0.02 to +0.22)."),
        ((-0.12, -0.21, -0.03), "Greedy: -0.12 (95 % CI -0.21 to -0.03)."),
    ],
)
def test_the_headline_says_if_likeliest_answers_gained_too(greedy: Any, said: str) -> None:
    results = document((0.20, 0.15, 0.25), (1.0, 0.5, 1.5))
    figures = paired_mean(**dict(zip(("mean", "low", "high"), greedy, strict=True)))
    home = results["conditions"]["home"]
    home["pairs"]["grpo-greedy - sft-greedy"] = {"reward": figures, "components": {}}
    home["policies"] |= {f"{name}-greedy": policy_figures() for name in ("sft", "grpo")}
    headline = verdict_on(results).headline
    assert headline.startswith("GRPO made the student better")
    assert headline.replace("−", "-").replace("\xa0", " ").endswith(said), headline


def test_a_model_that_is_held_against_its_best_prompt_alone_has_a_headline() -> None:
    """A published model's run said which of its own two decodings was graded highest."""
    results = document((0.4, 0.3, 0.5), (0.4, 0.3, 0.5))
    home = results["conditions"]["home"]
    home["pairs"] = {"grpo - prompted": home["pairs"].pop("grpo - sft")}
    home["policies"]["prompted"] = home["policies"].pop("sft")
    assert verdict_on(results).headline.startswith(
        "grpo is significantly above prompted on home: reward 0.50 to 0.50, +0.40 (95 % CI +0.30 to +0.50)"
    )


def test_a_student_that_no_step_made_better_is_said_to_be_the_one_before(tmp_path: Path) -> None:
    """Its differences from the student before were 0 in every table, and nothing said why."""
    several = {**results_document("rhythm"), "best_is_the_start": [1, 3]}
    assert any("began with in seeds 1 and 3:" in each for each in verdict_on(several).cautions)
    results = {**results_document("rhythm"), "best_is_the_start": True}
    assert any("grpo is the student that GRPO began with" in each for each in verdict_on(results).cautions)
    for best, said in ((0, True), (10, False)):
        records = [{"kind": "validation", "step": step, "best": step in (0, best)} for step in (0, 10, 20)]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
        assert best_is_the_start(tmp_path) is said
