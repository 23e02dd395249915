"""`gradus run gsm8k --model PATH` with a tiny chat model: every stage, adapters and report, also with a template that forgets."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_qwen2 import FORGETFUL, make_tiny_qwen2

from gradus import commands
from gradus.policies.local.export import export_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.settings import read_settings
from gradus.policies.local.shelf import ShelvedPolicy
from gradus.runs.job import resolve
from gradus.runs.policies import make_policy
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.context import RunContext, run_policies
from gradus.runs.stages.runner import run_stages

EXCERPT = Path(__file__).parents[1] / "data" / "gsm8k_excerpt.jsonl"
SMALL = [
    "sft.max_steps=2",
    "sft.lora.rank=2",
    "grpo.lora.rank=2",
    "grpo.sampling.max_new_tokens=8",
    'eval.policies=["sft", "grpo", "grpo-greedy", "gold"]',
    'eval.conditions=["held-out"]',
    'eval.pairs=["grpo-sft"]',
]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen2(tmp_path_factory.mktemp("qwen") / "model", context=2048)


@pytest.mark.parametrize("remembers", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_whole_path_runs(remembers: bool, qwen: Path, tmp_path: Path) -> None:
    model = shutil.copytree(qwen, tmp_path / "model")
    if not remembers:
        (model / "chat_template.jinja").write_text(FORGETFUL)
    recipe = load_recipe(f"gsm8k:{EXCERPT}", quick=True, changes=[f"model.path={model}", *SMALL])
    run = run_stages(resolve(recipe), tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    policies = results["conditions"]["held-out"]["policies"]
    assert list(policies) == ["base", "sft", "grpo", "grpo-greedy", "gold"]  # base: the model as it was given
    stored = read_settings(run / "grpo" / "best")
    assert stored == read_settings(run / "sft" / "best")
    assert (stored.environment, stored.sampling) == (recipe.environment, recipe.grpo.sampling)
    assert stored.system_prompt.startswith("Answer the question.")
    spec = resolve(recipe).environment
    policy = make_policy(spec, str(run))
    assert isinstance(policy, LocalPolicy)
    assert policy.sampling == recipe.grpo.sampling  # 64 tokens in the first edition, whatever the student was given
    exported = export_model(run / "grpo" / "best", tmp_path / "out")
    config = json.loads((exported.path / "generation_config.json").read_text())
    assert config["max_new_tokens"] == 256  # a conversation has room
    assert read_settings(exported.path) == stored
    assert policies["gold"]["true_reward"]["mean"] == 1.0
    assert "grpo - sft" in results["conditions"]["held-out"]["pairs"]
    assert (run / "grpo" / "best" / "adapter_config.json").is_file()
    assert "<svg" in (run / "report.html").read_text()
    if not remembers:  # what was trained so is loaded so, without being told again
        assert load_model(run / "grpo" / "best").settings.keep_history


@pytest.mark.parametrize(("dtype", "autocast"), [("auto", False), ("bfloat16", False), ("float32", True)])
def test_a_run_is_evaluated_and_served_in_its_precision(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, autocast: bool
) -> None:
    """A run of 16 bits on a CPU, or of float32 on a card, was evaluated in what the device prefers; chat and serve still did so."""
    changes = [f"grpo.dtype={dtype}", f"grpo.autocast={str(autocast).lower()}", "grpo.device=cpu"]
    recipe = load_recipe(f"gsm8k:{EXCERPT}", changes=[f"model.path={qwen}", *changes])
    folder = tmp_path / "run"
    run = RunContext(resolve(recipe), folder, redo=False, console=Console(quiet=True))
    shutil.copytree(qwen, folder / "grpo" / "best")
    (folder / "grpo" / "config.json").write_text(recipe.grpo.model_dump_json())
    wanted = (torch.bfloat16 if dtype == "bfloat16" else torch.float32, autocast)
    for policy in run_policies(run, ["base", "grpo"]).values():
        assert isinstance(policy, ShelvedPolicy)
        assert (policy.loaded.dtype, policy.loaded.autocast) == wanted
    again = make_policy(resolve(recipe).environment, str(folder))
    assert isinstance(again, LocalPolicy)
    assert (again.loaded.dtype, again.loaded.autocast) == wanted
    shutil.copytree(qwen, folder / "sft" / "best")
    (folder / "sft" / "config.json").write_text(recipe.sft.model_copy(update={"autocast": True}).model_dump_json())
    warm = make_policy(resolve(recipe).environment, str(folder / "sft" / "best"))
    assert isinstance(warm, LocalPolicy)
    assert not warm.loaded.autocast, "only GRPO samples under its autocast, and the run is evaluated as GRPO samples"
    talked: list[LoadedModel] = []

    def talk(loaded: LoadedModel, **options: Any) -> list[dict[str, str]]:
        talked.append(loaded)
        return []

    monkeypatch.setattr("gradus.interop.serving.text.chat_loop", talk)
    commands.chat(folder)
    assert (talked[0].dtype, talked[0].autocast) == wanted
