"""Loading models: what is missing is said, with the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import starts

from gradus.core import ConfigError, Observation, Request
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig

Folder = Callable[[str], Path]


def test_a_missing_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no model in"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="there is no model in"):
        load_model("./nowhere")


def test_code_that_comes_with_a_model_is_not_run(model_folder: Folder, tmp_path: Path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "copy")
    mark = tmp_path / "ran"
    (folder / "theirs.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    theirs = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "theirs", "auto_map": theirs}))
    with pytest.raises(ConfigError, match="could not be loaded"):
        load_model(folder)
    assert not mark.exists()


@pytest.mark.parametrize("layers", [-1, 0, 10**9])
def test_a_number_of_layers_that_no_model_has_is_refused_at_once(model_folder: Folder, tmp_path: Path, layers: int):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with pytest.raises(ConfigError, match=f"num_hidden_layers = {layers}, expected 1 to"):
        load_model(folder)


def test_dtype(model_folder: Folder):
    assert load_model(model_folder("llama")).dtype == torch.float32 or torch.cuda.is_available()
    assert (
        next(load_model(model_folder("llama"), dtype="bfloat16", device="cpu").model.parameters()).dtype
        == torch.bfloat16
    )
    with pytest.raises(ConfigError, match="dtype must be"):
        load_model(model_folder("llama"), dtype="int8")


def test_a_device_that_is_not_there_is_said(model_folder: Folder):
    with pytest.raises(ConfigError, match="got 'cuda:99', which cannot be used here"):
        load_model(model_folder("llama"), device="cuda:99")


def test_bfloat16_and_eager_attention_play_too(model_folder: Folder):
    for options in ({"dtype": "bfloat16"}, {"attention": "eager"}):
        policy = LocalPolicy(load_model(model_folder("llama"), **options), SamplingConfig(max_new_tokens=4))
        asked = [Request(row=r, observation=Observation(text="w1")) for r in range(2)]
        assert all(action.failure is None for action in policy.start(starts(2)).act(asked))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft's use of transformers
def test_an_adapter_changes_what_is_said_and_a_wrong_one_is_named(model_folder: Folder, tmp_path: Path):
    from peft import LoraConfig, get_peft_model

    base = load_model(model_folder("llama"))
    lora = get_peft_model(base.model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    lora.save_pretrained(tmp_path / "lora")
    assert load_model(tmp_path / "lora").path == str(tmp_path / "lora")  # a LoRA folder names its base
    texts = {}
    for adapter in (None, tmp_path / "lora"):
        policy = LocalPolicy(load_model(adapter or model_folder("llama")), SamplingConfig(max_new_tokens=8))
        asked = [Request(row=0, observation=Observation(text="w30 w31"))]
        texts[adapter] = policy.start(starts(1)).act(asked)[0].tokens.logprobs
    assert texts[None] != texts[tmp_path / "lora"]


def test_a_cache_that_does_not_reproduce_the_model_is_found(loaded, monkeypatch: pytest.MonkeyPatch):
    from gradus.policies.local import kv_cache

    assert LocalPolicy(loaded("llama"), SamplingConfig()).plan is not None
    monkeypatch.setattr(
        kv_cache, "_additive", lambda seen, dtype: torch.zeros(seen.shape, dtype=dtype)
    )  # sees the future
    assert LocalPolicy(loaded("llama"), SamplingConfig()).plan is None, "transformers' own cache samples instead"


def test_a_damaged_best_checkpoint_is_not_passed_over_for_a_worse_one(model_folder: Folder, tmp_path: Path):
    for name in ("grpo/best", "sft/best"):
        shutil.copytree(model_folder("llama"), tmp_path / "run" / name)
    for damage in ("", "{", "[" * 100_000, None):
        config = tmp_path / "run" / "grpo" / "best" / "config.json"
        config.unlink() if damage is None else config.write_text(damage)
        model = find_model(tmp_path / "run")
        assert model == tmp_path / "run" / "grpo" / "best"
        with pytest.raises(ConfigError, match="there is no model in"):
            load_model(model)
