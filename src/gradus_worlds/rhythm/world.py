"""The world as pure functions over arrays, and a planner in it: any leading dimensions, so that many persons are planned for at once.

Shapes: meters, changes and effects (..., 5) in the order of ``METERS``; weights (..., 5); modifiers (..., 9).
"""

from __future__ import annotations

import numpy as np

from gradus.core import child_seed, frozen_record
from gradus_worlds.rhythm.tables import (
    ACTIONS,
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
    SLOTS,
    STEPS,
    Array,
    Integers,
)

_RESILIENCE = MODIFIERS.index("event_resilience")
_EVENT_THRESHOLDS = np.cumsum(EVENT_PROBABILITY)[:-1]
BEAM = 12


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
    # Vitality scales work alone: no action but work has an effect on progress.
    moved[..., PROGRESS] += effects[..., PROGRESS] * (vitality_factor(meters[..., 0]) - 1.0)
    return np.clip(moved, 0.0, 1.0, out=moved) - meters


def settle(meters: Array) -> Array:
    """Decay of one slot."""
    return meters * (1.0 - DECAY)


def transition(
    meters: Array, weights: Array, effects: Array, shocks: Array | float = 0.0
) -> tuple[Array, Array, Array, Integers]:
    """One step of many persons: next meters, realised changes, rewards (...), and how many meters are in a crash (...)."""
    change = felt_change(meters, effects, shocks)
    after = settle(meters + change)
    crashes = np.count_nonzero(after < CRASH_BELOW, axis=-1)
    rewards = REWARD_SCALE * (weights * change).sum(axis=-1) - CRASH_PENALTY * crashes
    return after, change, rewards, crashes


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


@frozen_record
class Situation:
    """R persons at the same step of their weeks, as a planner knows them."""

    step: int
    # (R, 5)
    meters: Array
    weights: Array
    # (R, 4, 11, 5), see effect_tables.
    effects: Array
    # (R, 10), added to the value of each first action.
    bonus: Array | float = 0.0


def plan(situation: Situation, *, horizon: int, beam: int = BEAM) -> Integers:
    """The best first action of each person, (R,); see :func:`search_plans`. Ties go to the action that is listed first."""
    return search_plans(situation, horizon=horizon, beam=beam)[0][:, 0]


def action_values(situation: Situation, *, horizon: int) -> Array:
    """Returns the worth of the best plan that begins with each action, (R, 10); -inf if the search lost all such plans."""
    first, values = search_plans(situation, horizon=horizon, beam=len(ACTIONS) ** 2)
    rows = np.arange(len(first))[:, None]
    best = np.full((len(first), len(ACTIONS)), -np.inf)
    np.maximum.at(best, (rows, first), values)
    return best


def search_plans(situation: Situation, *, horizon: int, beam: int) -> tuple[Integers, Array]:
    """The first actions and the values of each person's best plans, best first, (R, ``beam``) both."""
    rows = len(situation.meters)
    actions = len(ACTIONS)
    weights = situation.weights[:, None, None, :]
    states = situation.meters[:, None, :]  # (R, B, 5)
    values = np.zeros((rows, 1))
    first = np.broadcast_to(np.arange(actions), (rows, actions))
    for depth in range(min(horizon, STEPS - situation.step)):
        slot = (situation.step + depth) % len(SLOTS)
        table = situation.effects[:, slot, None, :actions, :]  # (R, 1, 10, 5)
        after, _, reward, _ = transition(states[:, :, None, :], weights, table)
        total = (values[:, :, None] + reward).reshape(rows, -1)  # (R, B * 10)
        if depth == 0:
            total = total + situation.bonus
        else:
            # A longer plan keeps the first action of the plan that it extends.
            first = np.repeat(first, actions, axis=1)
        # A stable sort, so that ties go to the action that is listed first.
        best = np.argsort(-total, axis=1, kind="stable")[:, :beam]
        values = np.take_along_axis(total, best, axis=1)
        first = np.take_along_axis(first, best, axis=1)
        states = np.take_along_axis(after.reshape(rows, -1, len(METERS)), best[:, :, None], axis=1)
    return first, values
