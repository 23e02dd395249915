"""The probe: sampler, trainer and plain forward are one function of the tokens, or the model is refused with a reason."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
import torch
from model_matrix import make_model

from gradus.core import ConfigError
from gradus.interop.serving.chat import chat_loop
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.policies.local import general_decoding
from gradus.policies.local.loading import LoadedModel, evaluating, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig, sampling_logprobs
from gradus.runs.planning.model_probe import check_model, probe_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers', about kernels that are not installed


def load(name: str, folder: Path) -> LoadedModel:
    return load_model(make_model(name, folder / name))


def test_general_decoding_draws_the_same_tokens_as_our_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tiny_models import play

    loaded = load("qwen3", tmp_path)
    own = LocalPolicy(loaded, SamplingConfig(max_new_tokens=5, temperature=0.9, top_k=20))
    general = LocalPolicy(loaded, SamplingConfig(max_new_tokens=5, temperature=0.9, top_k=20))
    general.plan = None
    assert isinstance(general.decoder(1), general_decoding.GeneralDecoder)
    for one, other in zip(play(own, 5, 3), play(general, 5, 3), strict=True):
        for left, right in zip(one, other, strict=True):
            assert left.tokens is not None
            assert right.tokens is not None
            assert left.tokens.action_ids == right.tokens.action_ids
            assert left.tokens.logprobs == pytest.approx(right.tokens.logprobs, abs=1e-4)


def test_a_trainer_that_computes_another_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Windows without layer types were trained as if there were none: 4 to 11 nats, and SFT said nothing."""
    from gradus.runs.planning import model_probe
    from gradus.training.engine import tree_support

    loaded = load("mistral-window", tmp_path)
    assert check_model(loaded).trainer < 1e-4
    for module in (tree_support, model_probe):
        monkeypatch.setattr(module, "supports_tree", lambda model: True)  # what the first edition took it for
    assert probe_model(loaded).trainer > 0.1
    with pytest.raises(ConfigError, match="differ from the plain forward"):
        check_model(loaded)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "nemotron-h",
            "transformers' cache clamps time steps in longer passes alone: another function, up to 0.007 nats",
        ),
        (
            "gpt-neo",
            "local layers count their window from the end of the batch; real windows are longer than the probe",
        ),
        ("nemotron", "its layers do not hand the tree on to attention: it was refused"),
    ],
)
def test_what_transformers_keeps_or_drops_changes_no_function(name: str, why: str, tmp_path: Path):
    probe = check_model(load(name, tmp_path))
    assert max(probe.sampler, probe.trainer) < 1e-4, why
    assert not probe.shared
    assert probe.own_cache == (name == "nemotron"), why


def test_an_architecture_that_cannot_be_driven_is_refused_in_a_sentence(tmp_path: Path):
    loaded = load("rwkv", tmp_path)
    with pytest.raises(ConfigError, match=r"RwkvForCausalLM.*choose another model"):
        check_model(loaded)


def test_a_model_with_states_is_served_and_talked_to(tmp_path: Path) -> None:
    """Mamba keeps no keys and values; transformers samples for it, one request after another."""
    loaded = load("mamba", tmp_path)
    said = iter(["w1 w2", "w3", None])
    settings = SamplingConfig(max_new_tokens=5)
    messages = chat_loop(loaded, ask=lambda: next(said), show=lambda text: None, sampling=settings)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    batch = ContinuousBatch(loaded, rows=4)
    batch.start()
    told: queue.SimpleQueue[Sampled | Exception] = queue.SimpleQueue()
    try:
        for _ in range(2):
            batch.submit(Generation(prompt=[7, 8, 9], sampling=settings, budget=5, seed=3, tell=told.put))
        answers: list[list[Sampled]] = [[], []]
        for answer in answers:
            while not answer or answer[-1].finish is None:
                token = told.get(timeout=30)
                assert isinstance(token, Sampled)
                answer.append(token)
    finally:
        batch.close()
    assert answers[0] == answers[1]
    ids = [token.id for token in answers[0]]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([[7, 8, 9, *ids]])).logits[0, 2:-1]
    own = sampling_logprobs(logits, settings).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert own.tolist() == pytest.approx([token.logprob for token in answers[0]], abs=1e-4)


def test_a_run_under_autocast_is_probed_in_the_dtype_of_its_weights(tmp_path: Path):
    """The sampler's rounding, 0.1 nats in 135 million parameters, was held against the limit of float32."""
    loaded = load_model(make_model("qwen3", tmp_path / "qwen3"), autocast=True)
    assert check_model(loaded).sampler < 1e-4


def test_autocast_casts_the_weights_once_for_all_tokens_of_an_answer(tmp_path: Path):
    loaded = load_model(make_model("qwen3", tmp_path / "qwen3"), autocast=True)
    ids, weight = torch.tensor([[1, 2, 3]]), list(loaded.model.get_output_embeddings().weight.shape)
    with evaluating(loaded):
        loaded.model(ids)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            loaded.model(ids)
    assert not [each for each in profile.events() if each.name == "aten::_to_copy" and weight in each.input_shapes]
