"""The four losses of the Tinker API, token by token. A batch's loss is their sum, as at the hosted service: a client that wants a mean
puts it into weights or advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.wire import TokenDatum

_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}  # bounds of the ratio itself
_Formula = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, float]], Tensor]


@dataclass(frozen=True, kw_only=True)
class ServedLoss:
    """What a loss needs of each datum beside ``target_tokens``, its settings with their defaults, and the formula (T,) of log-probs (T,)."""

    inputs: frozenset[str]
    settings: Mapping[str, float]
    formula: _Formula


def _ratio(logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    return (logprobs - inputs["logprobs"]).exp()


def _bounded(ratio: Tensor, settings: Mapping[str, float]) -> Tensor:
    return ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])


def _cross_entropy(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    return -logprobs


def _importance_sampling(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    return -_ratio(logprobs, inputs) * inputs["advantages"]


def _ppo(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    ratio, advantages = _ratio(logprobs, inputs), inputs["advantages"]
    return -torch.minimum(ratio * advantages, _bounded(ratio, settings) * advantages)


def _cispo(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    return -_bounded(_ratio(logprobs, inputs), settings).detach() * inputs["advantages"] * logprobs


_OF_POLICY = frozenset({"logprobs", "advantages"})
LOSSES_SERVED: Mapping[str, ServedLoss] = {
    "cross_entropy": ServedLoss(inputs=frozenset(), settings={}, formula=_cross_entropy),
    "importance_sampling": ServedLoss(inputs=_OF_POLICY, settings={}, formula=_importance_sampling),
    "ppo": ServedLoss(inputs=_OF_POLICY, settings=_CLIP, formula=_ppo),
    "cispo": ServedLoss(inputs=_OF_POLICY, settings=_CLIP, formula=_cispo),
}


def served_loss(name: str, settings: Mapping[str, float]) -> ServedLoss:
    """Returns the loss with its settings. Raises ApiError for one that is not served, and for settings without effect."""
    loss = LOSSES_SERVED.get(name)
    if loss is None:
        raise ApiError(
            f"this server has the losses {', '.join(LOSSES_SERVED)}, not {name[:40]!r}; set loss_fn to one of them"
        )
    idle = sorted(set(settings) - set(loss.settings))
    if idle:
        raise ApiError(f"loss_fn_config: {', '.join(idle)[:80]} has no effect on {name}; leave it out")
    return ServedLoss(inputs=loss.inputs, settings={**loss.settings, **settings}, formula=loss.formula)


def check_datum(loss: ServedLoss, datum: TokenDatum, vocabulary: int, context: int | None) -> None:
    """Raises ApiError if a datum lacks what the loss needs, has more than it takes, or does not fit the model."""
    length = len(datum.ids)
    if not 0 < length <= (context or length):
        raise ApiError(f"a datum has {length} tokens; this model takes 1 to {context}")
    lacking = sorted({"target_tokens", *loss.inputs} - set(datum.inputs))
    idle = sorted(set(datum.inputs) - {"target_tokens", "weights", *loss.inputs})
    if lacking or idle:
        raise ApiError(
            f"loss_fn_inputs lacks {lacking or 'nothing'} and has {idle or 'nothing'} that this loss does not read"
        )
    targets = datum.inputs["target_tokens"]
    fits = targets.dim() in (1, 2) and len(targets) == length and targets.numel() > 0
    if targets.dtype != torch.int64 or not fits:
        raise ApiError(
            f"target_tokens must be int64 of the shape ({length},) or ({length}, K), got {tuple(targets.shape)}"
        )
    for name, value in datum.inputs.items():
        if value.shape != targets.shape:
            raise ApiError(
                f"{name} has the shape {tuple(value.shape)}, target_tokens {tuple(targets.shape)}; they must be equal"
            )
    check_ids([*datum.ids, int(targets.min()), int(targets.max())], vocabulary)


def check_ids(ids: list[int], vocabulary: int) -> None:
    """Raises ApiError for ids that the vocabulary does not have."""
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise ApiError(f"token ids must be from 0 to {vocabulary - 1}, got {min(ids)} to {max(ids)}")


def weighted_losses(loss: ServedLoss, logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of each token (T,), times its weight if the datum has weights."""
    losses = loss.formula(logprobs, inputs, loss.settings)
    return losses * inputs["weights"] if "weights" in inputs else losses
