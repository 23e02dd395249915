"""Attention by batched products is the kernel's attention: exactly so forwards in float32, and within bfloat16's eight bits backwards."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradus.training.data.microbatches import Tree
from gradus.training.engine import tree_attention as attention
from gradus.training.engine.tree_attention import VisibleKeys, _Parts, _Products, attend


def case(seed: int, rows: int, heads: int, shared: int, offset: int, length: int, *, own: bool) -> list[Tensor]:
    """Queries, keys, values, and a mask that hides a row's own part of the prefix where ``own`` says so."""
    chance = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, length, 8), (rows, shared, offset + length, 8), (rows, shared, offset + length, 8)]
    parts = [torch.randn(shape, generator=chance) for shape in shapes]
    seen = torch.ones(rows if own else 1, 1, length, offset + length, dtype=torch.bool).tril(offset)
    if own:
        hidden = torch.randint(0, offset + 1, (rows, 1, 1, 1), generator=chance)
        seen &= (torch.arange(offset + length) >= hidden) | (torch.arange(offset + length) >= offset)
    return [*parts, torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))]


def run(parts: list[Tensor], offset: int, *, own: bool = False, bf16_backward: bool) -> list[Tensor]:
    """Output and the three gradients of a weighted sum."""
    query, key, value = leaves = [part.clone().requires_grad_() for part in parts[:3]]
    mask = parts[3]
    visible = VisibleKeys(mask, range(offset + 1, offset + mask.shape[2] + 1), plain=not own)
    out = _Products(None, bf16_backward).masked(_Parts(query, key, value), visible)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return [out, *torch.autograd.grad((out * weight).sum(), leaves)]


@settings(max_examples=25)
@given(
    st.integers(0, 99),
    st.integers(1, 3),
    st.sampled_from([(4, 1), (4, 2), (3, 3)]),
    st.integers(0, 9),
    st.sampled_from([64, 65, 130, 300]),
    st.booleans(),
)
def test_products_are_the_kernel(seed: int, rows: int, heads: tuple[int, int], offset: int, length: int, own: bool):
    parts = case(seed, rows, *heads, offset, length, own=own)
    exact, fast = (run(parts, offset, own=own, bf16_backward=fast) for fast in (False, True))
    torch.testing.assert_close(fast[0], exact[0], rtol=1e-5, atol=1e-5)
    for near, true in zip(fast[1:], exact[1:], strict=True):
        # A product keeps 8 bits (0.4 %); where products cancel, more of the sum is lost.
        assert F.cosine_similarity(near.flatten(), true.flatten(), dim=0) > 0.9998
        assert (near - true).norm() < 0.02 * true.norm()


def test_short_rows_are_left_to_the_kernel():
    """Where products do not pay nothing changes by a bit."""
    parts = case(1, 2, 4, 2, 3, 31, own=False)
    for near, true in zip(run(parts, 3, bf16_backward=True), run(parts, 3, bf16_backward=False), strict=True):
        assert torch.equal(near, true)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_kept_are_made_again_bit_for_bit(
    own: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    parts = case(1, 3, 4, 2, 5, 300, own=own)
    parts = [*(part.to(dtype) for part in parts[:3]), parts[3]]
    kept = run(parts, 5, own=own, bf16_backward=True)
    monkeypatch.setattr(attention, "_MAX_KEPT_BYTES", 100)
    for again, once in zip(run(parts, 5, own=own, bf16_backward=True), kept, strict=True):
        assert torch.equal(again, once)


def tree(lengths: tuple[int, ...], members: tuple[int, ...], longest: int) -> Tree:
    """Prefixes of these lengths with so many suffixes each, of at most ``longest`` tokens."""
    return Tree(
        prefixes=(len(lengths), max(lengths)),
        suffixes=(sum(members), longest),
        lengths=lengths,
        members=members,
    )


@settings(max_examples=40)
@given(
    st.integers(0, 99),
    st.sampled_from([((9,), (3,)), ((9, 9), (2, 2)), ((9, 4), (1, 4)), ((70,), (1,))]),
    st.sampled_from([(4, 1), (4, 2), (3, 3)]),
    st.sampled_from([5, 40, 150]),
    st.sampled_from([0.01, 0.3, 0.6, 1.0]),
    st.booleans(),
)
@example(87, ((70,), (1,)), (4, 1), 40, 0.01, True)
def test_places_that_ask_alone_get_what_they_get_among_all(
    seed: int,
    shape: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int],
    longest: int,
    share: float,
    bf16_backward: bool,
):
    """Attention of some places of a tree, the prefix's among them, and its gradients."""
    whole = tree(*shape, longest)
    places = len(shape[0]) * max(shape[0]) + sum(shape[1]) * longest
    chance = torch.Generator().manual_seed(seed)
    source = (torch.rand(places, generator=chance) < share).nonzero()[:, 0]
    source = source if len(source) else torch.tensor([max(shape[0]) - 1])
    parts = [torch.randn(count, places, 8, generator=chance) for count in (heads[0], heads[1], heads[1])]
    weight = torch.randn(len(source), heads[0], 8, generator=chance)
    results: list[list[Tensor]] = []
    for alone in (False, True):
        query, key, value = leaves = [part.clone().requires_grad_() for part in parts]
        if alone:
            out = attend(query[:, source], key, value, None, tree=whole, source=source, bf16_backward=bf16_backward)
        else:  # in float32: where a gradient is a difference of equal numbers, bfloat16 gives noise
            out = attend(query, key, value, None, tree=whole, bf16_backward=False)[source]
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)
    for near, true in zip(results[1][1:], results[0][1:], strict=True):
        # In bfloat16 the error is a share of what comes in; of what is left of it, a small gradient would be nothing but error.
        allowed = 0.005 * weight.norm() if bf16_backward else 1e-5 * true.norm() + 1e-6
        assert (near - true).norm() <= allowed
