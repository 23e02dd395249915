"""KL estimators against the exact divergence, mismatch corrections, entropy."""

import math

import pytest
import torch

from gradus.algorithms import CORRECTIONS, KL_ESTIMATORS, entropy, kl_terms

V = 6


@pytest.fixture
def tables() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of policy, reference and sampler over V tokens."""
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(V, generator=generator, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum()


def expected_gradient(
    policy: torch.Tensor, reference: torch.Tensor, sampler: torch.Tensor | None, kind: str
) -> tuple[float, torch.Tensor]:
    """The expectation over the token, enumerated, of the loss and of its gradient."""
    own = policy.clone().requires_grad_()
    drawn_from = policy if sampler is None else sampler
    total = torch.zeros((), dtype=torch.float64)
    for token, chance in enumerate(drawn_from.softmax(-1).tolist()):
        p, r, s = (x.log_softmax(-1)[token].reshape(1, 1) for x in (own, reference, drawn_from))
        given = None if sampler is None else s
        terms = kl_terms(p, r, kind=kind, sampler_logprobs=given)  # type: ignore[arg-type]
        total = total + chance * terms.sum()
    return total.item(), torch.autograd.grad(total, own)[0]


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("off_policy", [False, True])
def test_the_kl_loss_and_its_gradient_are_those_of_the_divergence(tables, kind: str, off_policy: bool):
    policy, reference, sampler = tables
    own = policy.clone().requires_grad_()
    exact = divergence(own, reference)
    value, got = expected_gradient(policy, reference, sampler if off_policy else None, kind)
    assert value == pytest.approx(exact.item()) or kind == "k2"
    assert torch.allclose(got, torch.autograd.grad(exact, own)[0], rtol=1e-9, atol=1e-12)


def sine(left: torch.Tensor, right: torch.Tensor) -> float:
    cosine = torch.nn.functional.cosine_similarity(left, right, dim=0)
    return math.sqrt(max(0.0, 1.0 - float(cosine) ** 2))


def test_where_the_estimates_point_without_the_ratio():
    """The figures of docs/training.md: enumerated over six words, the mean of 200 pairs of policy and reference."""
    sines: dict[str, list[float]] = {name: [] for name in KL_ESTIMATORS}
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        policy, reference = (torch.randn(V, generator=generator, dtype=torch.float64) for _ in range(2))
        own = policy.clone().requires_grad_()
        (exact,) = torch.autograd.grad(divergence(own, reference), own)
        for name, estimate in KL_ESTIMATORS.items():
            terms = estimate(own.log_softmax(-1) - reference.log_softmax(-1))
            (gradient,) = torch.autograd.grad((policy.softmax(-1) * terms).sum(), own)
            sines[name].append(sine(gradient, exact))
    assert max(sines["k2"]) < 1e-6
    assert sum(sines["k3"]) / 200 == pytest.approx(0.436, abs=0.0005)


def test_corrections():
    trainer = torch.log(torch.tensor([[0.1, 0.9, 0.5, 0.2, 0.3]])).requires_grad_()
    sampler = torch.log(torch.tensor([[0.3, 0.3, 0.4, 0.2, 0.001]]))
    mask = torch.tensor([[True, True, True, True, False]])
    capped, metrics = CORRECTIONS["truncate"](trainer, sampler, mask)
    assert capped[0].tolist() == pytest.approx([1 / 3, 2.0, 1.25, 1.0, 1.0])
    assert not capped.requires_grad
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
        {
            "mismatch_fraction": 0.25,
            "mismatch_ratio_max": 3.0,
            "mismatch_kl": sum(r - 1 - math.log(r) for r in (1 / 3, 3, 1.25, 1)) / 4,
        }
    )
    kept, metrics = CORRECTIONS["mask"](trainer, sampler, mask)
    assert kept[0].tolist() == pytest.approx([0.0, 0.0, 1.25, 1.0, 1.0])
    assert float(metrics["mismatch_fraction"]) == 0.5
    for correct in CORRECTIONS.values():
        _, nothing = correct(trainer, sampler, torch.zeros_like(mask))
        assert set(map(float, nothing.values())) == {0.0}


@pytest.mark.parametrize(("mode", "capped"), [("sequence_truncate", 3.0), ("sequence_mask", 0.0)])
def test_a_correction_of_sequences_is_trls_formula(mode: str, capped: float):
    """TRL 1.16: exp of the sum of differences over a completion, clipped at 3 from above, or 0 beyond it."""
    rng = torch.Generator().manual_seed(0)
    trainer, sampler = (torch.randn(6, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(6, 5, generator=rng) < 0.7
    mask[:, 0] = True
    ratio = ((trainer - sampler) * mask).sum(-1, keepdim=True).exp()
    assert 0 < int((ratio > 3).sum()) < 6
    expected = torch.where(ratio > 3, capped, ratio).expand_as(mask)
    rows, _ = CORRECTIONS[mode](trainer, sampler, mask)
    assert torch.allclose(rows[mask], expected[mask], atol=1e-12)
    names = torch.arange(6)[:, None].expand_as(mask)
    packed, _ = CORRECTIONS[mode](
        *(each.reshape(1, -1) for each in (trainer, sampler, mask)), sequences=names.reshape(1, -1)
    )
    assert torch.equal(packed.reshape(6, 5)[mask], rows[mask])


def test_entropy_counts_impossible_tokens_as_zero_and_stays_differentiable():
    logits = torch.tensor([[0.0, 0.0, float("-inf")], [1.0, 2.0, 3.0]], dtype=torch.float64)
    got = entropy(logits.log_softmax(-1))
    assert got[0] == pytest.approx(math.log(2))
    assert got[1] == pytest.approx(float(torch.distributions.Categorical(logits=logits[1]).entropy()))
    own = torch.tensor([[0.3, 0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    entropy(own.masked_fill(torch.tensor([[False, False, True]]), float("-inf")).log_softmax(-1)).sum().backward()
    assert torch.isfinite(own.grad).all()
    assert own.grad[0, 2] == 0


def test_k1_as_a_loss_would_do_nothing_and_is_refused(tables):
    policy, reference, _ = tables
    own = policy.clone().requires_grad_()
    gap = own.log_softmax(-1) - reference.log_softmax(-1)
    assert torch.autograd.grad((policy.softmax(-1) * KL_ESTIMATORS["k1"](gap)).sum(), own)[0].abs().max() < 1e-12
    with pytest.raises(ValueError, match="k2 or k3 as a loss, got 'k1'"):
        kl_terms(gap, gap, kind="k1")  # type: ignore[arg-type]
