"""A key-value cache for many rows of different lengths, written in place.

transformers' default cache concatenates at every token, which copies the whole history each time. This one owns a buffer
per layer and writes new tokens where they belong; attention reads a view of it. Each row has its own length, so nothing is
padded in the cache, and a row that ends early costs nothing later. Whether a model gives the same answer with it is tried.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache

from gradus.policies.local.cpu.tiled_attention import attend_once, attend_tiles, takes_tiles
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
            valid: (n, S) bool, false on padding, whose keys are thrown away; None without padding.
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
        # With a mask, shared heads leave a GPU's fast kernels.
        if heads != shared and query.device.type != "cpu":
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


@dataclass(frozen=True, kw_only=True)
class MaskPlan:
    """The masks that a model wants: one for full attention, one for a sliding window, or both by layer type.

    ``cache_name``: what its forward calls the key-value cache. transformers has renamed it (5.24).
    """

    window: int | None
    by_layer: bool
    keeps_last: bool
    cache_name: str

    def cached(self, cache: Any) -> dict[str, Any]:
        """Returns what a forward pass over a key-value cache takes besides ids, mask and positions."""
        return {self.cache_name: cache, "use_cache": True, **({"logits_to_keep": 1} if self.keeps_last else {})}

    def masks(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Returns additive masks (n, 1, S, width) for queries at ``positions`` (n, S): a token sees its row up to itself."""
        keys = torch.arange(width, device=positions.device)
        own = positions[:, None, :, None]
        full = keys <= own
        if self.window is None:
            return _additive(full, dtype)
        sliding = _additive(full & (keys > own - self.window), dtype)
        return {"full_attention": _additive(full, dtype), "sliding_attention": sliding} if self.by_layer else sliding


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    # Added once here: attention would else turn a boolean mask into numbers again in every layer.
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def plan_masks(model: Any) -> MaskPlan | None:
    """Reads from a model's config and signature how it wants masks; None if it cannot be driven with positions, masks and a cache of ours."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config(decoder=True)
    taken = inspect.signature(base.forward).parameters
    cache_name = "cache" if "cache" in taken else "past_key_values"
    kinds = set(getattr(config, "layer_types", None) or ())
    # GPT-Neo's local layers count their window from the end of the batch, which is another place in each row.
    own = kinds | set(getattr(config, "attention_layers", None) or ())
    if not {"input_ids", "attention_mask", "position_ids", cache_name} <= set(taken) or own - _KNOWN_LAYERS:
        return None
    if getattr(config, "_attn_implementation", "sdpa") not in ("sdpa", "eager"):
        return None
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    return MaskPlan(window=window, by_layer=bool(kinds), keeps_last="logits_to_keep" in taken, cache_name=cache_name)


def cache_plan(loaded: LoadedModel) -> MaskPlan | None:
    """Returns the masks for sampling over our own cache; None if the architecture gives other logits with it, or cannot take it."""
    plan = plan_masks(loaded.model)
    return plan if plan is not None and keeps_function(loaded, plan) else None


def keeps_function(loaded: LoadedModel, plan: MaskPlan) -> bool:
    """Says if the logits of eight tokens read at once, without a cache, are those of the same read in two pieces with one."""
    count = loaded.model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[(7 * i + 3) % count for i in range(8)]], device=loaded.device)
    with evaluating(replace(loaded, autocast=False)):
        plain = loaded.model(input_ids=ids, use_cache=False).logits[0, -1].float()
        cache = RaggedCache(1, 8)
        for start, stop in ((0, 5), (5, 8)):
            positions = torch.arange(start, stop, device=loaded.device)[None]
            cache.aim(positions, None, stop)
            cached = loaded.model(
                input_ids=ids[:, start:stop],
                attention_mask=plan.masks(positions, stop, loaded.dtype),
                position_ids=positions,
                **plan.cached(cache),
            ).logits[0, -1].float()  # fmt: skip
    gap = float((plain - cached).abs().max() / plain.abs().max().clamp(min=1.0))
    return gap <= _TOLERANCE.get(loaded.dtype, 0.1)
