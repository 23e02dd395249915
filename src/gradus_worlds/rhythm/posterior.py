"""Computes a particle posterior over a person's 14 parameters after some steps, for many episodes at once.

Each cell of the world's ``SIGNATURE`` belongs to one modifier, so the posterior over the nine modifiers factorises: every
modifier has particles of its own, at fixed places with changing weights. The five reward weights share one cloud on the
simplex, which is resampled with jitter (Liu and West, 2001); rewards are linear in it. Anomalies are free of noise and
rounded by the line that shows them, so their likelihood is the interval that rounds to what was shown, with soft edges: a
value that is shown twice does not count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gradus.core import child_seed
from gradus_worlds.rhythm.persons import WEIGHT_CONCENTRATION, belief_targets
from gradus_worlds.rhythm.tables import (
    ANOMALY_GRID,
    BASE,
    CRASH_PENALTY,
    EVENT_EFFECTS,
    METER_GRID,
    METERS,
    MODIFIERS,
    NOISE,
    PROGRESS,
    RESILIENCE,
    REWARD_LIMIT,
    REWARD_SCALE,
    SIGNATURE,
)
from gradus_worlds.rhythm.world import vitality_factor

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MODIFIER_PARTICLES = 121
WEIGHT_PARTICLES = 384
_EDGE = 1.5  # particles lie in [-1.5, 1.5]; beyond [-1, 1] they share a small prior mass, for persons unlike any before
_TAIL = 0.03
_SOFT = 0.002  # softness of an interval's edges, in units of a meter
_CLIPPED = 0.02  # where a meter hit 0 or 1, its shown level (rounded) says less about the effect
_REWARD_SD = 0.075  # rounding of the reward, noise of the meters and rounding of anomalies together
_SHRINK = 0.97
_RESILIENCE = MODIFIERS.index("event_resilience")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One step as the lines showed it, for R episodes at the same step of their weeks."""

    slots: Integers  # (R,)
    actions: Integers  # (R,), nothing included
    events: Integers  # (R,)
    before: Array  # (R, 5) meters
    after: Array  # (R, 5)
    anomalies: Array  # (R, 5)
    rewards: Array  # (R,)


def _prior_places() -> tuple[Array, Array]:
    places = np.linspace(-_EDGE, _EDGE, MODIFIER_PARTICLES)
    inside = np.abs(places) <= 1.0
    mass = np.where(inside, (1.0 - _TAIL) / inside.sum(), _TAIL / (~inside).sum())
    return places, np.log(mass)


_PLACES, _LOG_PRIOR = _prior_places()


