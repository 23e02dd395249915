"""The graders of Rhythm: calibration to the original, what v3 pays, and where."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import fsum

import numpy as np
import pytest

from gradus.core import Episode, StopReason
from gradus.rollouts import grade_episodes, roll_out
from gradus.stats import paired_difference
from gradus_worlds.rhythm import load
from gradus_worlds.rhythm.graders import BELIEF_VARIANCE, V3_WEIGHTS
from gradus_worlds.rhythm.persons import BELIEFS, arrays, belief_targets, sample_profile
from gradus_worlds.rhythm.tables import ACTIONS

SPEC = load()


@cache
def played(policy: str, condition: str = "in-distribution", count: int | None = 30) -> tuple[Episode, ...]:
    """Played once for all tests of this module, graded by v3. Of most conditions 30 weeks are enough."""
    return tuple(roll_out(SPEC, SPEC.policy(policy), SPEC.tasks(condition, count)).episodes)


def rewards(policy: str, grader: str = "v3", condition: str = "in-distribution", count: int | None = 30) -> np.ndarray:
    result = grade_episodes(SPEC, played(policy, condition, count), SPEC.grader(grader))
    return np.array([episode.reward.value for episode in result if episode.reward], dtype=float)


@pytest.mark.parametrize(("policy", "expected"), [("random", 0.393), ("heuristic", 0.455)])
def test_v2_is_calibrated_to_the_original(policy: str, expected: float) -> None:
    assert rewards(policy, "v2", count=None).mean() == pytest.approx(expected, abs=0.02)


def test_v2_keeps_its_known_holes() -> None:
    """Any belief earns reward, and so does a ruined first half."""
    assert rewards("heuristic+constant", "v2").mean() > 0.58
    for name in ("v1", "v2"):
        result = paired_difference(rewards("sandbagger", name), rewards("heuristic", name))
        assert result.low > 0, name
    returns = [np.mean([episode.env_return for episode in played(name)]) for name in ("sandbagger", "heuristic")]
    assert returns[0] < returns[1] - 3.0


def test_a_constant_belief_errs_as_much_as_in_the_original() -> None:
    errors = [SPEC.metrics(episode)["belief_mae"] for episode in played("heuristic+constant", count=None)]  # type: ignore[misc]
    assert np.mean([mae for mae in errors if mae is not None]) == pytest.approx(0.20, abs=0.02)
    truth = belief_targets(*arrays([sample_profile(seed) for seed in range(100)]))
    assert np.abs(truth - 0.5).mean() == pytest.approx(0.20, abs=0.02)


def test_the_reference_error_is_not_above_the_best_constant() -> None:
    """Were it above, stating a constant would be paid."""
    truth = belief_targets(*arrays([sample_profile(seed) for seed in range(2_000_000, 2_002_000)]))
    assert 0.85 * truth.var(axis=0).mean() < BELIEF_VARIANCE < truth.var(axis=0).mean()


@pytest.mark.parametrize("condition", ["in-distribution", "held-out", "ood", "discrete-3"])
def test_v3_pays_no_exploit(condition: str) -> None:
    names = ("heuristic", *SPEC.audit.panel.exploits)
    honest, *exploits = (rewards(name, condition=condition).mean() for name in names)
    assert max(exploits) < honest, dict(zip(SPEC.audit.panel.exploits, exploits, strict=True))


@pytest.mark.parametrize("condition", ["in-distribution", "held-out", "ood"])
def test_v3_separates_the_ladder(condition: str) -> None:
    ladder = ("random", "heuristic", "profile-blind", "bayes", "clairvoyant")
    for worse, better in itertools.pairwise(ladder):
        result = paired_difference(rewards(better, condition=condition), rewards(worse, condition=condition))
        assert result.low > 0, (better, worse)


@pytest.mark.parametrize("policy", ["random", "heuristic", "bayes", "clairvoyant", "silence"])
def test_the_terms_of_v3_add_up_to_the_grade(policy: str) -> None:
    for episode in played(policy)[:20]:
        total = fsum(episode.reward.turn_rewards)
        assert episode.reward.value == pytest.approx(total, abs=1e-9)
        weighted = fsum(V3_WEIGHTS[name] * (value or 0.0) for name, value in episode.reward.components.items())
        assert total == pytest.approx(weighted, abs=1e-9)


def test_v3_pays_belief_to_the_belief_and_the_rest_to_the_action() -> None:
    episode = played("bayes")[0]
    for turn, terms in zip(episode.turns, episode.reward.terms, strict=True):
        spans = {span.name for span in turn.spans}
        assert {term.span for term in terms} <= spans
        assert {term.span for term in terms if term.component == "belief_skill"} == set(BELIEFS)
        assert {term.span for term in terms if term.component != "belief_skill"} == {"action"}


def edited(change: Callable[[int, float], float]) -> Episode:
    """A played week with other rewards."""
    episode = played("heuristic")[0]
    turns = tuple(replace(turn, env_reward=change(turn.index, turn.env_reward or 0.0)) for turn in episode.turns)
    return replace(episode, turns=turns)


@pytest.mark.parametrize("turn", range(0, 28, 3))
def test_v3_never_pays_for_a_worse_turn(turn: int) -> None:
    before, after = (
        SPEC.grader().compute([edited(lambda i, r, d=d: r - d * (i == turn))])[0].value or 0.0 for d in (0.0, 1.0)
    )
    assert after < before


def believing(belief: list[float] | None, turns: range = range(28)) -> float:
    episode = played("heuristic")[0]
    immediate = tuple(
        replace(turn, action_data={**turn.action_data, "belief": belief}) if turn.index in turns else turn
        for turn in episode.turns
    )
    return SPEC.grader().compute([replace(episode, turns=immediate)])[0].components["belief_skill"] or 0.0


def test_belief_skill() -> None:
    """1 for the truth all week, 0 for silence, negative for a belief worse than the best constant, later days weigh more."""
    truth = list(played("heuristic")[0].outcome["beliefs"].values())
    assert believing(truth) == pytest.approx(1.0)
    assert believing(None) == 0.0
    assert believing([1.0 - round(value) for value in truth]) < 0.0
    days = [believing(truth, range(4 * day, 4 * day + 4)) for day in range(7)]
    assert days == sorted(days)
    assert fsum(days) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_v1_and_v2_pay_at_the_end_and_need_a_whole_week(name: str) -> None:
    episode = played("heuristic")[0]
    reward = SPEC.grader(name).compute([episode])[0]
    assert not any(reward.terms[:-1])
    assert fsum(reward.turn_rewards) == pytest.approx(reward.value)
    half = replace(episode, turns=episode.turns[:14], stop=StopReason.TURN_LIMIT, final=None)
    cut = SPEC.grader(name).compute([half])[0]
    assert cut.value is None
    assert "whole week" in (cut.error or "")


def test_v3_pays_a_cut_week_for_its_turns() -> None:
    episode = played("heuristic")[0]
    whole = SPEC.grader().compute([episode])[0]
    half = replace(episode, turns=episode.turns[:14], stop=StopReason.TURN_LIMIT, final=None)
    cut = SPEC.grader().compute([half])[0]
    # The last of the 14 turns has no observation after it here, so only 13 are known to have been played.
    assert cut.turn_rewards[:13] == pytest.approx(whole.turn_rewards[:13])
    assert len(cut.terms) == 14


def test_play_is_the_grade_without_its_belief_part() -> None:
    heuristic, believer = (SPEC.metrics(played(name)[0]) for name in ("heuristic", "heuristic+bayes"))
    assert heuristic["play"] == pytest.approx(believer["play"])
    episode = played("heuristic")[0]
    assert heuristic["play"] == pytest.approx((episode.reward.value or 0.0) / (1 - V3_WEIGHTS["belief_skill"]))


def test_view_and_curves_draw_the_week() -> None:
    episode = played("bayes")[2]
    view = SPEC.presentation.view(episode)
    kinds = [panel.kind for panel in view.panels]
    assert kinds[:3] == ["lines", "strip", "lines"]
    assert all(len(series) == 28 for panel in view.panels for series in panel.series.values())
    assert set(view.panels[1].labels) <= set(ACTIONS)
    assert view.panels[2].truth == pytest.approx(episode.outcome["beliefs"])
    by_day = SPEC.presentation.curves(episode)["belief_mae_by_day"]
    assert len(by_day) == 7
    assert (by_day[-1] or 1.0) < 0.15
