"""The world as pure functions over arrays: any leading dimensions, so that planners and benchmarks use many persons at once.

Shapes: meters, changes and effects (..., 5) in the order of ``METERS``; weights (..., 5); modifiers (..., 9).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradus.core import child_seed
from gradus_worlds.rhythm.tables import (
    BASE,
    CRASH_BELOW,
    CRASH_PENALTY,
    DECAY,
    EVENT_EFFECTS,
    EVENT_PROBABILITY,
    METERS,
    MODIFIERS,
    NOISE,
    PROGRESS,
    RESILIENCE,
    REWARD_SCALE,
    SIGNATURE,
    STEPS,
)

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_KEPT: Array = 1.0 - DECAY
_RESILIENCE = MODIFIERS.index("event_resilience")
_EVENT_THRESHOLDS: Array = np.cumsum(EVENT_PROBABILITY)[:-1]


def effect_tables(modifiers: Array) -> Array:
    """Effects of every slot and action on the persons, (..., 4, 11, 5), before vitality; the last action is nothing."""
    return BASE + np.tensordot(modifiers, SIGNATURE, axes=1)


def event_effects(events: Integers, modifiers: Array) -> Array:
    """Returns what events (...) do to persons of modifiers (..., 9): (..., 5)."""
    felt = 1.0 - RESILIENCE * modifiers[..., _RESILIENCE]
    return EVENT_EFFECTS[events] * felt[..., None]


def vitality_factor(vitality: Array) -> Array:
    """Says how much of work's progress a person gets: 1 from vitality 0.5 on, 0.4 when exhausted."""
    return np.minimum(0.4 + 1.2 * vitality, 1.0)


def felt_change(meters: Array, effects: Array, shocks: Array | float = 0.0) -> Array:
    """The realised change (..., 5): effects and shocks (events, noise) after clipping to [0, 1]; decay is not in it."""
    moved = meters + effects + shocks
    moved[..., PROGRESS] += effects[..., PROGRESS] * (vitality_factor(meters[..., 0]) - 1.0)
    return np.clip(moved, 0.0, 1.0, out=moved) - meters


def settle(meters: Array) -> Array:
    """Decay of one slot."""
    return meters * _KEPT


def count_crashes(meters: Array) -> Integers:
    """Returns how many of the five meters are below the crash line, (...)."""
    return np.count_nonzero(meters < CRASH_BELOW, axis=-1)


def rewards(weights: Array, changes: Array, crashes: Integers) -> Array:
    """Step reward (...): weighted realised changes, scaled, minus the penalty of each meter in a crash."""
    return REWARD_SCALE * (weights * changes).sum(axis=-1) - CRASH_PENALTY * crashes


def transition(
    meters: Array, weights: Array, effects: Array, shocks: Array | float = 0.0
) -> tuple[Array, Array, Array, Integers]:
    """One step of many persons: next meters, realised changes, rewards, crashes."""
    change = felt_change(meters, effects, shocks)
    after = settle(meters + change)
    crashes = count_crashes(after)
    return after, change, rewards(weights, change, crashes), crashes


def draw_start(seed: int) -> Array:
    """Meters on Monday morning, (5,)."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "start"))
    return np.array([0.65, 0.65, 0.4, 0.55, 0.5]) + rng.uniform(-0.1, 0.1, len(METERS))


def draw_noise(seed: int) -> Array:
    """The noise of a week, (28, 5); row t is step t's, whatever was done before."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "noise"))
    return rng.normal(0.0, NOISE, (STEPS, len(METERS)))


def draw_events(seed: int) -> Integers:
    """The events of a week, (28,) indices into ``EVENTS``."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "events"))
    return np.searchsorted(_EVENT_THRESHOLDS, rng.random(STEPS), side="right")
