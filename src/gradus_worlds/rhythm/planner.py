"""A receding-horizon planner: beam search over action sequences in the noise-free world, for many persons at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradus_worlds.rhythm.tables import ACTIONS, METERS, SLOTS, STEPS
from gradus_worlds.rhythm.world import transition

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

HORIZON = 8
BEAM = 12


def plan(
    meters: Array,
    weights: Array,
    effects: Array,
    step: int,
    *,
    bonus: Array | None = None,
    horizon: int = HORIZON,
    beam: int = BEAM,
) -> Integers:
    """The best first action of each person, (R,); see :func:`search_plans`. Ties go to the action that is listed first."""
    return search_plans(meters, weights, effects, step, bonus=bonus, horizon=horizon, beam=beam)[0][:, 0]


def action_values(
    meters: Array, weights: Array, effects: Array, step: int, *, bonus: Array, horizon: int = HORIZON
) -> Array:
    """Returns the worth of the best plan that begins with each action, (R, 10); -inf if the search lost all that begin so."""
    first, values = search_plans(meters, weights, effects, step, bonus=bonus, horizon=horizon, beam=len(ACTIONS) ** 2)
    best = np.full((len(meters), len(ACTIONS)), -np.inf)
    np.maximum.at(best, (np.arange(len(meters))[:, None], first), values)
    return best


def search_plans(
    meters: Array,
    weights: Array,
    effects: Array,
    step: int,
    *,
    bonus: Array | None,
    horizon: int,
    beam: int,
) -> tuple[Integers, Array]:
    """The first actions and the values of each person's best plans, best first, (R, ``beam``) both.

    meters (R, 5); weights (R, 5) and effects (R, 4, 11, 5) of the persons that are planned for; ``bonus`` (R, 10) is added
    to the value of each first action. All rows are at the same ``step``.
    """
    rows, actions = len(meters), len(ACTIONS)
    states = meters[:, None, :]  # (R, B, 5)
    values: Array = np.zeros((rows, 1))
    first: Integers = np.zeros((rows, 1), dtype=np.int64)
    for depth in range(min(horizon, STEPS - step)):
        table = effects[:, (step + depth) % len(SLOTS), None, :actions, :]  # (R, 1, 10, 5)
        after, _, reward, _ = transition(states[:, :, None, :], weights[:, None, None, :], table)
        total = values[:, :, None] + reward  # (R, B, 10)
        if depth == 0:
            total = total if bonus is None else total + bonus[:, None, :]
            origin = np.broadcast_to(np.arange(actions), (rows, actions))
        else:
            origin = np.repeat(first, actions, axis=1)
        total = total.reshape(rows, -1)
        keep = min(beam, total.shape[1])
        best = np.argsort(-total, axis=1, kind="stable")[:, :keep]
        values = np.take_along_axis(total, best, axis=1)
        first = np.take_along_axis(origin, best, axis=1)
        states = np.take_along_axis(after.reshape(rows, -1, len(METERS)), best[:, :, None], axis=1)
    return first, values
