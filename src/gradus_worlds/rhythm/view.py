"""Measures and draws a week: metrics, curves by day, and the picture of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradus.core import Episode, EpisodeView, GradingError, ViewPanel
from gradus_worlds.rhythm.graders import BELIEF_COMPONENTS, GRADERS, read_week
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import DAYS, METERS, SLOTS, STEPS, Array

Figures = Mapping[str, float | None]


def _play(episode: Episode) -> float | None:
    """The reward without its belief part, divided by the weight that is left, so that it has the reward's scale."""
    reward = episode.reward
    if reward is None or reward.value is None:
        return None
    if reward.grader not in GRADERS:
        return None
    # Graders of several versions have other parts, so the weights are added up too.
    total = 0.0
    weights = 0.0
    for name, weight in GRADERS[reward.grader].weights.items():
        if name not in BELIEF_COMPONENTS:
            total += weight * (reward.components[name] or 0.0)
            weights += weight
    return total / weights


def _finite(values: Array) -> list[float | None]:
    """The numbers of an array; None for one that is not finite."""
    return [value if np.isfinite(value) else None for value in values.tolist()]


def metrics(episode: Episode) -> Figures:
    """``play``, ``belief_mae`` at the end of the week, crashes, and the mean level of each meter."""
    week = read_week(episode)
    errors = np.abs(week.held_belief - week.truth).mean(axis=1)
    levels = week.meters[1:].mean(axis=0).tolist()
    return {
        "play": _play(episode),
        "belief_mae": _finite(errors)[-1],
        "crashes": float(week.crashes.sum()),
        **dict(zip(METERS, levels, strict=True)),
    }


def curves(episode: Episode) -> Mapping[str, Sequence[float | None]]:
    """Belief error by day: of this episode, and of the constant belief [0.5, 0.5, 0.5] on the same person."""
    try:
        week = read_week(episode)
    except GradingError:
        return {}
    errors = np.full(STEPS, np.nan)  # a week that was cut has no errors behind its end
    errors[: len(week.rewards)] = np.abs(week.held_belief - week.truth).mean(axis=1)
    constant_error = np.abs(0.5 - week.truth).mean()
    constant = np.full(len(DAYS), constant_error)
    return {
        "belief_mae_by_day": _finite(errors[len(SLOTS) - 1 :: len(SLOTS)]),  # at the end of each day
        "constant_belief_mae_by_day": _finite(constant),
    }


def view(episode: Episode) -> EpisodeView:
    """Meters as lines, actions as a strip, beliefs as lines with the truth they should reach."""
    week = read_week(episode)
    actions = [turn.action_data.get("action_type") or "nothing" for turn in episode.turns]
    # By name, (T,) each.
    beliefs = {name: _finite(held) for name, held in zip(BELIEFS, week.held_belief.T, strict=True)}
    levels_of = zip(METERS, week.meters[1:].T, strict=True)
    meters = {name: levels.tolist() for name, levels in levels_of}
    return EpisodeView(
        title=f"A week with {episode.outcome.get('person', 'somebody')}, played by {episode.policy}",
        panels=(
            ViewPanel(kind="lines", title="Meters after each step", series=meters, limits=(0.0, 1.0)),
            ViewPanel(kind="strip", title="Actions", labels=actions[: len(week.rewards)]),
            ViewPanel(
                kind="lines",
                title="Stated belief and truth",
                series=beliefs,
                truth=episode.outcome.get("beliefs", {}),
                limits=(0.0, 1.0),
            ),
            ViewPanel(kind="lines", title="Step reward", series={"reward": week.rewards.tolist()}),
        ),
        facts=_facts(episode),
    )


def _facts(episode: Episode) -> dict[str, str]:
    reward = episode.env_return
    facts = {"episode reward": "-" if reward is None else f"{reward:+.2f}"}
    if "weights" in episode.outcome:
        weights = zip(METERS, episode.outcome["weights"], strict=True)
        facts["weights"] = ", ".join(f"{name} {value:.2f}" for name, value in weights)
    return facts
