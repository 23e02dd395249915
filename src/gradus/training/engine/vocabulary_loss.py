"""Log-probs of sampled tokens from hidden states, a chunk of tokens at a time: no logits are kept for the backward pass.

With a vocabulary of 152,000 words the logits of 2,000 tokens take 1.2 GiB in float32, and a softmax with its gradient several times
that. Here a chunk's logits are made, used and forgotten, and made again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradus.policies.local.sampling import SamplingConfig

__all__ = ["MAX_LOGITS", "TokenFigures", "chunked_figures", "chunked_scores"]

MAX_LOGITS = 2**24  # tokens x vocabulary that are computed at once: 64 MiB in float32

TokenFigures = tuple[Tensor, Tensor | None, Tensor | None]  # log-probs, entropy, greedy, each (A,)


def chunked_figures(
    head: nn.Module,
    hidden: Tensor,
    target: Tensor,
    legal: Tensor | None,
    figures: Callable[[Tensor, Tensor, Tensor | None], TokenFigures],
) -> TokenFigures:
    """``figures(logits, target, legal)`` of hidden states (A, d), chunk by chunk, with logits computed again in the backward pass."""

    def of_chunk(part: Tensor, start: int) -> TokenFigures:
        rows = slice(start, start + len(part))
        return figures(head(part), target[rows], None if legal is None else legal[rows])

    size = _chunk_rows(head)
    parts = [
        checkpoint(of_chunk, hidden[start : start + size], start, use_reentrant=False)
        for start in range(0, len(hidden), size)
    ]
    logprobs, entropy, greedy = zip(*parts, strict=True)
    return tuple(None if column[0] is None else torch.cat(column) for column in (logprobs, entropy, greedy))  # type: ignore[return-value]


def chunked_scores(head: nn.Linear, hidden: Tensor, target: Tensor, sampling: SamplingConfig) -> TokenFigures:
    """As :func:`chunked_figures` without top-k, top-p and grammar, with few passes over the logits.

    Log-probs with gradient; the entropy and whether the token is the likeliest one come without. The logits are computed in the
    dtype of the head (autocast's, if it is on) and summed up in float32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    bf16_backward = "forward" in vars(head) and dtype == torch.float32  # gradus.training.engine.bfloat16_backward
    with torch.autocast(device, enabled=False):
        logprobs, entropy, greedy = _ChosenLogprobs.apply(
            hidden, head.weight, head.bias, target, sampling.temperature, dtype, bf16_backward
        )
    return logprobs, entropy, greedy


def _chunk_rows(head: nn.Module) -> int:
    weight: Any = head.weight
    return max(1, MAX_LOGITS // weight.shape[0])


class _ChosenLogprobs(torch.autograd.Function):
    """log_softmax(h W^T / temperature) at the target, with the logits of a chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        dtype: torch.dtype,
        bf16_backward: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.temperature, ctx.dtype, ctx.bf16_backward = temperature, dtype, bf16_backward
        size = max(1, MAX_LOGITS // weight.shape[0])
        wide = weight.to(dtype)
        parts: list[tuple[Tensor, ...]] = []
        for start in range(0, len(hidden), size):
            scores = _scores(hidden[start : start + size], wide, bias, temperature, dtype)
            chosen = scores.gather(1, target[start : start + size, None])[:, 0]
            largest = scores.amax(1)
            mass = (scores - largest[:, None]).exp_()
            total = mass.sum(1)
            normalizer = largest + total.log()
            mean = torch.bmm(mass[:, None], scores[:, :, None])[:, 0, 0] / total
            parts.append((chosen - normalizer, normalizer - mean, chosen >= largest, normalizer))
        logprobs, entropy, greedy, normalizer = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, bias, target, normalizer)
        ctx.mark_non_differentiable(entropy, greedy)
        return logprobs, entropy, greedy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, normalizer = ctx.saved_tensors
        size = max(1, MAX_LOGITS // weight.shape[0])
        wide = weight.to(ctx.dtype)
        factor = weight.bfloat16() if ctx.bf16_backward else wide
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        bias_grad = None
        if bias is not None and ctx.needs_input_grad[2]:
            bias_grad = torch.zeros_like(bias, dtype=torch.float32)
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            scores = _scores(hidden[rows], wide, bias, ctx.temperature, ctx.dtype)
            grad = grads[0][rows, None].to(scores.dtype) / ctx.temperature
            scores = scores.sub_(normalizer[rows, None]).exp_().mul_(-grad)  # of the logits
            scores.scatter_add_(1, target[rows, None], grad)
            if bias_grad is not None:
                bias_grad += scores.sum(0)
            score_grad = scores.to(factor.dtype)
            if hidden_grad is not None:
                hidden_grad[rows] = (score_grad @ factor).to(hidden.dtype)
            if weight_grad is not None:
                _add_product(weight_grad, score_grad.T, hidden[rows].to(factor.dtype))
        weight_out = None if weight_grad is None else weight_grad.to(weight.dtype)
        bias_out = None if bias is None or bias_grad is None else bias_grad.to(bias.dtype)
        return hidden_grad, weight_out, bias_out, None, None, None, None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = F.linear(hidden.to(dtype), weight, None if bias is None else bias.to(dtype))
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return scores if temperature == 1.0 else scores / temperature


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right; in place where the dtypes are one."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
