"""What the server's engine computes, against torch's own operations on the plain model of transformers."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_qwen2 import make_tiny_llama
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import ALPHA, AdapterShape, TrainedAdapter
from gradus.interop.tinker.checkpoints import CheckpointStore, SavedAdapter
from gradus.interop.tinker.engine import AdapterEngine, SampleOrder
from gradus.interop.tinker.losses import LOSSES_SERVED, served_loss
from gradus.interop.tinker.wire import TokenDatum
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig

SHAPE = AdapterShape(rank=4)
CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
ADAM: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("engine") / "llama")


@pytest.fixture
def engine(folder: Path) -> AdapterEngine:
    return AdapterEngine(load_model(folder, dtype="float32", device="cpu"))


def begun(engine: AdapterEngine) -> TrainedAdapter:
    """An adapter whose product is not zero."""
    adapter = engine.new_adapter(SHAPE, 3)
    draw = torch.Generator().manual_seed(0)
    moved = {
        name: weight + 0.02 * torch.randn(weight.shape, generator=draw) for name, weight in adapter.snapshot().items()
    }
    adapter.restore(moved, {})
    return adapter


def batch() -> list[TokenDatum]:
    """Sequences of unequal length and both signs, with old log-probs near and far, and prompts without weight."""
    draw = np.random.default_rng(0)
    data: list[TokenDatum] = []
    for length, sign in ((9, 1.0), (3, -1.0), (14, -0.5), (1, 2.0)):
        ids = draw.integers(3, 300, length + 1)
        inputs = {
            "target_tokens": torch.tensor(ids[1:]),
            "logprobs": torch.tensor(draw.normal(-5.8, 0.2, length)).float(),
            "advantages": torch.full((length,), sign),
            "weights": torch.tensor(draw.random(length) < 0.8).float(),
        }
        data.append(TokenDatum(ids=ids[:-1].tolist(), inputs=inputs))
    return data


def without(data: list[TokenDatum], *names: str) -> list[TokenDatum]:
    return [
        TokenDatum(ids=datum.ids, inputs={name: value for name, value in datum.inputs.items() if name not in names})
        for datum in data
    ]


def plain_logprobs(model: Any, weights: Mapping[str, Tensor], datum: TokenDatum) -> Tensor:
    """Log-probs of the targets by the model whose matrices have the adapter's product added."""
    matrices = dict(model.named_parameters())
    for name in [name for name in weights if "lora_A" in name]:
        target = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        product = weights[name.replace("lora_A", "lora_B")] @ weights[name]
        matrices[target] = matrices[target] + ALPHA / SHAPE.rank * product
    logits = functional_call(model, matrices, kwargs={"input_ids": torch.tensor([datum.ids])}, tie_weights=False).logits
    return logits[0].log_softmax(-1).gather(1, datum.inputs["target_tokens"][:, None])[:, 0]


