"""Measures and draws a week: metrics, curves by day, and the picture of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradus.core import Episode, EpisodeView, GradingError, ViewPanel
from gradus_worlds.rhythm.graders import BELIEF_COMPONENTS, GRADERS, read_week
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import METERS


def _play(episode: Episode) -> float | None:
    """The reward without its belief part, divided by the weight that is left, so that it has the reward's scale."""
    reward = episode.reward
    if reward is None or reward.value is None or reward.grader not in GRADERS:
        return None
    weights = GRADERS[reward.grader].weights
    kept = {name: weight for name, weight in weights.items() if name not in BELIEF_COMPONENTS}
    values = {name: reward.components.get(name) for name in kept}
    if any(value is None for value in values.values()):
        return None
    return sum(weight * (values[name] or 0.0) for name, weight in kept.items()) / sum(kept.values())


def metrics(episode: Episode) -> Mapping[str, float | None]:
    """``play``, ``belief_mae`` at the end of the week, crashes, and the mean level of each meter."""
    try:
        week = read_week(episode)
    except GradingError:
        return {"play": _play(episode), "belief_mae": None}
    mae = float(np.abs(week.held_belief[-1] - week.truth).mean())
    levels = week.meters[1:].mean(axis=0)
    return {
        "play": _play(episode),
        "belief_mae": mae if np.isfinite(mae) else None,
        "crashes": float(week.crashes.sum()),
        **{name: float(level) for name, level in zip(METERS, levels, strict=True)},
    }


def curves(episode: Episode) -> Mapping[str, Sequence[float | None]]:
    """Belief error by day: of this episode, and of the constant belief [0.5, 0.5, 0.5] on the same person."""
    try:
        week = read_week(episode)
    except GradingError:
        return {}
    constant = float(np.abs(0.5 - week.truth).mean())
    by_day = week.belief_mae_by_day
    return {
        "belief_mae_by_day": by_day,
        "constant_belief_mae_by_day": [constant if np.isfinite(constant) else None] * len(by_day),
    }


def view(episode: Episode) -> EpisodeView:
    """Meters as lines, actions as a strip, beliefs as lines with the truth they should reach."""
    week = read_week(episode)
    turns = episode.turns[: len(week.rewards)]
    held = week.held_belief
    truth = {name: float(value) for name, value in zip(BELIEFS, week.truth, strict=True) if np.isfinite(value)}
    beliefs = {
        name: [float(value) if np.isfinite(value) else None for value in held[:, place]]
        for place, name in enumerate(BELIEFS)
    }
    return EpisodeView(
        title=f"A week with {episode.outcome.get('person', 'somebody')}, played by {episode.policy}",
        panels=(
            ViewPanel(
                kind="lines",
                title="Meters after each step",
                series={name: week.meters[1:, place].tolist() for place, name in enumerate(METERS)},
                limits=(0.0, 1.0),
            ),
            ViewPanel(
                kind="strip",
                title="Actions",
                labels=[str(turn.action_data.get("action_type") or "nothing") for turn in turns],
            ),
            ViewPanel(kind="lines", title="Stated belief and truth", series=beliefs, truth=truth, limits=(0.0, 1.0)),
            ViewPanel(kind="lines", title="Step reward", series={"reward": week.rewards.tolist()}),
        ),
        facts=_facts(episode),
    )


def _facts(episode: Episode) -> dict[str, str]:
    reward = episode.env_return
    facts = {"episode reward": "-" if reward is None else f"{reward:+.2f}"}
    weights = episode.outcome.get("weights")
    if weights:
        facts["weights"] = ", ".join(f"{name} {value:.2f}" for name, value in zip(METERS, weights, strict=True))
    return facts
