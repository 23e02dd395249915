"""Computes a particle posterior over a person's 14 parameters after some steps, for many episodes at once.

Each cell of the world's ``SIGNATURE`` belongs to one modifier, so the posterior over the nine modifiers factorises: every
modifier has particles of its own, at fixed places with changing weights. The five reward weights share one cloud on the
simplex, which is resampled with jitter (Liu and West, 2001); rewards are linear in it. Anomalies are free of noise and
rounded by the line that shows them, so their likelihood is the interval that rounds to what was shown, with soft edges: a
value that is shown twice does not count twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gradus.core import child_seed, frozen_record
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
    SLOTS,
    Array,
    Integers,
)
from gradus_worlds.rhythm.world import vitality_factor

MODIFIER_PARTICLES = 121
WEIGHT_PARTICLES = 384
_EDGE = 1.5  # particles lie in [-1.5, 1.5]; beyond [-1, 1] they share a small prior mass, for persons unlike any before
_TAIL = 0.03
_SOFT = 0.002  # softness of an interval's edges, in units of a meter
_CLIPPED = 0.02  # where a meter hit 0 or 1, its shown level (rounded) says less about the effect
_REWARD_SD = 0.075  # rounding of the reward, noise of the meters and rounding of anomalies together
_SHRINK = 0.97
_FLAT = 1e-9  # a modifier of a smaller slope says nothing
_RESILIENCE = MODIFIERS.index("event_resilience")


@frozen_record
class ShownStep:
    """One step as the lines showed it, for R episodes at the same step of their weeks."""

    # Of the week; 0 is Monday morning.
    step: int
    # (R,) indices; nothing is one of them.
    actions: Integers
    events: Integers
    # (R, 5) meters.
    before: Array
    after: Array
    # (R, 5) differences from the neutral person's change.
    anomalies: Array
    # (R,)
    rewards: Array

    def slopes(self) -> Array:
        """Change of each meter per unit of each modifier in this step, (R, 9, 5)."""
        by_action = SIGNATURE[:, self.step % len(SLOTS), self.actions]  # (9, R, 5)
        slopes = by_action.transpose(1, 0, 2).copy()
        slopes[:, :, PROGRESS] *= vitality_factor(self.before[:, 0])[:, None]
        # Resilience weakens events, whatever was done.
        slopes[:, _RESILIENCE] -= RESILIENCE * EVENT_EFFECTS[self.events]
        return slopes

    def neutral(self) -> Array:
        """The meters of a neutral person after this step, without noise and before clipping, (R, 5)."""
        actions = BASE[self.step % len(SLOTS), self.actions]
        effects = actions + EVENT_EFFECTS[self.events]
        # Events are felt in full, work by vitality: as in the world's felt_change.
        loss = vitality_factor(self.before[:, 0]) - 1.0
        effects[:, PROGRESS] += actions[:, PROGRESS] * loss
        return self.before + effects


def _prior(places: Array) -> Array:
    """Log-probabilities of the places: those beyond [-1, 1] share the tail."""
    inside = np.abs(places) <= 1.0
    number = int(inside.sum())
    usual = (1.0 - _TAIL) / number
    unusual = _TAIL / (len(places) - number)
    return np.log(np.where(inside, usual, unusual))


_PLACES = np.linspace(-_EDGE, _EDGE, MODIFIER_PARTICLES)


class Posterior:
    """Beliefs about persons, one row each; all methods are vectorised over rows.

    ``keys`` are the seed keys of the rows: a row's draws depend on its own key and its own steps, not on its neighbours.
    """

    def __init__(self, keys: Sequence[tuple[int | str, ...]]) -> None:
        rows = len(keys)
        rng = np.random.default_rng(child_seed(0, "rhythm", "posterior"))
        cloud = rng.dirichlet(np.full(len(METERS), WEIGHT_CONCENTRATION), WEIGHT_PARTICLES)
        self._keys = keys
        # (R, 9, M) log-probabilities of the places of each modifier.
        self._log_modifiers = np.tile(_prior(_PLACES), (rows, len(MODIFIERS), 1))
        # (R, N, 5) particles on the simplex, and (R, N) their log-probabilities.
        self._cloud = np.tile(cloud, (rows, 1, 1))
        self._log_cloud = np.zeros((rows, WEIGHT_PARTICLES))

    def modifier_moments(self, rows: Sequence[int]) -> tuple[Array, Array]:
        """Mean and variance of the modifiers, (R, 9) each."""
        mass = normalised(self._log_modifiers[rows])
        mean = mass @ _PLACES
        square = mass @ _PLACES**2
        # Rounding may leave it a little below zero.
        return mean, np.maximum(square - mean**2, 0.0)

    def weights_mean(self, rows: Sequence[int]) -> Array:
        """Mean of the reward weights, (R, 5)."""
        return np.einsum("rn,rnm->rm", normalised(self._log_cloud[rows]), self._cloud[rows])

    def belief(self, rows: Sequence[int]) -> Array:
        """Posterior mean of the belief targets, (R, 3)."""
        modifiers, _ = self.modifier_moments(rows)
        return belief_targets(self.weights_mean(rows), modifiers)

    def update(self, rows: Sequence[int], step: ShownStep) -> None:
        """Learn from one step of the given rows."""
        self._learn_modifiers(rows, step)
        self._learn_weights(rows, step)

    def _learn_modifiers(self, rows: Sequence[int], step: ShownStep) -> None:
        slopes = step.slopes()
        mean, variance = self.modifier_moments(rows)
        neutral = step.neutral()
        start = np.clip(neutral, 0.0, 1.0)
        expected = np.einsum("rkm,rk->rm", slopes, mean)
        spread = np.einsum("rkm,rk->rm", slopes**2, variance)
        # Log-probabilities up to a constant of each row and modifier.
        logs = self._log_modifiers[rows]
        touched = np.argwhere(np.abs(slopes).max(axis=0) > _FLAT)
        for modifier, meter in touched.tolist():
            hit = np.flatnonzero(np.abs(slopes[:, modifier, meter]) > _FLAT)
            slope = slopes[hit, modifier, meter]
            level = neutral[hit, meter]
            # The other modifiers count with their means here, and with their variances below.
            by_rest = expected[hit, meter] - slope * mean[hit, modifier]
            unsure = spread[hit, meter] - slope**2 * variance[hit, modifier]
            levels = (level + by_rest)[:, None] + slope[:, None] * _PLACES
            # A clipped level shows only that the effect was at least so large.
            clipped = _near_a_bound(levels) | _near_a_bound(level[:, None])
            softness = np.where(clipped, _CLIPPED, _SOFT)
            # Rounding may leave a difference of variances a little below zero.
            soft = np.sqrt(softness**2 + np.maximum(unsure, 0.0)[:, None])
            predicted = np.clip(levels, 0.0, 1.0) - start[hit, meter, None]
            misses = step.anomalies[hit, meter, None] - predicted
            logs[hit, modifier] += _log_interval(misses, soft)
        self._log_modifiers[rows] = logs - logs.max(axis=2, keepdims=True)

    def _learn_weights(self, rows: Sequence[int], step: ShownStep) -> None:
        cloud = self._cloud[rows]
        start = np.clip(step.neutral(), 0.0, 1.0)
        change = np.clip(start + step.anomalies, 0.0, 1.0) - step.before
        # A level is shown rounded: at the second step of the grid it may lie on either side of a crash.
        crashes = (step.after < METER_GRID * 1.5).sum(axis=1)
        doubtful = (np.abs(step.after - 2 * METER_GRID) < METER_GRID / 2).sum(axis=1)
        predicted = REWARD_SCALE * np.einsum("rnm,rm->rn", cloud, change)
        predicted -= CRASH_PENALTY * (crashes + 0.5 * doubtful)[:, None]
        predicted = np.clip(predicted, -REWARD_LIMIT, REWARD_LIMIT)
        near_a_bound = np.abs(start - 0.5) > 0.5 - METER_GRID
        clipped = (near_a_bound * _CLIPPED).max(axis=1)
        # The weighted sum of independent errors of five meters.
        noise = (NOISE**2 + clipped**2)[:, None] * (cloud**2).sum(axis=2)
        by_crash = (CRASH_PENALTY / 2 * doubtful[:, None]) ** 2
        variance = _REWARD_SD**2 + REWARD_SCALE**2 * noise + by_crash
        # Normal log-likelihood; the variance differs by particle, so its term stays.
        squares = (step.rewards[:, None] - predicted) ** 2
        misses = 0.5 * squares / variance
        logs = self._log_cloud[rows] - misses - 0.5 * np.log(variance)
        self._log_cloud[rows] = logs - logs.max(axis=1, keepdims=True)
        mass = normalised(self._log_cloud[rows])
        particles = 1.0 / (mass**2).sum(axis=1)  # the effective number of them
        for place in np.flatnonzero(particles < WEIGHT_PARTICLES / 3).tolist():
            self._resample(rows[place], mass[place], step.step)

    def _resample(self, row: int, mass: Array, step: int) -> None:
        """Systematic resampling, then a shrunken kernel that keeps mean and covariance."""
        rng = np.random.default_rng(child_seed(0, *self._keys[row], "resample", step + 1))
        # One draw for all particles has less variance than a draw for each.
        marks = (np.arange(WEIGHT_PARTICLES) + rng.random()) / WEIGHT_PARTICLES
        drawn = np.minimum(np.searchsorted(np.cumsum(mass), marks), WEIGHT_PARTICLES - 1)
        cloud = self._cloud[row]
        mean = mass @ cloud
        centred = cloud - mean
        covariance = (mass[:, None] * centred).T @ centred
        scale, axes = np.linalg.eigh(covariance)
        normal = rng.normal(size=(WEIGHT_PARTICLES, len(METERS)))
        jitter = (normal * np.sqrt(np.maximum(scale, 0.0))) @ axes.T
        # The two factors' squares add up to 1, so that the spread stays.
        moved = mean + _SHRINK * centred[drawn] + np.sqrt(1 - _SHRINK**2) * jitter
        # The kernel may leave the simplex; weights are kept above zero and sum to 1 again.
        moved = np.maximum(moved, 1e-4)
        self._cloud[row] = moved / moved.sum(axis=1, keepdims=True)
        self._log_cloud[row] = 0.0


def normalised(logs: Array) -> Array:
    """Probabilities of log-probabilities that lack a constant, over the last axis."""
    mass = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return mass / mass.sum(axis=-1, keepdims=True)


def _near_a_bound(levels: Array) -> NDArray[np.bool_]:
    """Says where the shown level cannot tell whether 0 or 1 was hit: within half a grid step of it."""
    return np.abs(levels - 0.5) > 0.5 - METER_GRID / 2


def _log_interval(miss: Array, soft: Array) -> Array:
    """Log-probability that a value rounds to what was shown, ``miss`` away from its prediction; never quite zero."""
    half = ANOMALY_GRID / 2
    inside = expit((miss + half) / soft) - expit((miss - half) / soft)
    # Never zero: one step that the model of the world cannot explain must not rule a place out for good.
    return np.log(inside + 1e-6)
