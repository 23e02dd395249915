"""Log-probs of what a sample learns or reads, again by the model's own forward pass over one whole sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.forward import vocabulary_size

_NUMBERS = 2**27  # of the logits of a pass
_NEVER = -1e30  # the score of a word that cannot be drawn; of -inf times a chance of 0 the entropy would be NaN
STRIDE = 31  # from the sample of one step to that of the next


def beginning(loaded: LoadedModel, sample: TrainingSample) -> TrainingSample:
    """The first tokens of a sample, as many as have logits of 2**27 numbers."""
    tokens = _NUMBERS // vocabulary_size(loaded.model)
    return replace(sample.only(sample.positions < tokens), ids=sample.ids[:tokens])


def plain_logprobs(loaded: LoadedModel, sampling: SamplingConfig, sample: TrainingSample) -> Tensor:
    """(A,) log-probs of what a sample learns, by a plain pass."""
    scores = plain_scores(loaded, sampling, sample)
    return scores.gather(1, sample.learned_ids[:, None].to(scores.device))[:, 0]


def read_logprobs(loaded: LoadedModel, sample: TrainingSample) -> Tensor:
    """(R,) log-probs of the tokens that the environment showed between the trained ones, under the model itself."""
    return plain_logprobs(loaded, SamplingConfig(), replace(sample, positions=sample.shown, legal=None, targets=None))


def plain_scores(loaded: LoadedModel, sampling: SamplingConfig, sample: TrainingSample) -> Tensor:
    """(A, V) log-probs of the distribution that each trained token was drawn from: no cache, no padding, a batch of one."""
    call: Any = loaded.model
    with torch.autocast(loaded.device.type, dtype=torch.bfloat16, enabled=bool(loaded.autocast)):
        logits = call(input_ids=sample.ids[None].to(loaded.device), use_cache=False).logits[0]
    # A token is predicted from the place before it.
    scores = logits[sample.positions.to(loaded.device) - 1].float() / sampling.temperature
    if sample.legal is not None:
        barred = torch.ones_like(scores, dtype=torch.bool)
        for row, words in enumerate(sample.legal):
            barred[row, slice(None) if words is None else list(words)] = False
        scores = scores.masked_fill(barred, _NEVER)
    if sampling.truncates:
        truncated = _truncated(scores, sampling, sample.learned_ids.to(loaded.device))
        scores = scores.masked_fill(truncated, _NEVER)
    return scores.log_softmax(-1)


def _truncated(scores: Tensor, sampling: SamplingConfig, drawn: Tensor) -> Tensor:
    """(A, V) bool: behind the likeliest ``top_k``, or behind those that hold ``top_p`` of their mass; what was drawn is not."""
    order = scores.argsort(-1, descending=True)
    ranked = scores.gather(-1, order)
    ranks = torch.arange(scores.shape[-1], device=scores.device)
    beyond = ranks >= (sampling.top_k or scores.shape[-1])
    mass = ranked.masked_fill(beyond, _NEVER).softmax(-1)
    beyond = beyond | (mass.cumsum(-1) - mass >= sampling.top_p)
    truncated = torch.zeros_like(beyond).scatter(-1, order, beyond)
    # Rounding at the edge of top_p must not make a token that was drawn impossible.
    return truncated.scatter(-1, drawn[:, None], False)
