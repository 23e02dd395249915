"""A tree of shared prefixes computes what each row alone computes, forwards and backwards."""

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_fakes import random_sequences
from tiny_qwen2 import random_qwen2
from torch import Tensor

from gradus.policies.local.llama_forward import has_lean_decoder
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.microbatches import Tree, microbatches
from gradus.training.engine import forward
from gradus.training.engine.bfloat16_backward import bfloat16_backward
from gradus.training.engine.forward import disable_dropout, score_tokens
from gradus.training.engine.prepare import checkpoint_activations
from gradus.training.engine.tree_support import supports_tree, tree_attention

PLAIN = SamplingConfig()


def alone(model, sequence) -> Tensor:
    """The definition: one row, no padding, the log-softmax of the position before each sampled token."""
    logits = model(sequence.ids[None]).logits[0]
    return logits.log_softmax(-1)[sequence.positions - 1, sequence.ids[sequence.positions]]


def in_batches(model, sequences, **options) -> dict[int, Tensor]:
    by_sequence = {}
    with tree_attention(model):
        for batch in microbatches(sequences, **options):
            logprobs = score_tokens(model, batch, PLAIN).logprobs
            for row, index in enumerate(batch.sequences):
                by_sequence[index] = logprobs[batch.labels.row == row]
    return by_sequence


def equals_rows_alone(model, sequences, **options) -> None:
    """Checks log-probs and gradients against each row alone."""
    by_sequence = in_batches(model, sequences, **options)
    wanted = [alone(model, sequence) for sequence in sequences]
    got = [by_sequence[index] for index in range(len(sequences))]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    exact = gradient(model, wanted)
    assert (gradient(model, got) - exact).abs().max() < 1e-5 * exact.abs().max()


def gradient(model, values) -> Tensor:
    model.zero_grad()
    weights = torch.linspace(-1, 1, sum(len(one) for one in values))
    (torch.cat(values) * weights).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.fixture
def plain_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take transformers' own forward pass, as for a model whose architecture is not known."""
    monkeypatch.setattr("gradus.training.engine.forward.has_lean_decoder", lambda model: False)


