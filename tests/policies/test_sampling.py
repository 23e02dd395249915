"""The distribution that tokens are drawn from, against slow definitions of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.policies.local.sampling import (
    SamplingConfig,
    chosen_logprobs,
    draw,
    draw_tokens,
    legal_mask,
    sampling_logprobs,
    turn_uniforms,
)


def slow(logits: list[float], config: SamplingConfig, legal: list[bool]) -> list[float]:
    """Token by token, in float64: temperature, grammar, top-k, top-p."""
    scores = [x / config.temperature if ok else -math.inf for x, ok in zip(logits, legal, strict=True)]
    if config.top_k:
        edge = sorted(scores, reverse=True)[min(config.top_k, len(scores)) - 1]
        scores = [x if x >= edge else -math.inf for x in scores]
    if config.top_p < 1:
        top = max(scores)
        total = sum(math.exp(x - top) for x in scores)
        mass, kept = 0.0, set()
        for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
            if mass < config.top_p:
                kept.add(i)
            mass += math.exp(scores[i] - top) / total
        scores = [x if i in kept else -math.inf for i, x in enumerate(scores)]
    top = max(scores)
    log_total = top + math.log(sum(math.exp(x - top) for x in scores))
    return [x - log_total for x in scores]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.sampled_from([0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 4, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    banned=st.integers(0, 9),
)
def test_matches_the_definition(seed: int, temperature: float, top_k: int, top_p: float, banned: int):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=11) * 2
    legal = np.ones(11, dtype=bool)
    legal[rng.permutation(11)[:banned]] = False
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    got = sampling_logprobs(torch.tensor(logits)[None], config, torch.tensor(legal)[None])[0].tolist()
    expected = slow(logits.tolist(), config, legal.tolist())
    assert [math.isinf(x) for x in got] == [math.isinf(x) for x in expected]
    assert [x for x in got if math.isfinite(x)] == pytest.approx([x for x in expected if math.isfinite(x)], abs=1e-9)


def test_half_precision_logits_are_normalized_in_float32():
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = sampling_logprobs(logits, SamplingConfig())
    assert got.dtype == torch.float32
    assert got.exp().sum(-1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(),
        SamplingConfig(temperature=0.7),
        SamplingConfig(temperature=0.7, top_k=3),
        SamplingConfig(top_p=0.6),
    ],
)
@pytest.mark.parametrize("limited", [False, True])
def test_chosen_logprobs_are_those_of_the_whole_distribution_with_the_same_gradient(
    config: SamplingConfig, limited: bool
):
    logits = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    legal = legal_mask((0, 2, 5, 7, 8), 9).expand(6, -1) if limited else None
    ids = draw(sampling_logprobs(logits, config, legal), torch.rand(6, dtype=torch.float64))
    one, two = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    a = chosen_logprobs(one, ids, config, legal)
    b = sampling_logprobs(two, config, legal).gather(-1, ids[:, None])[:, 0]
    a.sum().backward()
    b.sum().backward()
    assert torch.allclose(a, b)
    assert torch.allclose(one.grad, two.grad)


def test_a_drawn_token_stays_in_the_support_when_it_is_recomputed():
    """Rounding may move the last token of top-k or top-p out; it was drawn all the same."""
    logits = torch.tensor([[2.0, 1.0, 1.0 - 1e-6, 0.0]])
    for config in (SamplingConfig(top_k=2), SamplingConfig(top_p=0.7)):
        assert sampling_logprobs(logits, config)[0, 2] == -math.inf
        kept = sampling_logprobs(logits, config, drawn_ids=torch.tensor([2]))
        assert math.isfinite(kept[0, 2])
        assert kept.exp().sum().item() == pytest.approx(1.0)
        assert chosen_logprobs(logits, torch.tensor([2]), config).item() == kept[0, 2].item()


def test_draw_inverts_the_cumulative_distribution():
    logprobs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0]).log()[None]
    points = {0.0: 1, 0.1999: 1, 0.2001: 3, 0.6999: 3, 0.7001: 4, 1 - 2**-53: 4}
    for uniform, expected in points.items():
        assert draw(logprobs, torch.tensor([uniform], dtype=torch.float64)).item() == expected


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_draw_never_takes_an_impossible_token(seed: int):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(size=(4, 7)) * 30, dtype=torch.float32)
    legal = torch.tensor(rng.random((4, 7)) < 0.4)
    legal[:, int(rng.integers(7))] = True
    logprobs = sampling_logprobs(logits, SamplingConfig(), legal)
    for uniform in (0.0, float(rng.random()), 1 - 2**-53):
        ids = draw(logprobs, torch.full((4,), uniform, dtype=torch.float64))
        assert legal.gather(-1, ids[:, None]).all()


@pytest.mark.parametrize("words", [2**14, 2**14 + 1, 20_000])
def test_many_words_are_drawn_in_two_steps_as_in_one(words: int):
    rng = torch.Generator().manual_seed(words)
    logits = 3 * torch.randn(40, words, generator=rng)
    logits[:, torch.rand(words, generator=rng) < 0.3] = float("-inf")
    uniforms = torch.rand(40, dtype=torch.float64, generator=rng)
    uniforms[:2] = torch.tensor([0.0, 1.0 - 2.0**-53])
    config = SamplingConfig(temperature=0.7)
    ids, logprobs = draw_tokens(logits, uniforms, config)
    whole = sampling_logprobs(logits, config)
    assert torch.isfinite(logprobs).all()
    assert (logprobs - whole.gather(1, ids[:, None])[:, 0]).abs().max() < 1e-5
    assert (ids == draw(whole, uniforms)).sum() >= 38  # where sums round differently a neighbor may be drawn


def test_uniforms_belong_to_an_episode_and_a_turn():
    assert (turn_uniforms((1, "x"), 2, 5) == turn_uniforms((1, "x"), 2, 5)).all()
    assert (turn_uniforms((1, "x"), 2, 5) == turn_uniforms((1, "x"), 2, 9)[:5]).all()
    different = [turn_uniforms(key, turn, 5) for key, turn in (((1, "x"), 3), ((1, "y"), 2), ((2, "x"), 2))]
    assert all(not np.allclose(turn_uniforms((1, "x"), 2, 5), other) for other in different)
