"""Log-probs of sampled tokens from hidden states, a chunk of tokens at a time: no logits are kept for the backward pass.

With a vocabulary of 152,000 words the logits of 2,000 tokens take 1.2 GiB in float32, and a softmax with its gradient several times
that. Here a chunk's logits are made, used and forgotten, and made again in the backward pass. A plain softmax goes over tiles of tokens
and words that stay in a processor's cache, where a pass over them costs little beside the product that makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints

from gradus.core.frozen_record import frozen_record
from gradus.policies.local.cpu.float32_linear import product
from gradus.policies.local.sampling import SamplingConfig

MAX_LOGITS = 2**24  # tokens x vocabulary that are computed at once: 64 MiB in float32
_TILES = {"cpu": (512, 1024)}  # tokens and words that are computed at once if nothing but a softmax is computed
_TILE = (2048, 8192)  # on other devices

TokenFigures = tuple[Tensor, Tensor | None, Tensor | None]  # log-probs, entropy, greedy, each (A,)


def in_chunks(
    figures: Callable[[Tensor, int], tuple[Tensor | None, ...]], states: Tensor, vocabulary: int
) -> tuple[Tensor | None, ...]:
    """``figures(states, first row)`` of all rows, so many at a time that their logits are few, and again in the backward pass."""
    size = max(1, MAX_LOGITS // vocabulary)
    if len(states) <= size:
        return figures(states, 0)
    starts = range(0, len(states), size)
    checkpoint: Callable[..., tuple[Tensor | None, ...]] = cast(Any, checkpoints).checkpoint
    parts = [checkpoint(figures, states[start : start + size], start, use_reentrant=False) for start in starts]
    return tuple(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True))


def chunked_scores(
    head: nn.Linear,
    hidden: Tensor,
    target: Tensor,
    sampling: SamplingConfig,
) -> TokenFigures:
    """Figures of tokens from the hidden states (A, d) that predict them, without top-k, top-p and grammar, with few passes over the logits.

    Log-probs with gradient; the entropy and whether the token is the likeliest one come without. The logits are computed in the
    dtype of the head (autocast's, if it is on) and summed up in float32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    numbers = _Numbers(
        temperature=sampling.temperature,
        dtype=dtype,
        bf16_backward="forward" in vars(head) and dtype == torch.float32,  # gradus.training.engine.bfloat16_backward
    )
    with torch.autocast(device, enabled=False):
        figures = cast(Any, _ChosenLogprobs).apply(hidden, head.weight, head.bias, target, numbers)
    return cast(TokenFigures, figures)


@frozen_record
class _Numbers:
    """How scores are computed: divided by ``temperature``, in ``dtype``; ``bf16_backward``: products of the gradient in bfloat16."""

    temperature: float
    dtype: torch.dtype
    bf16_backward: bool

    def scores(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """(A, W) of hidden states (A, d) and some rows of the head (W, d), in float32 at least."""
        logits = product(hidden.to(self.dtype), weight, None if bias is None else bias.to(self.dtype))
        scores = logits if logits.dtype == torch.float64 else logits.float()
        return scores if self.temperature == 1.0 else scores / self.temperature


class _ChosenLogprobs(torch.autograd.Function):
    """log_softmax(h W^T / temperature) at the target, with the logits of a tile at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        numbers: _Numbers,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.numbers = numbers
        wide = weight.to(numbers.dtype)
        rows, words = _tile(hidden.device)
        parts: list[tuple[Tensor, ...]] = []
        for row in _slices(max(1, len(hidden)), rows):
            part = hidden[row]
            sums = _SoftmaxSums(len(part), _sum_dtype(numbers), hidden.device)
            for tile in _slices(len(weight), words):
                scores = numbers.scores(part, wide[tile], _part(bias, tile))
                sums.add(scores, target[row] - tile.start)
            parts.append(sums.figures())
        logprobs, entropy, greedy, normalizer = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, bias, target, normalizer)
        ctx.mark_non_differentiable(entropy, greedy)
        return logprobs, entropy, greedy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, normalizer = ctx.saved_tensors
        numbers: _Numbers = ctx.numbers
        wide = weight.to(numbers.dtype)
        factor = weight.bfloat16() if numbers.bf16_backward else wide
        grad = grads[0].to(normalizer.dtype) / numbers.temperature
        hidden_grad, weight_grad, bias_grad = (
            torch.zeros_like(tensor, dtype=normalizer.dtype) if needed and tensor is not None else None
            for tensor, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        rows, words = _tile(hidden.device)
        for row in _slices(len(hidden), rows):
            part = hidden[row].to(factor.dtype)
            for tile in _slices(len(weight), words):
                scores = numbers.scores(hidden[row], wide[tile], _part(bias, tile))
                # In place, scores become their gradient: 1 at the target less the softmax, times the token's.
                scores.sub_(normalizer[row, None]).exp_().mul_(-grad[row, None])
                place, inside = _inside(target[row] - tile.start, scores.shape[1])
                at_target = torch.where(inside, grad[row], 0.0)
                scores.scatter_add_(1, place[:, None], at_target[:, None])
                if bias_grad is not None:
                    bias_grad[tile] += scores.sum(0)
                scores = scores.to(factor.dtype)
                if hidden_grad is not None:
                    _add_product(hidden_grad[row], scores, factor[tile])
                if weight_grad is not None:
                    _add_product(weight_grad[tile], scores.T, part)
        pairs = zip((hidden_grad, weight_grad, bias_grad), (hidden, weight, bias), strict=True)
        return *(None if gradient is None else gradient.to(like.dtype) for gradient, like in pairs), None, None


class _SoftmaxSums:
    """A softmax of rows whose scores come tile by tile: the largest score so far, and sums relative to it (arXiv 1805.02867)."""

    def __init__(
        self,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.largest = torch.full((rows,), float("-inf"), dtype=dtype, device=device)
        self.total = torch.zeros_like(self.largest)
        self.weighted = torch.zeros_like(self.largest)
        self.chosen = torch.zeros_like(self.largest)

    def add(self, scores: Tensor, place: Tensor) -> None:
        """Takes ``scores`` (A, W) in; ``place`` (A,) is where the target stands, counted from the tile's first word."""
        place, inside = _inside(place, scores.shape[1])
        self.chosen = torch.where(inside, scores.gather(1, place[:, None])[:, 0], self.chosen)
        largest = torch.maximum(self.largest, scores.amax(1))
        mass = (scores - largest[:, None]).exp_()
        shrink = (self.largest - largest).exp_()  # of sums that were relative to a smaller number
        self.total = self.total * shrink + mass.sum(1)
        self.weighted = self.weighted * shrink + mass.mul_(scores).sum(1)
        self.largest = largest

    def figures(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probs of the targets, entropy, whether the target is the likeliest, and the softmax's normalizer."""
        normalizer = self.largest + self.total.log()
        entropy = normalizer - self.weighted / self.total
        return self.chosen - normalizer, entropy, self.chosen >= self.largest, normalizer


def _sum_dtype(numbers: _Numbers) -> torch.dtype:
    return torch.float64 if numbers.dtype == torch.float64 else torch.float32


def _tile(device: torch.device) -> tuple[int, int]:
    return _TILES.get(device.type, _TILE)


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, start + size)


def _part(bias: Tensor | None, tile: slice) -> Tensor | None:
    return None if bias is None else bias[tile]


def _inside(place: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Places that an index may have, and whether they were in the tile."""
    return place.clamp(0, words - 1), (place >= 0) & (place < words)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; in place if the dtypes are one."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
