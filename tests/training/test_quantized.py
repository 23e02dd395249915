"""Adapters on weights of four bits, by bitsandbytes itself."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import lamps

from gradus.core import ConfigError
from gradus.policies.local.export import export_model
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import read_settings
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.runs.stages.training_stages import weights_to_server
from gradus.training.config import GrpoConfig
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.grpo import train_grpo
from gradus.training.run.options import GrpoOptions
from gradus.training.trainer_config import LoraConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # bitsandbytes' own
# Not among the packages for development: transformers imports it wherever it is installed, for seconds.
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def settings(**changes: Any) -> GrpoConfig:
    base: dict[str, Any] = {"groups": 4, "group_size": 4, "max_turns": 3, "max_steps": 2, "validation_every": 0}
    sampling = SamplingConfig(max_new_tokens=4, grammar=True)
    return GrpoConfig(**{**base, "sampling": sampling, "lora": LoraConfig(rank=4), "lr": 3e-2, **changes})


@pytest.mark.slow
@needs_bitsandbytes
def test_adapters_are_trained_on_four_bits_saved_served_and_merged(tmp_path: Path) -> None:
    vocabulary = lamps().language.vocabulary
    lamps_model = make_nano(
        tmp_path / "nano", vocabulary(), NanoConfig(hidden_size=64, layers=2, heads=2, intermediate_size=128), seed=1
    )
    config = settings(quantize="4bit")
    result = train_grpo(lamps_model, lamps(), config, tmp_path / "run", options=GrpoOptions(live=False))
    stored = read_settings(result.final)
    assert stored.quantize == "4bit"
    loaded = load_model(result.final)  # as it was trained
    inside = [name for name, value in loaded.model.named_parameters() if value.dtype == torch.uint8]
    assert len(inside) >= 7  # a layer's matrices
    adapters = [value for name, value in loaded.model.named_parameters() if "lora_B" in name]
    assert any(float(value.abs().max()) > 0 for value in adapters)

    class Noted:
        def reload(self, folder: Path) -> None:
            self.folder = folder

    noted: Any = Noted()
    weights_to_server(noted, tmp_path / "sampler")(loaded, 0)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        trained, served = loaded.model(ids).logits, load_model(noted.folder).model(ids).logits
        whole = load_model(result.final, quantize="none").model(ids).logits
    assert (trained - served).abs().max() < 1e-4
    assert (trained - whole).abs().max() > 1e-3  # four bits round
    exported = export_model(result.final, tmp_path / "plain")
    assert exported.merged
    with torch.no_grad():
        assert (load_model(exported.path).model(ids).logits - whole).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("trainable", "lora", "says"),
    [
        (True, None, r"quantized \(gptq\).*set lora, or name"),
        (False, LoraConfig(), r"quantized \(gptq\).*trained; name the model"),
        (True, LoraConfig(rank=2), None),
    ],
)
def test_a_model_that_was_published_quantized_is_trained_by_adapters_or_not_at_all(
    lamps_model: Path, trainable: bool, lora: LoraConfig | None, says: str | None
) -> None:
    """Its matrices took no gradient: a run trained norms and embeddings alone, and said nothing."""
    loaded = load_model(lamps_model)
    loaded.model.hf_quantizer = SimpleNamespace(
        is_trainable=trainable, quantization_config=SimpleNamespace(quant_method="gptq")
    )
    if says is None:
        prepare_model(loaded, settings(lora=lora))
        return
    with pytest.raises(ConfigError, match=says):
        prepare_model(loaded, settings(lora=lora))


def test_without_bitsandbytes_it_says_what_to_install(lamps_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.policies.local.loading.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"gradus-rl\[quantized\]"):
        load_model(lamps_model, quantize="4bit")
    with pytest.raises(ConfigError, match=r"optimizer = 'adamw_8bit' needs .*gradus-rl\[quantized\]"):
        make_optimizer(load_model(lamps_model).model, settings(optimizer="adamw_8bit", lora=None))
    with pytest.raises(ConfigError, match="needs a GPU and the package flash-attn; leave attention out"):
        load_model(lamps_model, attention="flash_attention_2")
    with pytest.raises(ValueError, match="dropout of adapters must be 0"):
        LoraConfig(dropout=0.05)
    with pytest.raises(ValueError, match="set lora, or leave quantize out"):
        settings(quantize="4bit", lora=None)


@needs_bitsandbytes
def test_moments_of_eight_bits_train_and_go_on_as_they_were(lamps_model: Path, tmp_path: Path) -> None:
    config = settings(optimizer="adamw_8bit", lora=None, max_steps=3, checkpoint_every=1)
    whole = train_grpo(lamps_model, lamps(), config, tmp_path / "whole", options=GrpoOptions(live=False))
    asked: list[bool] = []

    def stop_after_one() -> bool:
        asked.append(True)
        return len(asked) > 1

    with pytest.raises(KeyboardInterrupt):
        train_grpo(
            lamps_model, lamps(), config, tmp_path / "part", options=GrpoOptions(live=False, stop=stop_after_one)
        )
    rest = train_grpo(lamps_model, lamps(), config, tmp_path / "part", resume=True, options=GrpoOptions(live=False))
    weights, begun = (load_model(folder).model.state_dict() for folder in (whole.final, lamps_model))
    assert any(not torch.equal(weights[name], begun[name]) for name in begun)
    same = load_model(rest.final).model.state_dict()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
