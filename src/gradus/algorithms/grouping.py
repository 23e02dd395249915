"""Sums, means and extremes within groups. A group is named by an integer per row; names need not be dense or sorted."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

_NOISE = 64.0  # differences below this many roundings of the largest value are float noise, not variance


def dense_names(names: Tensor) -> tuple[Tensor, Tensor]:
    """The different integers in ``names`` (N,), ascending (n,), and the place of each row's in them (N,)."""
    return cast("tuple[Tensor, Tensor]", torch.unique(names, return_inverse=True))  # pyright: ignore


def sequence_index(sequences: Tensor | None, mask: Tensor) -> tuple[int, Tensor]:
    """The number of training sequences, n, and the place in 0..n-1 of each token on the ``mask`` (B, T), (M,).

    ``sequences`` (B, T): integer names; None if each row is one sequence.
    """
    if sequences is None:
        sequences = torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)
    names, place = dense_names(sequences[mask])
    return names.numel(), place


def along_rows(values: Tensor, like: Tensor) -> Tensor:
    """``values`` (N,) as (N, 1, ...), which goes with ``like`` (N, ...)."""
    return values.reshape([-1, *[1] * (like.ndim - 1)])


class GroupIndex:
    """Rows (N,) of group names, counted once. ``place`` (N,) is each row's group in 0..n-1, ``names`` (n,) ascending."""

    def __init__(self, groups: Tensor) -> None:
        if groups.ndim != 1 or groups.is_floating_point():
            raise ValueError(
                f"groups must be integers of shape (N,), got {groups.dtype} of shape {tuple(groups.shape)}"
            )
        self.names, self.place = dense_names(groups)
        self.size: Tensor = torch.bincount(self.place, minlength=self.names.numel())

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.names.numel()

    def sum(self, values: Tensor) -> Tensor:
        """(n, ...) sums of ``values`` (N, ...)."""
        total = values.new_zeros(self.count, *values.shape[1:])
        return total.index_add(0, self.place, values)

    def extremes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(n, ...) least and largest of ``values`` (N, ...)."""
        index = along_rows(self.place, values).expand_as(values)
        empty = values.new_zeros(self.count, *values.shape[1:])
        low = empty.scatter_reduce(0, index, values, "amin", include_self=False)
        high = empty.scatter_reduce(0, index, values, "amax", include_self=False)
        return low, high

    def equal(self, values: Tensor) -> Tensor:
        """(n, ...) true where all values of a group are the same number, but for float noise.

        Decided by the extremes: the standard deviation of equal numbers is often not 0 in floating point.
        """
        low, high = self.extremes(values)
        size = torch.maximum(low.abs(), high.abs())
        # Rewards of 16 bits are few numbers, not noise.
        rounding = min(torch.finfo(values.dtype).eps, torch.finfo(torch.float32).eps)
        return high - low <= _NOISE * rounding * size
