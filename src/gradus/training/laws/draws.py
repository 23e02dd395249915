"""Sampled tokens, again by the model's own forward pass over one whole sequence: their log-probs, and whether their random numbers point at them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core import EnvironmentSpec, Episode, child_seed
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups, Samples, TrainingSample, ints
from gradus.training.engine.forward import vocabulary_size
from gradus.training.laws.credit import group_members
from gradus.training.laws.runner import LawRunner, Pair, Pairs

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
    shown = sample.ids[:0] if sample.read is None else sample.read[sample.read < sample.positions.max()]
    return plain_logprobs(loaded, SamplingConfig(), replace(sample, positions=shown, legal=None, targets=None))


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


@torch.no_grad()
def check_draws(
    laws: LawRunner,
    loaded: LoadedModel,
    config: GrpoConfig,
    spec: EnvironmentSpec,
    groups: Groups,
    samples: Samples,
) -> None:
    """Holds the log-probs and the random numbers of one sample of a step, another one at each, to a plain pass. Raises LawBroken."""
    exact = loaded.dtype == torch.float32 and not loaded.autocast and not config.quantize
    if not samples:
        return
    started = time.perf_counter()
    sample = beginning(loaded, samples[(laws.step - 1) * STRIDE % len(samples)])
    scores = plain_scores(loaded, config.sampling, sample).double().cpu()
    laws.seconds += time.perf_counter() - started
    if not sample.actions:
        laws.not_measured["draws"] = "an answer behind a shorter prompt"
        return
    laws.check("sampler", logprobs_again, scores, sample, 5e-4 if exact else 0.5)
    # Calls of agents of somebody else come in any order: their numbers are drawn by the content of what is read.
    if not spec.stepping.by_content and not spec.foreign:
        episode = group_members(groups)[sample.episode].episode
        laws.check("draws", numbers_again, groups, config.dynamic_sampling)
        laws.check("draws", drawn_again, scores.exp(), config, episode, sample, laws.step, 1e-3 if exact else 0.1)


def logprobs_again(scores: Tensor, sample: TrainingSample, rounding: float) -> Pairs:
    """The log-probs of the sampled tokens; ``scores`` (A, V)."""
    distance = (scores.gather(1, sample.learned_ids[:, None])[:, 0] - sample.logprobs).abs().mean()
    place = f"the mean difference of log-probs of a sample of group {sample.key[0]}"
    yield Pair(float(distance), 0.0, place, rounding)


def numbers_again(groups: Groups, rounds: int) -> Pairs:
    """Random numbers are keyed by group and member, so each member of a step has a pair of its own, which is its place."""
    for number, group in enumerate(groups):
        first = group.episodes[0].group if rounds else number
        actual = [(episode.group, episode.member) for episode in group.episodes]
        agreeing = sum(pair == (first, member) for member, pair in enumerate(actual))
        place = f"members of group {number} whose numbers of group and member, which key their random numbers, are their own"
        yield Pair(agreeing, len(actual), place)


def drawn_again(
    chances: Tensor, config: GrpoConfig, episode: Episode, sample: TrainingSample, step: int, rounding: float
) -> Pairs:
    """The random number of each token, a function of its step, group, member and turn alone, lies within the token's share of the distribution."""
    rows = torch.arange(len(chances))
    above = chances.cumsum(-1)[rows, sample.learned_ids]
    below = above - chances[rows, sample.learned_ids]
    distances: list[Tensor] = []
    # An episode does not say in which round of dynamic sampling it was rolled out: one of them must fit.
    for attempt in range(config.dynamic_sampling + 1):
        key = ("step", step, attempt, episode.group, episode.member)
        numbers: dict[int, list[float]] = {}
        for turn in set(ints(sample.turns)):
            rng = np.random.default_rng(child_seed(config.seed, *key, turn))
            numbers[turn] = rng.random(config.sampling.max_new_tokens).tolist()
        places = zip(ints(sample.turns), ints(sample.offsets), strict=True)
        points = torch.tensor([numbers[turn][offset] for turn, offset in places], dtype=torch.float64)
        distances.append(torch.maximum(below - points, points - above))
    distance = min(distances, key=lambda values: float(values.max()))
    worst = int(distance.argmax())
    token = f"turn {int(sample.turns[worst])}, token {int(sample.offsets[worst])}"
    place = f"group {episode.group}, member {episode.member}, {token}"
    outside = f"{place}: how far its random number lies outside of the token's share"
    yield Pair(max(0.0, float(distance[worst])), 0.0, outside, rounding)
