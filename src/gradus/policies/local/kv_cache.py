"""A key-value cache for many rows of different lengths, written in place.

transformers' default cache concatenates at every token, which copies the whole history each time. This one owns a buffer
per layer and writes new tokens where they belong; attention reads a view of it. Each row has its own length, so nothing is
padded in the cache, and a row that ends early costs nothing later. A probe says whether a model gives the same answer with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache

from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.policies.local.cpu.tiled_attention import attend_once, attend_tiles, takes_tiles
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, evaluating

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to the largest logit; half precision: 0.1
_KNOWN_LAYERS = {"full_attention", "sliding_attention", "global"}
_SLACK = 1  # a last position per row that takes the writes of padding and is never read


class RaggedCache(Cache):
    """Keys and values of ``rows`` sequences, each in its own slot. Call :meth:`aim` before each forward.

    Buffers are (rows, heads, capacity, head size) per layer, so that one head's past is one stretch of memory (decoding
    reads it at every token, and waits for little else); they grow when they are full, to what :attr:`expected` says. The model is shown (n, heads, width, head
    size): a view if the forward's rows stand in the first ``n`` slots (:meth:`swap` brings them there), else a copy.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        # Positions a row that the answers under way may come to.
        self.expected = 0
        self.capacity = capacity + _SLACK
        # Keys and values of the first layer, of the second, ...
        self._buffers: list[Tensor] = []
        # Whose keys the coming forward reads, and how many positions of each.
        self._slots: Tensor | slice = slice(0, rows)
        self._width = 0
        # Where all rows write, if they write at the same place; else slots (n, 1) and positions (n, S).
        self._start = 0
        self._places: tuple[Tensor, Tensor] | None = None

    def aim(self, positions: Tensor, valid: Tensor | None, width: int, *, slots: Tensor | None = None) -> None:
        """Say where the coming forward writes and reads.

        Args:
            positions: (n, S) long, the position of each token in its row.
            valid: (n, S) bool, false on padding, whose keys are thrown away; None without padding.
            width: positions of each row that attention reads, from 0.
            slots: (n,) long, the slots of the rows; None for the first n.
        """
        self.reserve(width)
        self._width = width
        count = positions.shape[0]
        if slots is None:
            self._slots = slice(0, count)
            slots = torch.arange(count, device=positions.device)
        else:
            self._slots = slots
        if valid is not None:
            # Keys of padding go to the last position, which nobody reads.
            positions = torch.where(valid, positions, self.capacity - _SLACK)
        self._places = slots[:, None], positions

    def aim_together(self, rows: int, start: int, width: int) -> None:
        """As :meth:`aim`, but the first ``rows`` slots all write at ``start``, without padding."""
        self.reserve(width)
        self._width = width
        self._slots = slice(0, rows)
        self._start = start
        self._places = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (n, heads, S, head size) of one layer; return views of all that attention may read."""
        keys = self._write(2 * layer_idx, key_states)
        values = self._write(2 * layer_idx + 1, value_states)
        return keys, values

    def _write(self, number: int, states: Tensor) -> Tensor:
        _, heads, length, size = states.shape
        # Buffers are made when the first forward shows their heads and sizes.
        while len(self._buffers) <= number:
            buffer = states.new_zeros(self.rows, heads, self.capacity, size)
            self._buffers.append(buffer)
        buffer = self._buffers[number]
        if self._places is None:
            stop = self._start + length
            buffer[self._slots, :, self._start : stop] = states
        else:
            slots, positions = self._places
            buffer[slots, :, positions] = states.transpose(1, 2)
        return buffer[self._slots, :, : self._width]

    def reserve(self, width: int) -> None:
        """Make room for ``width`` positions a row."""
        if width + _SLACK <= self.capacity:
            return
        # At least a quarter more, so that a row of many turns is not copied at each; at most twice as much.
        at_least = self.capacity + self.capacity // 4
        expected = max(self.expected + _SLACK, at_least)
        growth = min(2 * self.capacity, expected)
        self.capacity = max(width + _SLACK, growth)
        for number, old in enumerate(self._buffers):
            rows, heads, filled, size = old.shape
            buffer = old.new_empty(rows, heads, self.capacity, size)
            buffer[:, :, :filled] = old
            buffer[:, :, filled:] = 0  # a weight of 0 does not hide what is not a number
            self._buffers[number] = buffer

    def swap(self, slots: Sequence[int], others: Sequence[int], width: int) -> None:
        """Exchange ``slots[i]`` and ``others[i]``, as far as ``width`` positions. No slot may stand in both lists."""
        for buffer in self._buffers:
            # Indexing by a list copies, so that the second line does not read what the first wrote.
            content = buffer[slots, :, :width]
            buffer[slots, :, :width] = buffer[others, :, :width]
            buffer[others, :, :width] = content

    def copy(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """Let slots ``targets`` begin as ``sources`` do, as far as ``width`` positions: a shared prefix, expanded."""
        for buffer in self._buffers:
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
        query = _by_row(query, rows)
        key = _by_row(key, rows)
        value = _by_row(value, rows)
        # In the last layer one token of each row asks: the others give keys and values alone.
        if source is not None:
            mask = mask[:, :, -1:]
        keys, values = self.update(key, value, layer)
        heads = query.shape[1]
        shared = keys.shape[1]
        if query.shape[2] == 1:
            query = query.reshape(rows, shared, heads // shared, -1)
            mixed = attend_once(query, keys, values, mask, scaling)
            return mixed.reshape(rows, heads, -1)
        if takes_tiles(query, shared):
            mixed = attend_tiles(query, keys, values, mask, scaling)
            return mixed.transpose(1, 2).flatten(0, 1)
        grouped = heads != shared
        # With a mask, shared heads leave a GPU's fast kernels.
        if grouped and query.device.type != "cpu":
            keys = keys.repeat_interleave(heads // shared, dim=1)
            values = values.repeat_interleave(heads // shared, dim=1)
            grouped = False
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(0, 1)

    # What transformers may ask a cache; the masks and positions are ours, so none of it decides anything.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._width, 0

    def __len__(self) -> int:
        return len(self._buffers) // 2


def _by_row(part: Tensor, rows: int) -> Tensor:
    """(H, rows x S, D) as (rows, H, S, D)."""
    heads, _, size = part.shape
    return part.view(heads, rows, -1, size).transpose(0, 1)


@frozen_record
class MaskPlan:
    """The masks that a model takes: one for full attention, one for a sliding window, or both by layer type."""

    # Tokens that a sliding window sees; None without such layers.
    window: int | None
    # The model takes masks by layer type.
    by_layer: bool
    # It can be asked for the last token's logits alone.
    keeps_last: bool
    # The name of the key-value cache among its arguments. transformers has renamed it (5.24).
    cache_name: str

    def cached(self, cache: Any) -> JsonDict:
        """Returns what a forward pass over a key-value cache takes besides ids, mask and positions."""
        arguments = {self.cache_name: cache, "use_cache": True}
        return arguments | {"logits_to_keep": 1} if self.keeps_last else arguments

    def masks(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Returns additive masks (n, 1, S, width) for queries at ``positions`` (n, S): a token sees its row up to itself."""
        keys = torch.arange(width, device=positions.device)
        queries = positions[:, None, :, None]
        visible = keys <= queries
        if self.window is None:
            return _additive(visible, dtype)
        near = keys > queries - self.window
        sliding = _additive(visible & near, dtype)
        if not self.by_layer:
            return sliding
        return {"full_attention": _additive(visible, dtype), "sliding_attention": sliding}


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    # Added once here: attention would else turn a boolean mask into numbers again in every layer.
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


