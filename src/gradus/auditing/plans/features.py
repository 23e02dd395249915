"""Finds features of the public structured observation that a small reactive table can look at.

Time is left out, as plans have their own clock, and so is whatever does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.core import Episode

_BINS = 3
_MOST_CATEGORIES = 8


@dataclass(frozen=True, kw_only=True)
class Feature:
    """``path`` into the data. With ``edges`` a number is binned, with ``values`` a category is looked up, and with
    ``keys`` the bin is the one that is lowest among several numbers, each relative to its spread in random episodes."""

    path: tuple[str, ...]
    bins: int
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    center: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        where = ".".join(self.path)
        return f"lowest of {where}" if self.keys else where

    def bin(self, data: Mapping[str, Any]) -> int:
        """Says which bin an observation falls into; 0 if the feature is missing."""
        value = _at(data, self.path)
        if self.keys:
            numbers = [_at(value, (key,)) for key in self.keys]
            scaled = [
                ((float(each) if _is_number(each) else 0.0) - center) / scale
                for each, center, scale in zip(numbers, self.center, self.scales, strict=True)
            ]
            return scaled.index(min(scaled))
        if self.values:
            return self.values.index(value) if value in self.values else 0
        return int(np.searchsorted(self.edges, value)) if _is_number(value) else 0


def find_features(episodes: Sequence[Episode], *, most: int) -> list[Feature]:
    """Up to ``most`` features, those first that foretell the reward of the next answer best in the episodes given."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns:
        return []
    rewards = np.array([turn.env_reward or 0.0 for turn in turns])
    time = np.array([turn.index for turn in turns], dtype=float)
    paths = _leaves(turns[0].data)
    columns = {path: [_at(turn.data, path) for turn in turns] for path in paths}
    numbers = {
        path: np.array(column, dtype=float)
        for path, column in columns.items()
        if all(map(_is_number, column)) and _varies(np.array(column, dtype=float), time)
    }
    singles = [_binned(path, column) for path, column in numbers.items()]
    categories = [_category(path, column) for path, column in columns.items() if path not in numbers]
    features = [*_lowest(numbers), *singles, *(each for each in categories if each is not None)]
    data = [turn.data for turn in turns]
    telling = {each.name: _explained(np.array([each.bin(row) for row in data]), rewards) for each in features}
    return sorted(features, key=lambda each: (-telling[each.name], each.name))[:most]


def _explained(bins: np.ndarray, rewards: np.ndarray) -> float:
    """Share of the variance of the reward that the bins explain."""
    total = float(np.sum((rewards - rewards.mean()) ** 2))
    if total < 1e-12:
        return 0.0
    counts = np.bincount(bins)
    sums = np.bincount(bins, weights=rewards - rewards.mean())
    return float(np.sum(sums[counts > 0] ** 2 / counts[counts > 0])) / total


def _lowest(numbers: Mapping[tuple[str, ...], np.ndarray]) -> list[Feature]:
    """For every mapping that holds 3 to 8 numbers: which of them is lowest."""
    parents: dict[tuple[str, ...], list[str]] = {}
    for path in numbers:
        if len(path) > 1:
            parents.setdefault(path[:-1], []).append(path[-1])
    return [
        Feature(
            path=parent,
            bins=len(keys),
            keys=tuple(keys),
            center=tuple(float(numbers[(*parent, key)].mean()) for key in keys),
            scales=tuple(float(numbers[(*parent, key)].std()) for key in keys),
        )
        for parent, keys in parents.items()
        if 3 <= len(keys) <= _MOST_CATEGORIES
    ]


def _binned(path: tuple[str, ...], column: np.ndarray) -> Feature:
    edges = np.unique(np.quantile(column, [i / _BINS for i in range(1, _BINS)]))
    return Feature(path=path, bins=len(edges) + 1, edges=tuple(float(edge) for edge in edges))


def _category(path: tuple[str, ...], column: Sequence[Any]) -> Feature | None:
    if not all(isinstance(value, str) for value in column):
        return None
    values = tuple(sorted(set(column)))
    return Feature(path=path, bins=len(values), values=values) if 2 <= len(values) <= _MOST_CATEGORIES else None


def _leaves(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Paths of numbers and strings at the top and one level below, short lists of numbers included."""
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        if isinstance(value, list | tuple) and len(value) <= _MOST_CATEGORIES:
            value = {str(index): inner for index, inner in enumerate(value)}
        if isinstance(value, Mapping):
            paths += [(key, inner) for inner, leaf in value.items() if _is_number(leaf) or isinstance(leaf, str)]
        elif _is_number(value) or isinstance(value, str):
            paths.append((key,))
    return paths


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if isinstance(data, list | tuple):
            data = data[int(key)] if key.isdigit() and int(key) < len(data) else None
        elif isinstance(data, Mapping):
            data = data.get(key)
        else:
            return None
    return data


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varies(column: np.ndarray, time: np.ndarray) -> bool:
    """Returns True if the column is not constant and no clock."""
    if column.std() < 1e-9:
        return False
    return time.std() < 1e-12 or abs(float(np.corrcoef(column, time)[0, 1])) < 0.99
