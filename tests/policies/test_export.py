"""An exported folder is an ordinary Hugging Face folder that says what the checkpoint says."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from tiny_qwen2 import make_tiny_qwen2
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradus.core import ConfigError, StorageError
from gradus.interop.push import plan_push
from gradus.policies.local.export import export_model, logp_diff
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import ModelSettings, write_settings

# peft 0.21 reads an attribute that transformers 5.23 calls by another name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen2(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA folder whose adapters do something."""
    folder = tmp_path_factory.mktemp("models") / "adapter"
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([[5, 9, 200, 30, 31, 7, 8]])).logits


def test_merged_equals_unmerged(base: Path, adapter: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    result = export_model(adapter, tmp_path / "out")
    assert result.merged
    assert result.gap is not None
    assert result.gap <= 1e-4
    plain = AutoModelForCausalLM.from_pretrained(base)
    untouched = logits(plain)
    unmerged = logits(PeftModel.from_pretrained(plain, adapter))
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    assert logp_diff(merged, unmerged) <= 1e-4
    assert logp_diff(merged, untouched) > 0.1  # the adapters do something
    assert not (tmp_path / "out" / "adapter_config.json").exists()


def test_the_generation_config_stops_and_draws_as_the_policy_did(base: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(base, tmp_path / "model"))
    write_settings(model, ModelSettings(sampling=SamplingConfig(temperature=0.7, top_p=0.9, max_new_tokens=300)))
    export_model(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = {"eos_token_id": [tokenizer.eos_token_id], "temperature": 0.7, "top_p": 0.9, "do_sample": True}
    assert config.items() >= {**expected, "max_new_tokens": 300}.items()
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template


def test_a_plain_model_is_copied_exactly(base: Path, tmp_path: Path) -> None:
    result = export_model(base, tmp_path / "out")
    assert (result.merged, result.gap) == (False, None)
    one, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (base, tmp_path / "out"))
    assert torch.equal(logits(one), logits(other))


def test_the_cards_example_asks_as_the_model_was_trained(base: Path, tmp_path: Path) -> None:
    """Its system prompt and template options were left out, so that whoever copied it asked another model."""
    model = tmp_path / "model"
    shutil.copytree(base, model)
    fast = "{%- if add_generation_prompt and thinking is false -%}fast{%- endif -%}"
    template = (model / "chat_template.jinja").read_text() + fast
    (model / "chat_template.jinja").write_text(template)
    sampling = SamplingConfig(max_new_tokens=3, greedy=True)
    settings = ModelSettings(system_prompt="Be brief.", sampling=sampling, keep_history=True)
    write_settings(model, settings.model_copy(update={"template_options": {"thinking": False}}))
    export_model(model, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0]
    assert code in str(plan_push(tmp_path / "out", "a/out").files["README.md"]).replace("a/out", "out")
    said = []
    exec(code.replace('model="out"', f"model={str(tmp_path / 'out')!r}"), {"print": said.append})
    loaded = load_model(tmp_path / "out")
    ids = torch.tensor([loaded.renderer.first("Be brief.", "...")])
    assert loaded.tokenizer.decode(ids[0]).endswith("fast")
    spoken = loaded.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert said == [loaded.tokenizer.decode(spoken[0, ids.shape[1] :], skip_special_tokens=True)]


def test_what_was_pushed_is_no_damaged_folder_but_damaged_adapters_are(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    """An upload has a card of its own, so that a downloaded model was refused; adapters were not looked at."""
    export_model(base, tmp_path / "out")
    (tmp_path / "there").mkdir()
    for path, file in plan_push(tmp_path / "out", "a/b").files.items():
        (tmp_path / "there" / path).write_bytes(file.encode() if isinstance(file, str) else file.read_bytes())
    load_model(tmp_path / "there")
    export_model(adapter, tmp_path / "apart", merge=False)
    (tmp_path / "apart" / "gradus.json").write_text("{}")
    with pytest.raises(StorageError, match=r"damaged: gradus\.json"):
        load_model(tmp_path / "apart")


def test_adapters_may_stay_apart_and_are_pushed_without_the_folder_of_their_base(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gradus export"):
        plan_push(adapter, "a/b")
    assert not export_model(adapter, tmp_path / "out", merge=False).merged
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert not list((tmp_path / "out").glob("model*.safetensors"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "base_model" not in yaml.safe_load(card.split("---")[1])


def test_what_is_there_is_not_overwritten_unasked(base: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        export_model(base, tmp_path)
    out = tmp_path / "out"
    export_model(base, out)
    export_model(base, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note.txt", "out"]  # nothing is left aside
