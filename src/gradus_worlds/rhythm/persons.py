"""The persons of a week: 14 hidden parameters, the three persons of the original, and beliefs about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gradus.core import child_seed, frozen_record
from gradus_worlds.rhythm.tables import FIGURES, METERS, MODIFIERS, Array

BELIEFS = ("social", "morning", "work")
WEIGHT_CONCENTRATION = 0.8  # of the symmetric Dirichlet over the five reward weights


def _shares(parameters: Sequence[str]) -> Array:
    """The shares of parameters in the beliefs, (parameters, 3)."""
    table = np.zeros((len(parameters), len(BELIEFS)))
    for column, belief in enumerate(BELIEFS):
        table[:, column] = [FIGURES["beliefs"][belief].get(name, 0.0) for name in parameters]
    return table


TARGET_MODIFIERS = _shares(MODIFIERS)  # (9, 3)
TARGET_WEIGHTS = _shares(METERS)  # (5, 3)


@frozen_record
class Profile:
    """One person."""

    name: str
    # Five reward weights that sum to 1, in the order of METERS.
    weights: tuple[float, ...]
    # Nine numbers in the order of MODIFIERS: 0 is neutral, and training has -1 to 1.
    modifiers: tuple[float, ...]

    @property
    def beliefs(self) -> tuple[float, ...]:
        """The truth that a belief should meet: social, morning, work in [0, 1]."""
        weights, modifiers = arrays([self])
        return tuple(belief_targets(weights, modifiers)[0].tolist())


def arrays(profiles: Sequence[Profile]) -> tuple[Array, Array]:
    """Weights (B, 5) and modifiers (B, 9) of many persons."""
    weights = np.array([profile.weights for profile in profiles], dtype=float)
    modifiers = np.array([profile.modifiers for profile in profiles], dtype=float)
    return weights.reshape(-1, len(METERS)), modifiers.reshape(-1, len(MODIFIERS))


def belief_targets(weights: Array, modifiers: Array) -> Array:
    """Returns what should be believed, (..., 3), of weights (..., 5) and modifiers (..., 9)."""
    # Both parts are 0 for the neutral person, whose five weights are 0.2 each.
    targets = 0.5 + modifiers @ TARGET_MODIFIERS + (weights - 0.2) @ TARGET_WEIGHTS
    return np.clip(targets, 0.0, 1.0)


def _draw(seed: int, stream: str) -> tuple[np.random.Generator, Array, Array]:
    """Weights from a symmetric Dirichlet, modifiers uniform in [-1, 1], and the generator that drew them."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", stream))
    weights = rng.dirichlet(np.full(len(METERS), WEIGHT_CONCENTRATION))
    return rng, weights, rng.uniform(-1.0, 1.0, len(MODIFIERS))


def _profile(name: str, weights: Array, modifiers: Array) -> Profile:
    return Profile(name=name, weights=tuple(weights.tolist()), modifiers=tuple(modifiers.tolist()))


def sample_profile(seed: int) -> Profile:
    """The person of ``seed``: weights from a symmetric Dirichlet, modifiers uniform in [-1, 1]."""
    _, weights, modifiers = _draw(seed, "person")
    return _profile(f"person-{seed}", weights, modifiers)


def sample_ood(seed: int) -> Profile:
    """A person whom :func:`sample_profile` cannot give: four of the nine modifiers lie outside [-1, 1], at 1.1 to 1.4."""
    rng, weights, modifiers = _draw(seed, "ood")
    beyond = rng.permutation(len(MODIFIERS))[:4]
    modifiers[beyond] = np.sign(modifiers[beyond]) * rng.uniform(1.1, 1.4, 4)
    return _profile(f"ood-{seed}", weights, modifiers)


def _person(name: str, weights: tuple[float, ...], modifiers: Mapping[str, float]) -> Profile:
    values = tuple(modifiers.get(modifier, 0.0) for modifier in MODIFIERS)
    return Profile(name=name, weights=weights, modifiers=values)


DISCRETE = [_person(name, tuple(person["weights"]), person["modifiers"]) for name, person in FIGURES["persons"].items()]
NEUTRAL = _person("neutral", (0.2,) * len(METERS), {})


def sample_discrete(seed: int) -> Profile:
    """One of the three persons; which one is scrambled, so that ``seed % 3`` says nothing."""
    return DISCRETE[child_seed(seed, "rhythm", "discrete") % len(DISCRETE)]


SAMPLERS: Mapping[str, Callable[[int], Profile]] = {
    "continuous": sample_profile,
    "ood": sample_ood,
    "discrete": sample_discrete,
}
