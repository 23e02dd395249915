"""A key-value cache for many rows of different lengths, written in place.

transformers' default cache concatenates at every token, which copies the whole history each time. This one owns a buffer
per layer and writes new tokens where they belong; attention reads a view of it. Each row has its own length, so nothing is
padded in the cache, and a row that ends early costs nothing later.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache

from gradus.policies.local.cpu.tiled_attention import attend_once, attend_tiles, takes_tiles

_SLACK = 1  # a last position per row that takes the writes of padding and is never read


def _takes_shared_heads(device: torch.device) -> bool:
    """Says whether a mask and shared key heads go together. On a GPU they leave the fast kernels, so a prefill repeats the keys there."""
    return device.type == "cpu"


class RaggedCache(Cache):
    """Keys and values of ``rows`` sequences, each in its own slot. Call :meth:`aim` before each forward.

    Buffers are (rows, heads, capacity, head size) per layer, so that one head's past is one stretch of memory (decoding
    reads it at every token, and waits for little else); they grow when they are full, to what :attr:`expected` says. The model is shown (n, heads, width, head
    size): a view if the forward's rows stand in the first ``n`` slots (:meth:`swap` brings them there), else a copy.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.expected = 0  # positions a row that the answers under way may come to
        self.capacity = capacity + _SLACK
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._slots: Tensor | slice = slice(0, rows)  # whose keys the coming forward reads
        self._width = 0  # how many positions of each
        self._start: int | None = None  # where all rows write, if they write at the same place
        self._where: tuple[Tensor, Tensor] | None = None  # else: slots (n, 1) and positions (n, S)

    def aim(self, positions: Tensor, valid: Tensor | None, width: int, *, slots: Tensor | None = None) -> None:
        """Say where the coming forward writes and reads.

        Args:
            positions: (n, S) long, the position of each token in its row.
            valid: (n, S) bool, false on padding, whose keys are thrown away; None if there is none.
            width: positions of each row that attention reads, from 0.
            slots: (n,) long, the slots of the rows; None for the first n.
        """
        self.reserve(width)
        count = positions.shape[0]
        self._width, self._slots = width, slice(0, count) if slots is None else slots
        own = torch.arange(count, device=positions.device) if slots is None else slots
        if valid is not None:
            positions = torch.where(valid, positions, self.capacity - _SLACK)
        self._start, self._where = None, (own[:, None], positions)

    def aim_together(self, rows: int, start: int, width: int) -> None:
        """As :meth:`aim`, where the first ``rows`` slots all write at ``start``, without padding."""
        self.reserve(width)
        self._width, self._slots = width, slice(0, rows)
        self._start, self._where = start, None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (n, heads, S, head size) of one layer; return views of all that attention may read."""
        while len(self._keys) <= layer_idx:
            self._keys.append(self._buffer(key_states))
            self._values.append(self._buffer(value_states))
        return self._write(self._keys[layer_idx], key_states), self._write(self._values[layer_idx], value_states)

    def _buffer(self, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        return states.new_zeros(self.rows, heads, self.capacity, size)

    def _write(self, buffer: Tensor, states: Tensor) -> Tensor:
        if self._where is None:
            assert self._start is not None
            buffer[self._slots, :, self._start : self._start + states.shape[2]] = states
        else:
            slots, positions = self._where
            buffer[slots, :, positions] = states.transpose(1, 2)
        return buffer[self._slots, :, : self._width]

    def reserve(self, width: int) -> None:
        """Make room for ``width`` positions a row."""
        if width + _SLACK <= self.capacity:
            return
        # At least a quarter more, so that a row of many turns is not copied at each; at most twice as much.
        wanted = min(2 * self.capacity, max(self.expected + _SLACK, self.capacity + self.capacity // 4))
        self.capacity = max(width + _SLACK, wanted)
        for buffers in (self._keys, self._values):
            for layer, old in enumerate(buffers):
                new = old.new_empty(*old.shape[:2], self.capacity, old.shape[3])
                new[:, :, : old.shape[2]] = old
                new[:, :, old.shape[2] :] = 0  # a weight of 0 does not hide what is not a number
                buffers[layer] = new

    def swap(self, left: list[int], right: list[int], width: int) -> None:
        """Exchange slots ``left[i]`` and ``right[i]``, as far as ``width`` positions. No slot may stand in both lists."""
        for buffer in (*self._keys, *self._values):
            kept = buffer[left, :, :width]
            buffer[left, :, :width] = buffer[right, :, :width]
            buffer[right, :, :width] = kept

    def copy(self, sources: list[int], targets: list[int], width: int) -> None:
        """Let slots ``targets`` begin as ``sources`` do, as far as ``width`` positions: a shared prefix, expanded."""
        for buffer in (*self._keys, *self._values):
            buffer[targets, :, :width] = buffer[sources, :, :width]

    def attend(
        self,
        rows: int,
        mask: Tensor,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        source: Tensor | None = None,
    ) -> Tensor:
        """Write a layer's keys and values (KH, rows x S, D), then attend to the past: query (H, rows x S, D) to (rows x S, H, D).

        ``mask`` is additive, (rows, 1, S, width). ``source``: not None if the last token of each row asks alone. If each row asks one
        question, the heads that share keys ask it together: they read the past once.
        """
        query, key, value = (part.unflatten(1, (rows, -1)).transpose(0, 1) for part in (query, key, value))
        mask = mask if source is None else mask[:, :, -1:]
        keys, values = self.update(key, value, layer)
        heads, shared = query.shape[1], keys.shape[1]
        if query.shape[2] == 1:
            query = query.reshape(rows, shared, heads // shared, -1)
            return attend_once(query, keys, values, mask, scaling).reshape(rows, heads, -1)
        if takes_tiles(query, shared):
            return attend_tiles(query, keys, values, mask, scaling).transpose(1, 2).flatten(0, 1)
        if heads != shared and not _takes_shared_heads(query.device):
            keys, values = (part.repeat_interleave(heads // shared, dim=1) for part in (keys, values))
            shared = heads
        mixed = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=heads != shared
        )
        return mixed.transpose(1, 2).flatten(0, 1)

    # What transformers may ask a cache; the masks and positions are ours, so none of it decides anything.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._width, 0

    def __len__(self) -> int:
        return len(self._keys)