@pytest.fixture
def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attend as on a GPU, and refuse to make a dense mask."""
    monkeypatch.setattr("gradus.training.engine.tree_attention._takes_masks", lambda device: False)
    monkeypatch.setattr(Tree, "mask", property(lambda tree: pytest.fail("a dense mask was made")))


@pytest.mark.usefixtures("no_masks")
@pytest.mark.parametrize("budget", [60, 150, 10_000])
def test_branches_without_a_mask_equal_rows_alone(budget: int) -> None:
    """Shared key heads, prefixes of unequal lengths, single members and rows without a prefix."""
    model = random_qwen2(2, initializer_range=0.2)
    sequences = [*random_sequences(budget), *random_sequences(1, groups=1, members=5, prefix=40, suffix=9)]
    equals_rows_alone(model, sequences, budget=budget)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [1, 60, 150, 10_000])
def test_a_row_in_a_batch_equals_the_row_alone(
    loaded: LoadedModel, lean: bool, share: bool, budget: int, request: pytest.FixtureRequest
) -> None:
    assert has_lean_decoder(loaded.model)
    if not lean:
        request.getfixturevalue("plain_decoder")
    equals_rows_alone(loaded.model, random_sequences(budget), budget=budget, share=share)
    if budget == 10_000:  # long suffixes too
        long = random_sequences(4, groups=1, members=2, prefix=10, suffix=300)
        equals_rows_alone(loaded.model, long, budget=budget, share=share)


@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 4),
    members=st.integers(1, 5),
    prefix=st.integers(2, 30),
    suffix=st.integers(1, 20),
    budget=st.integers(1, 300),
)
@settings(max_examples=25)
def test_every_sampled_token_is_scored_once_with_its_own_number(
    seed: int, groups: int, members: int, prefix: int, suffix: int, budget: int
) -> None:
    sequences = random_sequences(seed, groups=groups, members=members, prefix=prefix, suffix=suffix)
    seen: list[int] = []
    for batch in microbatches(sequences, budget=budget):
        seen.extend(batch.sequences)
        for row, index in enumerate(batch.sequences):
            mine = batch.labels.row == row
            sequence = sequences[index]
            assert batch.labels.target[mine].tolist() == sequence.ids[sequence.positions].tolist()
            source = batch.labels.source[mine]
            assert batch.positions[0, source].tolist() == (sequence.positions - 1).tolist()
            assert batch.input_ids[0, source].tolist() == sequence.ids[sequence.positions - 1].tolist()
        width = batch.input_ids.shape[1]
        assert batch.tokens <= width
        assert width <= max(budget, max(map(len, sequences)))
    assert sorted(seen) == list(range(len(sequences)))


def test_a_shared_prefix_is_computed_once(loaded: LoadedModel) -> None:
    sequences = random_sequences(0, groups=2, members=8, prefix=50, suffix=6, spread=0)
    shared = sum(batch.tokens for batch in microbatches(sequences, budget=1000))
    single = sum(batch.tokens for batch in microbatches(sequences, budget=1000, share=False))
    own = single - 16 * 50
    assert shared == own + 2 * 50


@pytest.mark.parametrize("biased", [True, False])
def test_the_lean_decoder_knows_qwen2(biased: bool) -> None:
    """Biases of the projections, grouped key heads, another epsilon: still transformers' numbers and gradients."""
    model = random_qwen2(
        1, hidden_size=48, num_hidden_layers=3, rms_norm_eps=1e-4, rope_theta=500.0, tie_word_embeddings=biased
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    assert has_lean_decoder(model)
    equals_rows_alone(model, random_sequences(9), budget=150)


def test_dropout_is_off_in_train_mode_too(loaded: LoadedModel) -> None:
    for layer in loaded.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    disable_dropout(loaded.model)
    batch = microbatches(random_sequences(1), budget=10_000, share=False)[0]
    with tree_attention(loaded.model), torch.no_grad():
        still = score_tokens(loaded.model.eval(), batch, PLAIN).logprobs
        moving = score_tokens(loaded.model.train(), batch, PLAIN).logprobs
    assert torch.equal(still, moving)


def test_checkpointed_layers_give_the_same_gradient(loaded: LoadedModel) -> None:
    sequences = random_sequences(5)
    got = in_batches(loaded.model, sequences, budget=200)
    plain = gradient(loaded.model, [got[index] for index in range(len(sequences))])
    checkpoint_activations(loaded.model)
    weights = torch.linspace(-1, 1, sum(sequence.actions for sequence in sequences))
    starts = torch.tensor([0, *[sequence.actions for sequence in sequences]]).cumsum(0)
    loaded.model.zero_grad()
    with tree_attention(loaded.model):
        for batch in microbatches(sequences, budget=200):
            own = torch.cat([weights[starts[index] : starts[index + 1]] for index in batch.sequences])
            (score_tokens(loaded.model, batch, PLAIN).logprobs * own).sum().backward()
    again = torch.cat([parameter.grad.flatten() for parameter in loaded.model.parameters()])
    assert (again - plain).abs().max() < 1e-5 * plain.abs().max()


@pytest.mark.parametrize("lean", [True, False])
def test_checkpointed_layers_keep_their_inputs_alone(lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not lean:
        monkeypatch.setattr(forward, "has_lean_decoder", lambda model: False)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    def numbers_kept(model: torch.nn.Module) -> int:
        kept.clear()
        (batch,) = microbatches(random_sequences(1), budget=10_000)
        with tree_attention(model), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            score_tokens(model, batch, PLAIN)
        return sum(kept)

    model = random_qwen2(3, num_hidden_layers=6)
    everything = numbers_kept(model)
    checkpoint_activations(model)
    assert numbers_kept(model) < everything / 3


@pytest.mark.parametrize("kind", ["GPT2", "dynamic"])
def test_padding_has_no_place_that_no_sequence_has(kind: str) -> None:
    """A long prefix with short answers beside a short prefix with long ones, in a context that just holds each."""
    if kind == "GPT2":
        shape = transformers.GPT2Config(vocab_size=256, n_positions=70, n_embd=32, n_layer=1, n_head=2)
    else:  # its rates depend on the largest place of a pass
        rates = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
        shape = transformers.LlamaConfig(
            vocab_size=256, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=70, rope_parameters=rates, initializer_range=0.3,
        )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(shape).eval()
    wide = random_sequences(1, groups=1, prefix=50, suffix=10, spread=0)
    long = random_sequences(2, groups=1, prefix=30, suffix=40, spread=0)
    sequences = [*wide, *(replace(each, key=(1, 0)) for each in long)]
    got = in_batches(model, sequences, budget=4096, share=True)
    for index, sequence in enumerate(sequences):
        torch.testing.assert_close(got[index], alone(model, sequence), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Qwen2", "Mistral", "Phi3", "Starcoder2"])
def test_a_model_with_windows_takes_plain_rows(kind: str) -> None:
    """A tree would look past the window. Qwen2 lists the kind of each layer; the others give one window for every layer."""
    named = {"use_sliding_window": True, "max_window_layers": 1} if kind == "Qwen2" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, sliding_window=8, pad_token_id=0, eos_token_id=1, initializer_range=0.2, **named,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    assert not supports_tree(model)
    equals_rows_alone(model, random_sequences(6), budget=150, share=supports_tree(model))


def test_a_bfloat16_backward_pass_leaves_the_forward_pass_alone(loaded: LoadedModel) -> None:
    sequences = random_sequences(8)
    by_sequence = in_batches(loaded.model, sequences, budget=300)
    exact = [by_sequence[index] for index in range(len(sequences))]
    plain = gradient(loaded.model, exact)
    with bfloat16_backward(loaded.model):
        by_sequence = in_batches(loaded.model, sequences, budget=300)
        rounded = [by_sequence[index] for index in range(len(sequences))]
        rough = gradient(loaded.model, rounded)
    assert all(torch.equal(one, other) for one, other in zip(exact, rounded, strict=True))
    assert 0 < (rough - plain).norm() < 0.02 * plain.norm()
    assert "forward" not in vars(loaded.model.lm_head)
