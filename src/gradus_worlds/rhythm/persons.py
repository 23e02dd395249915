"""The persons of a week: 14 hidden parameters, the three persons of the original, and beliefs about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradus.core import child_seed
from gradus_worlds.rhythm.tables import ACTION_INDEX, BASE, METERS, MODIFIERS, REWARD_SCALE, SIGNATURE

Array = NDArray[np.float64]

BELIEFS = ("social", "morning", "work")
WEIGHT_CONCENTRATION = 0.8  # of the symmetric Dirichlet over the five reward weights

# Belief targets: 0.5 + modifiers @ TARGET_MODIFIERS + (weights - 0.2) @ TARGET_WEIGHTS, kept in [0, 1].
# One part of each shows cleanly in an anomaly; the weights show in rewards alone.
_PARTS: dict[str, dict[str, float]] = {
    "social": {"social_energy_cost": -0.30, "social_warmth": 0.20, "connection": 0.6},
    "morning": {"morning_peak": 0.36, "night_peak": -0.22},
    "work": {"work_vitality_recovery": 0.30, "progress_serenity_bonus": 0.20, "progress": 0.6},
}
TARGET_MODIFIERS: Array = np.array([[_PARTS[b].get(name, 0.0) for b in BELIEFS] for name in MODIFIERS])  # (9, 3)
TARGET_WEIGHTS: Array = np.array([[_PARTS[b].get(name, 0.0) for b in BELIEFS] for name in METERS])  # (5, 3)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One person: five reward weights that sum to 1 and nine modifiers, 0 neutral, -1 to 1 in training."""

    name: str
    weights: tuple[float, ...]
    modifiers: tuple[float, ...]

    @property
    def beliefs(self) -> tuple[float, ...]:
        """The truth that a belief should meet: social, morning, work in [0, 1]."""
        return tuple(belief_targets(*arrays([self]))[0].tolist())


def arrays(profiles: Sequence[Profile]) -> tuple[Array, Array]:
    """Weights (B, 5) and modifiers (B, 9) of many persons."""
    return (
        np.array([profile.weights for profile in profiles], dtype=float).reshape(-1, len(METERS)),
        np.array([profile.modifiers for profile in profiles], dtype=float).reshape(-1, len(MODIFIERS)),
    )


def belief_targets(weights: Array, modifiers: Array) -> Array:
    """Returns what should be believed, (..., 3), of weights (..., 5) and modifiers (..., 9)."""
    return np.clip(0.5 + modifiers @ TARGET_MODIFIERS + (weights - 0.2) @ TARGET_WEIGHTS, 0.0, 1.0)


def sample_profile(seed: int) -> Profile:
    """The person of ``seed``: weights from a symmetric Dirichlet, modifiers uniform in [-1, 1]."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "person"))
    weights = rng.dirichlet(np.full(len(METERS), WEIGHT_CONCENTRATION))
    modifiers = rng.uniform(-1.0, 1.0, len(MODIFIERS))
    return Profile(name=f"person-{seed}", weights=tuple(weights.tolist()), modifiers=tuple(modifiers.tolist()))


def sample_ood(seed: int) -> Profile:
    """A person whom :func:`sample_profile` cannot give: four of the nine modifiers lie outside [-1, 1], at 1.1 to 1.4."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "ood"))
    weights = rng.dirichlet(np.full(len(METERS), WEIGHT_CONCENTRATION))
    modifiers = rng.uniform(-1.0, 1.0, len(MODIFIERS))
    beyond = rng.permutation(len(MODIFIERS))[:4]
    modifiers[beyond] = np.sign(modifiers[beyond]) * rng.uniform(1.1, 1.4, 4)
    return Profile(name=f"ood-{seed}", weights=tuple(weights.tolist()), modifiers=tuple(modifiers.tolist()))


def _modifier_for(anomaly: float, modifier: str, action: str, meter: int) -> float:
    return anomaly / float(SIGNATURE[MODIFIERS.index(modifier), 1, ACTION_INDEX[action], meter])


def _person(name: str, weights: tuple[float, ...], **modifiers: float) -> Profile:
    return Profile(name=name, weights=weights, modifiers=tuple(modifiers.get(m, 0.0) for m in MODIFIERS))


def _workaholic() -> Profile:
    """Progress weight 0.70; its serenity bonus is what makes deep_work, all meters at 0.7, worth exactly +1.57."""
    weights = (0.05, 0.05, 0.70, 0.15, 0.05)
    recovery = _modifier_for(0.06, "work_vitality_recovery", "deep_work", 0)
    felt = BASE[1, ACTION_INDEX["deep_work"]] + np.array([0.06, 0.0, 0.0, 0.0, 0.0])
    missing = (1.57 / REWARD_SCALE - float(np.dot(weights, felt))) / weights[3]
    serenity = _modifier_for(missing, "progress_serenity_bonus", "deep_work", 3)
    return _person(
        "workaholic_stoic",
        weights,
        social_warmth=-0.3,
        work_vitality_recovery=recovery,
        progress_serenity_bonus=serenity,
        leisure_guilt=0.9,
        event_resilience=0.8,
    )


# The vitality anomalies of socialize (-0.096, +0.038, 0) and of deep_work (+0.06) are RhythmEnv's.
DISCRETE: tuple[Profile, ...] = (
    _person(
        "introvert_morning",
        (0.20, 0.15, 0.20, 0.35, 0.10),
        social_energy_cost=_modifier_for(-0.096, "social_energy_cost", "socialize", 0),
        social_warmth=-0.5,
        morning_peak=0.9,
        night_peak=-0.7,
        solo_recharge=0.8,
        leisure_guilt=-0.4,
    ),
    _person(
        "extrovert_night_owl",
        (0.15, 0.10, 0.15, 0.20, 0.40),
        social_energy_cost=_modifier_for(0.038, "social_energy_cost", "socialize", 0),
        social_warmth=0.9,
        morning_peak=-0.8,
        night_peak=0.9,
        work_vitality_recovery=-0.5,
        solo_recharge=-0.6,
    ),
    _workaholic(),
)

NEUTRAL = _person("neutral", (0.2,) * len(METERS))


def sample_discrete(seed: int) -> Profile:
    """One of the three persons; which one is scrambled, so that ``seed % 3`` says nothing."""
    return DISCRETE[child_seed(seed, "rhythm", "discrete") % len(DISCRETE)]


SAMPLERS = {"continuous": sample_profile, "ood": sample_ood, "discrete": sample_discrete}
