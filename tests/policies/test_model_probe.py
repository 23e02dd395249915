"""The probe: sampler, trainer and plain forward are one function of the tokens, or the model is refused with a reason."""

from pathlib import Path

import pytest
from model_matrix import make_model

from gradus.core import ConfigError
from gradus.policies.local import general_decoding
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.runs.forecast.model_probe import check_model, probe_model

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
            assert left.tokens.action_ids == right.tokens.action_ids
            assert left.tokens.logprobs == pytest.approx(right.tokens.logprobs, abs=1e-4)


def test_a_trainer_that_computes_another_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Windows without layer types were trained as if there were none: 4 to 11 nats, and SFT said nothing."""
    from gradus.runs.forecast import model_probe
    from gradus.training.engine import tree_support

    loaded = load("mistral-window", tmp_path)
    assert check_model(loaded).trainer < 1e-4
    for module in (tree_support, model_probe):
        monkeypatch.setattr(module, "supports_tree", lambda model: True)  # what the first edition took it for
    assert probe_model(loaded).trainer > 0.1
    with pytest.raises(ConfigError, match="differ from the plain forward"):
        check_model(loaded)


def test_an_architecture_that_cannot_be_driven_is_refused_in_a_sentence(tmp_path: Path):
    loaded = load("rwkv", tmp_path)
    with pytest.raises(ConfigError, match=r"RwkvForCausalLM.*choose another model"):
        check_model(loaded)


def test_a_run_under_autocast_is_probed_in_the_dtype_of_its_weights(tmp_path: Path):
    """The sampler's rounding, 0.1 nats in 135 million parameters, was held against the limit of float32."""
    loaded = load_model(make_model("qwen3", tmp_path / "qwen3"), autocast=True)
    assert check_model(loaded).sampler < 1e-4
