"""Every loss against a slow reference in float64, written from its formula with loops; and what must hold of all."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradus.algorithms import LOSSES, combine_metrics

LOW, HIGH, BUDGET = 0.2, 0.28, 40.0


def batch(seed: int, rows: int = 5, width: int = 9, off: float = 0.4) -> dict[str, torch.Tensor]:
    """Log-probs that moved since they were sampled, so that clips act; masks of different lengths, with holes."""
    rng = np.random.default_rng(seed)
    sampler = -rng.random((rows, width)) * 3
    mask = rng.random((rows, width)) < 0.6
    mask[:, 0] = True
    return {
        "logprobs": torch.tensor(sampler + rng.normal(size=(rows, width)) * off),
        "sampler_logprobs": torch.tensor(sampler),
        "advantages": torch.tensor(rng.normal(size=(rows, width))),
        "mask": torch.tensor(mask),
    }


Row = tuple[list[float], list[float], list[float]]


def rows_of(data: dict[str, torch.Tensor]) -> list[Row]:
    """Per row its action tokens' log-probs, sampler log-probs and advantages."""
    names = ("logprobs", "sampler_logprobs", "advantages")
    return [tuple(data[n][i][data["mask"][i]].tolist() for n in names) for i in range(len(data["mask"]))]  # type: ignore[misc]


def clip(x: float) -> float:
    return min(max(x, 1 - LOW), 1 + HIGH)


def surrogate(p: float, q: float, a: float) -> float:
    rho = math.exp(p - q)
    return min(rho * a, clip(rho) * a)


def slow_grpo(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    return -sum(sum(surrogate(*t) for t in zip(*row, strict=True)) / len(row[0]) for row in rows) / n_sequences


def slow_dr_grpo(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    return -sum(sum(surrogate(*t) for t in zip(*row, strict=True)) for row in rows) / (n_sequences * BUDGET)


def slow_tokens(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    return -sum(surrogate(*t) for row in rows for t in zip(*row, strict=True)) / n_tokens


def slow_gspo(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    total = 0.0
    for p, q, a in rows:
        s = math.exp(sum(x - y for x, y in zip(p, q, strict=True)) / len(p))
        total += sum(min(s * x, clip(s) * x) for x in a) / len(p)
    return -total / n_sequences


def slow_cispo(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    return -sum(clip(math.exp(p - q)) * a * p for row in rows for p, q, a in zip(*row, strict=True)) / n_tokens


def slow_rloo(rows: list[Row], n_tokens: float, n_sequences: float) -> float:
    return -sum(math.exp(p - q) * a * p for row in rows for p, q, a in zip(*row, strict=True)) / n_tokens


REFERENCES: dict[str, Callable[[list[Row], float, float], float]] = {
    "grpo": slow_grpo,
    "dr_grpo": slow_dr_grpo,
    "dapo": slow_tokens,
    "gspo": slow_gspo,
    "cispo": slow_cispo,
    "rloo": slow_rloo,
}


# Gradient of the objective of one token with respect to its own log-prob, from the formula; (rho, A, clipped?) -> number.
def call(name: str, data: dict[str, torch.Tensor], **more):
    mask = data["mask"]
    options = {"n_tokens": float(mask.sum()), "n_sequences": float(len(mask)), "clip_low": LOW, "clip_high": HIGH}
    return LOSSES[name](**data, **{**options, "max_tokens": BUDGET, **more})


def test_every_loss_has_a_reference():
    assert set(REFERENCES) == set(LOSSES)
    assert all(LOSSES[name].__doc__ and "arXiv" in LOSSES[name].__doc__ for name in LOSSES)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(5))
def test_value_equals_the_slow_reference(name: str, seed: int):
    data = batch(seed)
    expected = REFERENCES[name](rows_of(data), float(data["mask"].sum()), 5.0)
    assert call(name, data).loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("cispo", "rloo", "gspo")])
def test_gradient_equals_finite_differences_of_the_slow_reference(name: str):
    data = batch(11)
    data["logprobs"].requires_grad_()
    call(name, data).loss.backward()
    size = 1e-6
    for i, t in data["mask"].nonzero().tolist():
        values = []
        for step in (size, -size):
            moved = {k: v.detach().clone() for k, v in data.items()}
            moved["logprobs"][i, t] += step
            values.append(REFERENCES[name](rows_of(moved), float(data["mask"].sum()), 5.0))
        assert float(data["logprobs"].grad[i, t]) == pytest.approx((values[0] - values[1]) / (2 * size), abs=1e-7)


def test_gspo_gradient_is_that_of_the_sequence_ratio():
    """With one advantage per sequence the token form equals the sequence form, which is differentiated here by itself."""
    data = batch(13, off=0.1)
    data["advantages"] = data["advantages"][:, :1].expand(-1, 9).contiguous()
    data["logprobs"].requires_grad_()
    call("gspo", data).loss.backward()
    own = data["logprobs"].detach().clone().requires_grad_()
    total = 0.0
    for i, mask in enumerate(data["mask"]):
        s = (own[i][mask] - data["sampler_logprobs"][i][mask]).mean().exp()
        a = data["advantages"][i, 0]
        total = total + torch.minimum(s * a, s.clamp(1 - LOW, 1 + HIGH) * a)
    (-total / 5).backward()
    assert torch.allclose(data["logprobs"].grad, own.grad)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_off_the_mask_is_read_or_trained(name: str):
    """History and environment tokens get a gradient of exactly 0, and may hold anything, nan included."""
    data = batch(2)
    data["logprobs"].requires_grad_()
    clean = call(name, data)
    clean.loss.backward()
    assert (data["logprobs"].grad[~data["mask"]] == 0).all()
    dirty = {k: v.detach().clone() for k, v in data.items()}
    for key in ("logprobs", "sampler_logprobs", "advantages"):
        dirty[key][~data["mask"]] = float("nan")
    dirty["logprobs"].requires_grad_()
    again = call(name, dirty)
    again.loss.backward()
    assert again.loss.item() == clean.loss.item()
    assert torch.equal(dirty["logprobs"].grad, data["logprobs"].grad)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradient_and_metrics_do_not_depend_on_the_cut(name: str):
    """The caller's denominators make microbatches add up, whatever their sizes and their padding."""
    data = batch(4, rows=6)
    data["logprobs"].requires_grad_()
    whole = call(name, data)
    whole.loss.backward()
    expected = data["logprobs"].grad.clone()
    data["logprobs"].grad = None
    n = {"n_tokens": float(data["mask"].sum()), "n_sequences": 6.0}
    parts = [call(name, {k: v[cut] for k, v in data.items()}, **n) for cut in (slice(0, 1), slice(1, 4), slice(4, 6))]
    sum(part.loss for part in parts).backward()
    assert torch.allclose(data["logprobs"].grad, expected, rtol=1e-12, atol=1e-15)
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-12)
    assert combine_metrics(p.metrics for p in parts) == pytest.approx(combine_metrics([whole.metrics]))


@pytest.mark.parametrize("name", LOSSES)
def test_several_sequences_in_one_row_equal_a_row_each(name: str):
    data = batch(5, rows=4, width=6)
    flat = {k: v.reshape(1, -1) for k, v in data.items()}
    names = torch.arange(4).repeat_interleave(6)[None] * 3 + 2
    packed = call(name, flat, sequences=names, n_sequences=4.0)
    assert packed.loss.item() == pytest.approx(call(name, data).loss.item(), rel=1e-12)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("grpo", "gspo")])
