"""The four losses of the Tinker API, token by token. A batch's loss is their sum, as at the hosted service: a client that wants a mean
puts it into weights or advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradus.core.frozen_record import frozen_record
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.wire import TokenDatum

LOSSES_SERVED = ("cross_entropy", "importance_sampling", "ppo", "cispo")
_CLIPPED = ("ppo", "cispo")
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}  # bounds of the ratio itself


@frozen_record
class ServedLoss:
    """A loss by its name."""

    name: str
    # Bounds of the ratio, if the loss has some.
    clip: tuple[float, float]

    @property
    def inputs(self) -> set[str]:
        """The names of what each datum must have beside ``target_tokens``."""
        return set() if self.name == "cross_entropy" else {"logprobs", "advantages"}

    def of_tokens(self, logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of each token (T,) of its log-prob (T,), times its weight if the datum has weights."""
        worth = logprobs
        if self.inputs:
            ratio = (logprobs - inputs["logprobs"]).exp()
            advantages = inputs["advantages"]
            bounded = ratio.clamp(*self.clip)
            if self.name == "importance_sampling":
                worth = ratio * advantages
            elif self.name == "ppo":
                worth = torch.minimum(ratio * advantages, bounded * advantages)
            else:  # cispo, arXiv 2506.13585: the ratio is a weight, and the gradient passes the log-prob alone
                worth = bounded.detach() * advantages * logprobs
        return -worth * inputs["weights"] if "weights" in inputs else -worth


def served_loss(name: str, settings: Mapping[str, float]) -> ServedLoss:
    """Returns the loss with its settings. Raises ApiError for one that is not served, and for settings without effect."""
    if name not in LOSSES_SERVED:
        raise ApiError(
            f"this server has the losses {', '.join(LOSSES_SERVED)}, not {name[:40]!r}; set loss_fn to one of them"
        )
    settable = _CLIP if name in _CLIPPED else ()
    idle = sorted(set(settings).difference(settable))
    if idle:
        raise ApiError(f"loss_fn_config: {', '.join(idle)[:80]} has no effect on {name}; leave it out")
    low, high = ({**_CLIP, **settings}[bound] for bound in _CLIP)
    if low > high:
        raise ApiError(f"loss_fn_config: clip_low_threshold is at most clip_high_threshold, got {low:g} and {high:g}")
    return ServedLoss(name=name, clip=(low, high))


def check_datum(loss: ServedLoss, datum: TokenDatum, vocabulary: int, context: int | None) -> None:
    """Raises ApiError if a datum lacks what the loss needs, has more than it takes, or does not fit the model."""
    length = len(datum.ids)
    if not 0 < length <= (context or length):
        raise ApiError(f"a datum has {length} tokens; this model takes 1 to {context}")
    needed = {"target_tokens", *loss.inputs}
    if not needed <= set(datum.inputs) <= {*needed, "weights"}:
        raise ApiError(f"{loss.name} takes {sorted(needed)}, and weights if wanted; got {sorted(datum.inputs)}"[:300])
    targets = datum.inputs["target_tokens"]
    fits = targets.dim() in (1, 2) and len(targets) == length and targets.numel() > 0
    if targets.dtype != torch.int64 or not fits:
        raise ApiError(
            f"target_tokens must be int64 of the shape ({length},) or ({length}, K), got {tuple(targets.shape)}"
        )
    if any(value.shape != targets.shape for value in datum.inputs.values()):
        raise ApiError(f"all loss_fn_inputs must have the shape of target_tokens, {tuple(targets.shape)}")
    check_ids([*datum.ids, int(targets.min()), int(targets.max())], vocabulary)


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raises ApiError for ids that the vocabulary does not have."""
    low = min(ids)
    high = max(ids)
    if low < 0 or high >= vocabulary:
        raise ApiError(f"token ids must be from 0 to {vocabulary - 1}, got {low} to {high}")
