"""Float32 products by oneDNN are those of MKL but for rounding, whatever CPU runs this, and are taken only where they are meant to be."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradus.policies.local.cpu import float32_linear
from gradus.policies.local.cpu.float32_linear import linear, products, use_faster_products
from gradus.training.engine.bfloat16_backward import bfloat16_backward

pytestmark = pytest.mark.skipif(not float32_linear._is_there(), reason="torch without oneDNN")


@pytest.fixture(autouse=True, scope="module")
def as_on_amd():
    """As on a CPU where oneDNN is the faster one, for products of any size."""
    patch = pytest.MonkeyPatch()
    patch.setattr(float32_linear, "prefers_onednn", lambda: True)
    patch.setattr(float32_linear, "_LITTLE", 1)
    yield
    patch.undo()


def gradients(call, *leaves: Tensor) -> list[Tensor]:
    """What ``call`` gives and the gradients of a weighted sum of it."""
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    out = call(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * weight).sum(), leaves)]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from([(1,), (9,), (64,), (2, 7), (3, 40), (0,)]),
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
)
def test_a_layer_and_its_gradients_are_those_of_torch(
    seed: int, rows: tuple[int, ...], inner: int, outer: int, bias: bool
):
    chance = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(*shape, generator=chance) for shape in ((*rows, inner), (outer, inner), (outer,))]
    leaves = leaves if bias else leaves[:2]
    near = gradients(lambda x, w, b=None: linear(x, w, b), *leaves)
    true = gradients(lambda x, w, b=None: F.linear(x, w, b), *(leaf.double() for leaf in leaves))
    for one, other in zip(near, true, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("large", [1, 2**40])
def test_batched_products_are_those_of_torch(large: int, monkeypatch: pytest.MonkeyPatch):
    """One by one or all at once; also of transposed and of cut tensors."""
    monkeypatch.setattr(float32_linear, "_LARGE", large)
    left, right = torch.randn(3, 20, 8), torch.randn(3, 8, 40).mT[:, :33]
    torch.testing.assert_close(products(left, right, 0.3), 0.3 * (left.double() @ right.double().mT).float())


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4, bias=False))


def test_a_backward_pass_in_bfloat16_is_still_taken():
    """The layers are of another class, and are found all the same."""
    net, inputs = model(), torch.randn(64, 16)
    exact = gradients(net, inputs)[1]
    use_faster_products(net)
    with bfloat16_backward(net):
        assert all("forward" in vars(layer) for layer in net if isinstance(layer, nn.Linear))
        near = gradients(net, inputs)[1]
    assert not torch.equal(near, exact)
    assert (near - exact).norm() < 0.02 * exact.norm()