def cache_plan(loaded: LoadedModel) -> MaskPlan | None:
    """Returns the masks for sampling over our own cache; None if the architecture gives other logits with it, or cannot take it."""
    plan = plan_masks(loaded.model)
    return plan if plan is not None and keeps_function(loaded, plan) else None


def plan_masks(model: Any) -> MaskPlan | None:
    """Reads from a model's config and signature which masks it takes; None if it cannot be driven with positions, masks and a cache of ours."""
    causal = causal_model(model)
    config: Any = causal.config.get_text_config(decoder=True)
    # The signature is asked and not the class: models that are new to us work if they take the same arguments.
    parameters = inspect.signature(causal.forward).parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"
    kinds: set[str] = set(getattr(config, "layer_types", None) or ())
    # GPT-Neo's local layers count their window from the end of the batch, which is another place in each row.
    all_kinds = kinds | set(getattr(config, "attention_layers", None) or ())
    takes_ours = {"input_ids", "attention_mask", "position_ids", cache_name} <= set(parameters)
    if not takes_ours or not all_kinds <= _KNOWN_LAYERS:
        return None
    # Flash and flex attention take no additive mask.
    if getattr(config, "_attn_implementation", "sdpa") not in ("sdpa", "eager"):
        return None
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    return MaskPlan(
        window=window, by_layer=bool(kinds), keeps_last="logits_to_keep" in parameters, cache_name=cache_name
    )


def keeps_function(loaded: LoadedModel, plan: MaskPlan) -> bool:
    """Says if the logits of eight tokens read at once, without a cache, are those of the same read in two pieces with one."""
    model = loaded.model
    count = model.get_input_embeddings().weight.shape[0]
    probe = [(7 * place + 3) % count for place in range(8)]
    ids = torch.tensor([probe], device=loaded.device)
    cache = RaggedCache(1, 8)

    def read(start: int, stop: int) -> Tensor:
        positions = torch.arange(start, stop, device=loaded.device)[None]
        cache.aim(positions, None, stop)
        mask = plan.masks(positions, stop, loaded.dtype)
        piece = ids[:, start:stop]
        out = model(input_ids=piece, attention_mask=mask, position_ids=positions, **plan.cached(cache))
        return out.logits[0, -1].float()

    # Without autocast: bfloat16 rounds more than a wrong mask changes in a small model.
    with evaluating(replace(loaded, autocast=False)):
        plain = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        read(0, 5)
        cached = read(5, 8)
    scale = plain.abs().max().clamp(min=1.0)
    gap = float((plain - cached).abs().max() / scale)
    return gap <= _TOLERANCE.get(loaded.dtype, 0.1)