def test_the_same_advantage_gives_the_same_gradient_per_token_at_twice_the_length(name: str):
    gradients = {}
    for length in (6, 12):
        logprobs = torch.full((2, 12), -1.0, dtype=torch.float64, requires_grad=True)
        mask = torch.arange(12)[None] < torch.tensor([[length], [6]])
        data = {"logprobs": logprobs, "sampler_logprobs": logprobs.detach(), "advantages": torch.ones_like(mask).double(), "mask": mask}  # fmt: skip
        call(name, data, n_tokens=18.0, n_sequences=2.0).loss.backward()
        gradients[length] = logprobs.grad[0, 0].item()
    assert gradients[6] == gradients[12] != 0


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_the_gradient_is_the_policy_gradient(name: str):
    """Before the first update all ratios are 1, and every algorithm is A times grad log pi over its own denominator."""
    data = batch(6, off=0.0)
    data["logprobs"].requires_grad_()
    result = call(name, data)
    result.loss.backward()
    mask = data["mask"]
    n = {"grpo": mask.sum(1, keepdim=True) * 5.0, "gspo": mask.sum(1, keepdim=True) * 5.0, "dr_grpo": 5 * BUDGET}
    expected = -data["advantages"] / n.get(name, float(mask.sum()))
    assert torch.allclose(data["logprobs"].grad, torch.where(mask, expected, 0.0))
    metrics = combine_metrics([result.metrics])
    assert metrics == pytest.approx({"clip_fraction": 0, "ratio_max": 1, "approx_kl": 0})  # fmt: skip


def test_metrics_against_loops():
    data = batch(8)
    rows = rows_of(data)
    n = float(data["mask"].sum())
    metrics = combine_metrics([call("dapo", data).metrics])
    tokens = [t for row in rows for t in zip(*row, strict=True)]
    ratios = [math.exp(p - q) for p, q, _ in tokens]
    clipped = sum(
        (r > 1 + HIGH and a > 0) or (r < 1 - LOW and a < 0) for r, (_, _, a) in zip(ratios, tokens, strict=True)
    )
    assert 0 < clipped < n
    assert metrics["clip_fraction"] == pytest.approx(clipped / n)
    assert metrics["ratio_max"] == pytest.approx(max(ratios))
    assert metrics["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / n)


def test_an_empty_batch_is_zero_and_wrong_shapes_are_named():
    data = batch(10)
    data["mask"] = torch.zeros_like(data["mask"])
    data["logprobs"].requires_grad_()
    for name in LOSSES:
        result = call(name, data, n_tokens=7.0)
        assert result.loss.item() == 0
        result.loss.backward()
        assert combine_metrics([result.metrics])["ratio_max"] == 0
    with pytest.raises(ValueError, match="one shape"):
        call("dapo", {**data, "advantages": data["advantages"][:, :3]})
    with pytest.raises(ValueError, match="max_tokens"):
        call("dr_grpo", data, max_tokens=None)
