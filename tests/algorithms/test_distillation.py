"""Divergences against their definitions, a tiny case that can be solved by hand, and TRL."""

import math

import pytest
import torch
from torch import Tensor

from gradus.algorithms.distillation import DivergenceName, find_divergence, on_named_words

NAMES: tuple[DivergenceName, ...] = ("forward", "reverse", "jsd")


def logprobs(rows: int, words: int, seed: int) -> Tensor:
    return torch.randn(rows, words, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).log_softmax(1)


@pytest.mark.parametrize("name", NAMES)
def test_definitions(name: DivergenceName) -> None:
    p, q, beta = logprobs(5, 7, 0), logprobs(5, 7, 1), 0.3
    mixture = (beta * q.exp() + (1 - beta) * p.exp()).log()

    def kl(left: Tensor, right: Tensor) -> Tensor:
        return (left.exp() * (left - right)).sum(1)

    expected = {"forward": kl(q, p), "reverse": kl(p, q), "jsd": beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)}
    torch.testing.assert_close(find_divergence(name, beta)(p, q), expected[name])
    assert float(find_divergence(name, beta)(q, q).abs().max()) < 1e-12


def test_the_ends_of_the_mixture_are_forward_and_reverse() -> None:
    p, q = logprobs(4, 6, 2), logprobs(4, 6, 3)
    ends: tuple[tuple[float, DivergenceName], ...] = ((1e-6, "forward"), (1 - 1e-6, "reverse"))
    for beta, name in ends:
        share = beta if name == "forward" else 1 - beta
        near = find_divergence("jsd", beta)(p, q) / share
        torch.testing.assert_close(near, find_divergence(name)(p, q), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_words_that_are_named_and_all_others(name: DivergenceName) -> None:
    """With K words the rest is one word on both sides; with all words nothing changes. What is never said is finite, but for reverse."""
    p, q = logprobs(4, 6, 4), logprobs(4, 6, 5)
    divergence = find_divergence(name, 0.4)
    likely = q.topk(2, dim=1)
    ids, chances = likely.indices, likely.values.exp()

    def folded(values: Tensor) -> Tensor:
        named = values.gather(1, ids).exp()
        return torch.cat([named, 1 - named.sum(1, keepdim=True)], 1).log()

    torch.testing.assert_close(on_named_words(divergence, p, ids, chances), divergence(folded(p), folded(q)))
    everything = torch.arange(6).expand(4, 6)
    torch.testing.assert_close(on_named_words(divergence, p, everything, q.exp()), divergence(p, q))
    only = torch.tensor([[0, 1, 0]]).expand(4, 3)  # the third place is padding
    sure = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).expand(4, 3)
    student = p.clone().requires_grad_()
    values = on_named_words(divergence, student, only, sure)
    if name == "reverse":
        assert values.isinf().all()
        return
    values.sum().backward()
    assert values.isfinite().all()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_a_teacher_that_names_all_it_says_is_compared_on_the_full_vocabulary(beta: float) -> None:
    """Enumerated over 9 words, of which the teacher says 2. It was 8.31 nats for a student far from it, of log 2 that are possible."""
    p = logprobs(4, 9, 6)
    p[0] = torch.tensor([-18.0, -19.0, *[0.0] * 7], dtype=torch.float64).log_softmax(0)
    ids = torch.tensor([[3, 1, 0]]).expand(4, 3)  # the last place is padding
    q = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).expand(4, 3)
    full = torch.zeros(4, 9, dtype=torch.float64)
    full[:, [3, 1]] = q[:, :2]
    mixture = beta * full + (1 - beta) * p.exp()
    said = full > 0
    from_teacher = torch.where(said, full * (full / mixture).log(), 0.0).sum(1)
    from_student = (p.exp() * (p - mixture.log())).sum(1)
    expected = beta * from_teacher + (1 - beta) * from_student
    measured = on_named_words(find_divergence("jsd", beta), p, ids, q)
    torch.testing.assert_close(measured, expected)
    assert float(measured.max()) <= -(beta * math.log(beta) + (1 - beta) * math.log(1 - beta))
    forward = torch.where(said, full * (full.log() - p), 0.0).sum(1)
    torch.testing.assert_close(on_named_words(find_divergence("forward"), p, ids, q), forward)
    assert on_named_words(find_divergence("reverse"), p, ids, q).isinf().all()


@pytest.mark.parametrize("tail", [1e-3, 1e-6, 1e-9])
def test_the_pull_on_words_that_are_not_named_is_their_mass(tail: float) -> None:
    """Forward KL pulls on the logits of a rest with p_o - q_o; at 1e-6 it was 0.040 of 0.100."""
    ids, q = torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.4]], dtype=torch.float64)
    logits = torch.tensor([[0.6, 0.4, tail / 2, tail / 2]]).log().requires_grad_()
    on_named_words(find_divergence("forward"), logits.log_softmax(1), ids, q).sum().backward()
    assert float(logits.grad[0, 2:].sum()) == pytest.approx(-0.1, rel=2e-3, abs=tail)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_loss_and_gradient_are_trls(name: DivergenceName, temperature: float) -> None:
    """On hidden states and heads, with a mask, as TRL's DistillationTrainer calls its loss."""
    trainer = pytest.importorskip("trl.trainer.distillation_trainer")
    generator = torch.Generator().manual_seed(0)
    beta = {"forward": 0.0, "reverse": 1.0, "jsd": 0.3}[name]
    ours, theirs = (torch.randn(2, 5, 8, generator=generator).requires_grad_() for _ in range(2))
    theirs.data.copy_(ours.data)
    taught, head, teaching = (torch.randn(*shape, generator=generator) for shape in ((2, 5, 12), (31, 8), (31, 12)))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    loss, _, count = trainer._chunked_divergence_loss(
        theirs, taught, head, teaching, mask, beta, temperature=temperature
    )
    loss.backward()
    assert int(count) == 8
    student = (ours[mask.bool()] @ head.T / temperature).log_softmax(-1)
    teacher = (taught[mask.bool()] @ teaching.T / temperature).log_softmax(-1)
    own = find_divergence(name, 0.3)(student, teacher).mean()
    own.backward()
    torch.testing.assert_close(own, loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_minimizer_is_the_teacher(name: DivergenceName) -> None:
    """Three answers of two tokens, (0 0), (0 1) and (1 1) with P = 0.2, 0.5, 0.3: a table of logits ends at P."""
    P = {(0, 0): 0.2, (0, 1): 0.5, (1, 1): 0.3}
    first = torch.tensor([[0.7, 0.3]], dtype=torch.float64).log()
    second = torch.tensor([[2 / 7, 5 / 7], [1e-9, 1 - 1e-9]], dtype=torch.float64).log()  # behind 0 and behind 1
    tables = [torch.zeros(rows, 2, dtype=torch.float64, requires_grad=True) for rows in (1, 2)]
    optimizer = torch.optim.LBFGS(tables, max_iter=200, line_search_fn="strong_wolfe")
    divergence = find_divergence(name)

    def loss() -> Tensor:
        optimizer.zero_grad()
        one, two = (table.log_softmax(1) for table in tables)
        value = divergence(one, first).sum() + divergence(two, second).sum()
        value.backward()
        return value

    for _ in range(5):
        optimizer.step(loss)
    one, two = (table.detach().softmax(1) for table in tables)
    for (left, right), probability in P.items():
        assert math.isclose(float(one[0, left] * two[left, right]), probability, abs_tol=1e-4)
