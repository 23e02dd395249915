"""Chunks of a vocabulary give the numbers and gradients of the whole, with a fraction of its memory."""

import pytest
import torch
import transformers
from sequence_fakes import random_sequences
from tiny_qwen2 import random_qwen2
from torch import Tensor

from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.microbatches import microbatches
from gradus.training.engine import forward, vocabulary_loss
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.tree_support import supports_tree, tree_attention


def scores(model, sampling: SamplingConfig, *, legal: bool = False, differentiate: bool = False) -> list[Tensor]:
    """Log-probs, entropy and greedy of a microbatch, and the gradient of a weighted sum."""
    (batch,) = microbatches(random_sequences(1), budget=10_000, share=supports_tree(model))
    if legal:
        allowed = torch.rand(len(batch.labels.target), 300, generator=torch.Generator().manual_seed(0)) < 0.5
        allowed[torch.arange(len(allowed)), batch.labels.target] = True
        object.__setattr__(batch.labels, "legal", allowed)
    model.zero_grad()
    with tree_attention(model):
        result = score_tokens(model, batch, sampling, entropy=True, differentiate=differentiate, greedy=True)
        assert result.greedy is not None
        loss = (result.logprobs * torch.linspace(-1, 1, len(result.logprobs))).sum()
        (loss + result.entropy.sum() if differentiate else loss).backward()
    gradient = torch.cat([parameter.grad.flatten().float() for parameter in model.parameters()])
    return [result.logprobs.detach(), result.entropy.detach(), result.greedy.float(), gradient]


def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 300 words were many: two tokens a chunk, and tiles that do not divide them."""
    for module in (forward, vocabulary_loss):
        monkeypatch.setattr(module, "MAX_LOGITS", 600)
    monkeypatch.setitem(vocabulary_loss._TILES, "cpu", (7, 64))


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (SamplingConfig(), {}),
        (SamplingConfig(temperature=0.7), {}),
        (SamplingConfig(), {"differentiate": True}),
        (SamplingConfig(grammar=True), {"legal": True}),
        (SamplingConfig(top_k=20), {}),
        (SamplingConfig(top_p=0.8, temperature=1.3), {"differentiate": True}),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_chunks_are_the_whole(
    sampling: SamplingConfig, options: dict[str, bool], tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_qwen2(3, tie_word_embeddings=tied, initializer_range=0.3)
    whole = scores(model, sampling, **options)
    chunked(monkeypatch)
    for one, other in zip(scores(model, sampling, **options), whole, strict=True):
        assert (one - other).abs().max() < 2e-5 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2", "Qwen3", "Granite", "Cohere"])
def test_other_architectures_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2 caps its logits behind the head, Granite and Cohere multiply them."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, sliding_window=8, pad_token_id=0, eos_token_id=1, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(3)
    attention = "eager" if kind == "Gemma2" else "sdpa"
    if kind == "Granite":
        config.logits_scaling = 3.0
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    whole = scores(model, SamplingConfig())
    chunked(monkeypatch)
    monkeypatch.setattr(forward, "_logits", None)  # all logits at once
    for one, other in zip(scores(model, SamplingConfig()), whole, strict=True):
        assert (one - other).abs().max() < 2e-5 * max(1.0, float(other.abs().max()))


def test_no_logits_are_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_qwen2(3)
    (batch,) = microbatches(random_sequences(1), budget=10_000)
    kept: list[int] = []
    chunked(monkeypatch)

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() if tensor.data_ptr() != model.lm_head.weight.data_ptr() else 0)
        return tensor

    with tree_attention(model), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        score_tokens(model, batch, SamplingConfig(), entropy=True)
    assert max(kept) < len(batch.labels.target) * 300
