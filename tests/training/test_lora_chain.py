"""A model warm-started through adapters goes on through the same adapters, and any part that loads models takes such a folder."""

from pathlib import Path

import pytest
import torch
from tiny_qwen2 import make_tiny_qwen2
from transformers import AutoModelForCausalLM

from gradus import environments
from gradus.core import ConfigError
from gradus.policies.local.export import export_model, logp_diff
from gradus.policies.local.folders import adapter_base
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.engine.prepare import prepare_model
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run.checkpoints import save_model
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft
from gradus.training.trainer_config import LoraConfig

LORA = LoraConfig(rank=4, alpha=8)
SPEC = environments.load("arithmetic:digits=1")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen2(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def warm_started(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = roll_out(SPEC, SPEC.policy("teacher"), [SPEC.train_task(index) for index in range(12)]).episodes
    folder = tmp_path_factory.mktemp("sft")
    config = SftConfig(lora=LORA, epochs=2, batch_size=4, lr=1e-2)
    return train_sft(base, episodes, config, folder / "run", options=RunOptions(live=False)).final


def test_grpo_goes_on_through_the_adapters_of_sft(base: Path, warm_started: Path, tmp_path: Path) -> None:
    settings = {"max_steps": 1, "groups": 2, "group_size": 4, "validation_every": 0, "store_every": 0, "lr": 1e-2}
    config = GrpoConfig(lora=LORA, entropy_coef=0.1, sampling=SamplingConfig(max_new_tokens=6), **settings)
    result = train_grpo(warm_started, SPEC, config, tmp_path / "run", options=GrpoOptions(live=False))
    before, after = (load_model(folder).model.state_dict() for folder in (warm_started, result.final))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert not list(result.final.glob("model*.safetensors"))
    exported = export_model(result.final, tmp_path / "plain")
    assert exported.merged
    ids = torch.tensor([[5, 9, 77, 30]])
    with torch.inference_mode():
        merged, unmerged = (load_model(folder).model(input_ids=ids).logits for folder in (exported.path, result.final))
    assert logp_diff(merged, unmerged) <= 1e-4


def test_adapters_go_on_the_layers_that_are_named(base: Path) -> None:
    model = prepare_model(str(base), SftConfig(lora=LoraConfig(rank=2, targets=("q_proj",)))).model
    adapted = {
        name.partition(".lora_")[0].rpartition(".")[2] for name, each in model.named_parameters() if each.requires_grad
    }
    assert adapted == {"q_proj"}


def test_adapters_of_a_relative_path_are_loaded_from_another_folder(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    loaded = prepare_model(base.name, SftConfig(lora=LORA))
    save_model(tmp_path / "adapters", loaded)
    monkeypatch.chdir(tmp_path)
    assert adapter_base(tmp_path / "adapters") == str(base)
    load_model("adapters")


def test_an_adapter_folder_plays(warm_started: Path) -> None:
    policy = LocalPolicy(load_model(warm_started), SamplingConfig(max_new_tokens=4), name="warm_started")
    (episode,) = roll_out(SPEC, policy, SPEC.tasks("held-out", 1)).episodes
    assert episode.failure is None


@pytest.mark.parametrize(
    ("lora", "told"), [(None, "of rank 4 and alpha 8"), (LoraConfig(rank=8, alpha=8), "of rank 4 and alpha 8")]
)
def test_other_adapters_than_those_there_are_refused(
    warm_started: Path, tmp_path: Path, lora: LoraConfig | None, told: str
) -> None:
    config = GrpoConfig(lora=lora, max_steps=1, groups=2, group_size=2, validation_every=0)
    with pytest.raises(ConfigError, match=f"has adapters {told}"):
        train_grpo(warm_started, SPEC, config, tmp_path / "run", options=GrpoOptions(live=False))


@pytest.mark.parametrize("kind", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_adapters_that_a_server_would_get_wrong_are_refused(
    base: Path, tmp_path: Path, kind: dict[str, object]
) -> None:
    """Their weights were written as if they were plain ones: up to a nat beside what was trained."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    wanted = PeftConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", **kind)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), wanted).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="are not plain LoRA; merge"):
        prepare_model(tmp_path, GrpoConfig(lora=LORA))