def plain_loss(name: str, logprobs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    if name == "cross_entropy":
        return -(inputs["weights"] * logprobs).sum()
    ratio, advantages = torch.exp(logprobs - inputs["logprobs"]), inputs["advantages"]
    bounded = torch.clip(ratio, 0.9, 1.1)
    values = {
        "importance_sampling": ratio * advantages,
        "ppo": torch.minimum(ratio * advantages, bounded * advantages),
        "cispo": bounded.detach() * advantages * logprobs,
    }
    return -(inputs["weights"] * values[name]).sum()


@pytest.mark.parametrize("name", LOSSES_SERVED)
def test_an_update_is_that_of_torch(folder: Path, engine: AdapterEngine, name: str) -> None:
    adapter = begun(engine)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = {key: value.clone().requires_grad_(True) for key, value in adapter.snapshot().items()}
    optimizer = torch.optim.AdamW(weights.values(), **ADAM)
    data = without(batch(), "logprobs", "advantages") if name == "cross_entropy" else batch()
    loss = served_loss(name, CLIP if name in ("ppo", "cispo") else {})
    for _ in range(2):
        total = sum(plain_loss(name, plain_logprobs(model, weights, datum), datum.inputs) for datum in data)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        # In two calls: gradients add up until the step.
        results = [engine.forward(adapter, part, loss, backward=True) for part in (data[:1], data[1:])]
        adapter.step(ADAM, 0.0)
        assert sum(result.metrics["loss:sum"] for result in results) == pytest.approx(total.item(), abs=1e-4)
    served = engine.forward(adapter, data, loss, backward=False)
    for datum, output in zip(data, served.outputs, strict=True):
        expected = plain_logprobs(model, weights, datum).detach()
        torch.testing.assert_close(output["logprobs"], expected, atol=1e-4, rtol=0)


def order(**changes: Any) -> SampleOrder:
    settings: dict[str, Any] = {
        "prompt": [5, 6, 7],
        "count": 3,
        "budget": 20,
        "sampling": SamplingConfig(),
        "stops": frozenset[int](),
        "stop_texts": [],
        "seed": 1,
    }
    return SampleOrder(**settings | changes)


def test_samples_are_scored_as_the_trainer_scores_them(engine: AdapterEngine) -> None:
    adapter = begun(engine)
    sampled = engine.sample(SHAPE, adapter.weights, order(prompt_logprobs=True, likeliest=3))
    score = partial(engine.forward, adapter, loss=served_loss("cross_entropy", {}), backward=False)
    for one in sampled.sequences:
        ids = [5, 6, 7, *one.ids]
        datum = TokenDatum(ids=ids[:-1], inputs={"target_tokens": torch.tensor(ids[1:])})
        logprobs = score([datum]).outputs[0]["logprobs"]
        assert torch.tensor(one.logprobs) == pytest.approx(logprobs[2:], abs=1e-5)
        assert sampled.prompt_logprobs[1:] == pytest.approx(logprobs[:2], abs=1e-5)
        assert one.stop == "length"
    assert (sampled.likeliest[1][1:].diff(dim=1) <= 0).all()
    # Other adapters were on the model in between: the same bits.
    engine.sample(None, {}, order())
    engine.new_adapter(AdapterShape(rank=2, train_mlp=False), 0)
    again = engine.sample(SHAPE, adapter.weights, order())
    assert again.sequences == sampled.sequences


def test_an_answer_ends_where_a_stop_text_is_complete(engine: AdapterEngine) -> None:
    spell = engine.loaded.tokenizer.decode
    (free,) = engine.sample(None, {}, order(count=1, budget=40)).sequences
    text = spell(free.ids[8:10])
    (cut,) = engine.sample(None, {}, order(count=1, budget=40, stop_texts=[text])).sequences
    assert cut.stop == "stop"
    assert cut.ids == free.ids[: len(cut.ids)]
    assert text in spell(cut.ids)
    assert text not in spell(cut.ids[:-1])


def test_a_saved_adapter_goes_on_bit_for_bit_and_loads_elsewhere(engine: AdapterEngine, tmp_path: Path) -> None:
    adapter, data, loss = begun(engine), batch(), served_loss("ppo", {})

    def update(trained: TrainedAdapter) -> None:
        engine.forward(trained, data, loss, backward=True)
        trained.step(ADAM, 1.0)

    update(adapter)
    store = CheckpointStore(tmp_path)
    path = "tinker://model/weights/one"
    card = SavedAdapter(path=path, owner="me", base_model="llama", shape=SHAPE, created=0.0, expires=None)
    store.save(card, adapter.snapshot(), adapter.moments(), engine.slot.peft_config(SHAPE).save_pretrained)
    other = engine.new_adapter(SHAPE, 99)
    other.restore(*store.load(store.card(path, "me")))
    with pytest.raises(ApiError, match="no checkpoint"):
        store.card(path, "another")
    for trained in (adapter, other):
        update(trained)
    assert all(torch.equal(weight, other.weights[name]) for name, weight in adapter.weights.items())
    # The folder is one of peft's, which chat, export and eval load.
    loaded = load_model(store.check_path(path), dtype="float32", device="cpu")
    scores = loaded.model(torch.tensor([data[0].ids])).logits[0].log_softmax(-1)
    saved = engine.new_adapter(SHAPE, 0)
    saved.restore(store.load(card)[0], {})
    expected = engine.forward(saved, data, loss, backward=False).outputs[0]["logprobs"]
    chosen = scores.gather(1, data[0].inputs["target_tokens"][:, None])[:, 0]
    torch.testing.assert_close(chosen.detach(), expected, atol=1e-5, rtol=0)