class Posterior:
    """Beliefs about persons, one row each; all methods are vectorised over rows.

    ``keys`` are the seed keys of the rows: a row's draws depend on its own key and its own steps, not on its neighbours.
    """

    def __init__(self, keys: Sequence[tuple[int | str, ...]]) -> None:
        rows = len(keys)
        rng = np.random.default_rng(child_seed(0, "rhythm", "posterior"))
        cloud = rng.dirichlet(np.full(len(METERS), WEIGHT_CONCENTRATION), WEIGHT_PARTICLES)
        self._keys = list(keys)
        self._updates = [0] * rows
        self._log_modifiers = np.tile(_LOG_PRIOR, (rows, len(MODIFIERS), 1))  # (R, 9, M)
        self._cloud = np.tile(cloud, (rows, 1, 1))  # (R, N, 5)
        self._log_cloud: Array = np.zeros((rows, WEIGHT_PARTICLES))

    def modifier_moments(self, rows: Sequence[int]) -> tuple[Array, Array]:
        """Mean and variance of the modifiers, (R, 9) each."""
        mass = _normalised(self._log_modifiers[rows])
        mean = mass @ _PLACES
        return mean, np.maximum(mass @ _PLACES**2 - mean**2, 0.0)

    def weights_mean(self, rows: Sequence[int]) -> Array:
        """Mean of the reward weights, (R, 5)."""
        return np.einsum("rn,rnm->rm", _normalised(self._log_cloud[rows]), self._cloud[rows])

    def belief(self, rows: Sequence[int]) -> Array:
        """Posterior mean of the belief targets, (R, 3)."""
        return belief_targets(self.weights_mean(rows), self.modifier_moments(rows)[0])

    def update(self, rows: Sequence[int], evidence: Evidence) -> None:
        """Learn from one step of the given rows."""
        for row in rows:
            self._updates[row] += 1
        self._learn_modifiers(rows, evidence)
        self._learn_weights(rows, evidence)

    def _learn_modifiers(self, rows: Sequence[int], e: Evidence) -> None:
        slopes = _slopes(e)  # (R, 9, 5)
        mean, variance = self.modifier_moments(rows)
        neutral = e.before + _neutral_effects(e)
        told = np.einsum("rkm,rk->rm", slopes, mean)
        spread = np.einsum("rkm,rk->rm", slopes**2, variance)
        start = np.clip(neutral, 0.0, 1.0)
        gained = self._log_modifiers[rows]
        for modifier in range(len(MODIFIERS)):
            slope = slopes[:, modifier]
            touched = np.flatnonzero(np.abs(slope).max(axis=1) > 1e-9)
            for meter in np.flatnonzero(np.abs(slope).max(axis=0) > 1e-9):
                hit = touched[np.abs(slope[touched, meter]) > 1e-9]
                others = told[hit, meter] - slope[hit, meter] * mean[hit, modifier]
                unsure = spread[hit, meter] - slope[hit, meter] ** 2 * variance[hit, modifier]
                level = (neutral[hit, meter] + others)[:, None] + slope[hit, meter, None] * _PLACES
                edge = 0.5 - METER_GRID / 2  # within half a grid step of 0 or 1 the shown level cannot tell
                clipped = (np.abs(level - 0.5) > edge) | (np.abs(neutral[hit, meter, None] - 0.5) > edge)
                predicted = np.clip(level, 0.0, 1.0) - start[hit, meter, None]
                soft = np.sqrt(np.where(clipped, _CLIPPED, _SOFT) ** 2 + np.maximum(unsure, 0.0)[:, None])
                gained[hit, modifier] += _log_interval(e.anomalies[hit, meter, None] - predicted, soft)
        self._log_modifiers[rows] = gained - gained.max(axis=2, keepdims=True)

    def _learn_weights(self, rows: Sequence[int], e: Evidence) -> None:
        start = np.clip(e.before + _neutral_effects(e), 0.0, 1.0)
        change = np.clip(start + e.anomalies, 0.0, 1.0) - e.before
        surely = (e.after < METER_GRID * 1.5).sum(axis=1)
        perhaps = (np.abs(e.after - 2 * METER_GRID) < METER_GRID / 2).sum(axis=1)
        predicted = REWARD_SCALE * np.einsum("rnm,rm->rn", self._cloud[rows], change)
        predicted -= CRASH_PENALTY * (surely + 0.5 * perhaps)[:, None]
        predicted = np.clip(predicted, -REWARD_LIMIT, REWARD_LIMIT)
        clipped = ((np.abs(start - 0.5) > 0.5 - METER_GRID) * 0.02).max(axis=1)
        noise = (NOISE**2 + clipped**2)[:, None] * (self._cloud[rows] ** 2).sum(axis=2)
        variance = _REWARD_SD**2 + REWARD_SCALE**2 * noise + (CRASH_PENALTY / 2 * perhaps[:, None]) ** 2
        log = self._log_cloud[rows] - 0.5 * (e.rewards[:, None] - predicted) ** 2 / variance - 0.5 * np.log(variance)
        self._log_cloud[rows] = log - log.max(axis=1, keepdims=True)
        mass = _normalised(self._log_cloud[rows])
        poor = np.flatnonzero(1.0 / (mass**2).sum(axis=1) < WEIGHT_PARTICLES / 3)
        for place in poor.tolist():
            self._resample(rows[place], mass[place])

    def _resample(self, row: int, mass: Array) -> None:
        """Systematic resampling, then a shrunken kernel that keeps mean and covariance."""
        rng = np.random.default_rng(child_seed(0, *self._keys[row], "resample", self._updates[row]))
        marks = (np.arange(WEIGHT_PARTICLES) + rng.random()) / WEIGHT_PARTICLES
        chosen = np.minimum(np.searchsorted(np.cumsum(mass), marks), WEIGHT_PARTICLES - 1)
        cloud = self._cloud[row]
        mean = mass @ cloud
        centred = cloud - mean
        covariance = (mass[:, None] * centred).T @ centred
        scale, axes = np.linalg.eigh(covariance)
        normal = rng.normal(size=(WEIGHT_PARTICLES, len(METERS)))
        step = (normal * np.sqrt(np.maximum(scale, 0.0))) @ axes.T
        moved = mean + _SHRINK * centred[chosen] + np.sqrt(1 - _SHRINK**2) * step
        moved = np.maximum(moved, 1e-4)
        self._cloud[row] = moved / moved.sum(axis=1, keepdims=True)
        self._log_cloud[row] = 0.0


def _normalised(log: Array) -> Array:
    mass = np.exp(log - log.max(axis=-1, keepdims=True))
    return mass / mass.sum(axis=-1, keepdims=True)


def _log_interval(miss: Array, soft: Array) -> Array:
    """Log-probability that a value rounds to what was shown, ``miss`` away from its prediction; never quite zero."""
    inside = expit((miss + ANOMALY_GRID / 2) / soft) - expit((miss - ANOMALY_GRID / 2) / soft)
    return np.log(inside + 1e-6)


def _slopes(e: Evidence) -> Array:
    """Change of each meter per unit of each modifier in this step, (R, 9, 5)."""
    slopes = SIGNATURE[:, e.slots, e.actions].transpose(1, 0, 2).copy()
    slopes[:, :, PROGRESS] *= vitality_factor(e.before[:, 0])[:, None]
    slopes[:, _RESILIENCE] -= RESILIENCE * EVENT_EFFECTS[e.events]
    return slopes


def _neutral_effects(e: Evidence) -> Array:
    """Returns what a neutral person's meters would have done without noise and before clipping, (R, 5)."""
    effects = BASE[e.slots, e.actions] + EVENT_EFFECTS[e.events]
    gain = BASE[e.slots, e.actions, PROGRESS]
    effects[:, PROGRESS] += gain * (vitality_factor(e.before[:, 0]) - 1.0)
    return effects
