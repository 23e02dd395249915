"""What a small reactive table may look at: features of the public structured observation, found without knowing it.

Time is left out, as plans have their own clock, and so is whatever does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.core import Episode

__all__ = ["Feature", "find_features"]

_BINS = 3
_MOST_CATEGORIES = 8


@dataclass(frozen=True, kw_only=True)
class Feature:
    """``path`` into the data. With ``edges`` a number is binned, with ``values`` a category is looked up, and with
    ``keys`` the bin is the one that is lowest among several numbers, each relative to its spread in random play."""

    path: tuple[str, ...]
    bins: int
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    centres: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        where = ".".join(self.path)
        return f"lowest of {where}" if self.keys else where

    def bin(self, data: Mapping[str, Any]) -> int:
        """Which bin an observation falls into; 0 where the feature is missing."""
        value = _at(data, self.path)
        if self.keys:
            if not isinstance(value, Mapping):
                return 0
            scaled = [
                (float(value.get(key) or 0.0) - centre) / scale
                for key, centre, scale in zip(self.keys, self.centres, self.scales, strict=True)
            ]
            return scaled.index(min(scaled))
        if self.values:
            return self.values.index(value) if value in self.values else 0
        return int(np.searchsorted(self.edges, value)) if _is_number(value) else 0


def find_features(episodes: Sequence[Episode], *, most: int) -> list[Feature]:
    """Up to ``most`` features, first the lowest of several numbers, then single ones by how well they foretell reward."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns:
        return []
    rewards = np.array([turn.reward or 0.0 for turn in turns])
    time = np.array([turn.index for turn in turns], dtype=float)
    paths = _leaves(turns[0].data)
    columns = {path: [_at(turn.data, path) for turn in turns] for path in paths}
    numbers = {
        path: np.array(column, dtype=float)
        for path, column in columns.items()
        if all(map(_is_number, column)) and _varies(np.array(column, dtype=float), time)
    }
    ranked = sorted(numbers, key=lambda path: (-_correlation(numbers[path], rewards), path))
    singles = [_binned(path, numbers[path]) for path in ranked]
    categories = [_category(path, column) for path, column in columns.items() if path not in numbers]
    found = [*_lowest(numbers), *(f for f in [*singles, *categories] if f is not None)]
    return found[:most]


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
            centres=tuple(float(numbers[(*parent, key)].mean()) for key in keys),
            scales=tuple(float(numbers[(*parent, key)].std()) for key in keys),
        )
        for parent, keys in parents.items()
        if 3 <= len(keys) <= _MOST_CATEGORIES
    ]


def _binned(path: tuple[str, ...], column: np.ndarray) -> Feature | None:
    edges = np.unique(np.quantile(column, [i / _BINS for i in range(1, _BINS)]))
    return Feature(path=path, bins=len(edges) + 1, edges=tuple(float(edge) for edge in edges))


def _category(path: tuple[str, ...], column: Sequence[Any]) -> Feature | None:
    if not all(isinstance(value, str) for value in column):
        return None
    values = tuple(sorted(set(column)))
    return Feature(path=path, bins=len(values), values=values) if 2 <= len(values) <= _MOST_CATEGORIES else None


def _leaves(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Paths of numbers and strings at the top and one level below."""
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            paths += [(key, inner) for inner, leaf in value.items() if _is_number(leaf) or isinstance(leaf, str)]
        elif _is_number(value) or isinstance(value, str):
            paths.append((key,))
    return paths


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    return data


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varies(column: np.ndarray, time: np.ndarray) -> bool:
    return column.std() > 1e-9 and _correlation(column, time) < 0.99


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if x.std() < 1e-12 or y.std() < 1e-12:
        return 0.0
    return abs(float(np.corrcoef(x, y)[0, 1]))
