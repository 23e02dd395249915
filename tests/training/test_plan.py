"""Forecasts: every term follows from shapes, what does not fit is refused by name, and memory is what a run really takes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_qwen2 import make_tiny_qwen2
from transformers import AutoModelForCausalLM

import gradus
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.runs.forecast.memory import cache_bytes, check_fits, memory_forecast, rows_at_once
from gradus.runs.forecast.model import lengths_of
from gradus.runs.forecast.subject import Circumstances, Subject
from gradus.runs.shapes import GIB, Hardware, Lengths, ModelShape, read_shape
from gradus.training.config import GrpoConfig

GPU = Hardware(name="gpu", kind="cuda", memory=22 * GIB)
ADAPTERS = {
    "groups": 8,
    "group_size": 8,
    "token_budget": 2048,
    "dtype": "bfloat16",
    "lora": {"rank": 16, "alpha": 32},
    "gradient_checkpointing": True,
    "sampling": {"max_new_tokens": 512},
}
# Qwen2.5-3B's shape
THREE_B = ModelShape(
    name="3b",
    architecture="qwen2",
    parameters=3_085_938_688,
    matrices=2_774_532_096,
    hidden=2048,
    layers=36,
    kv_heads=2,
    head_dim=128,
    intermediate=11008,
    vocabulary=151_936,
    context=32_768,
    finishes_logits=False,
    adapter_width=36 * (4096 + 2304 + 2304 + 4096 + 3 * 13_056),
)
LENGTHS = Lengths(prompt=200, answer=512)


def adapters(**changes: object) -> GrpoConfig:
    return GrpoConfig.model_validate({**ADAPTERS, **changes})


def test_a_shape_is_read_without_weights(tmp_path: Path) -> None:
    folder = make_tiny_qwen2(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    shape = read_shape(folder)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (shape.layers, shape.kv, shape.vocabulary, shape.context) == (2, 16, 320, 512)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_shape(tmp_path / "nowhere")


def test_adapters_of_a_shape_are_those_that_peft_makes(tmp_path: Path) -> None:
    from peft.tuners.lora import Linear

    from gradus.training.engine.prepare import prepare_model
    from gradus.training.lesson_config import SftConfig
    from gradus.training.trainer_config import LoraConfig

    folder = make_tiny_qwen2(tmp_path / "model")
    loaded = prepare_model(folder, SftConfig(lora=LoraConfig(rank=4)))
    trained = sum(each.numel() for each in loaded.model.parameters() if each.requires_grad)
    assert any(isinstance(module, Linear) for module in loaded.model.modules())
    assert trained == 4 * read_shape(folder).adapter_width


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora": None}, "grpo.lora="),
        ({"token_budget": 200_000, "gradient_checkpointing": False}, "set grpo.gradient_checkpointing=true"),
        ({"groups": 512, "sampling": {"max_new_tokens": 30_000}, "token_budget": 1024}, "grpo.batch_size="),
    ],
)
def test_what_does_not_fit_names_the_setting(changes: dict[str, object], said: str) -> None:
    config = adapters(**changes)
    lengths = replace(LENGTHS, answer=config.sampling.max_new_tokens)
    with pytest.raises(ConfigError, match=said):
        check_fits(memory_forecast(THREE_B, config, lengths, GPU), config)


def test_prompts_beyond_the_context_are_fitted_to_no_card(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"question": "{n} {"word " * 300}", "answer": "{n}"}}\n' for n in range(60)))
    with pytest.raises(ConfigError, match="the model's context holds 64"):
        make_job(rows, settings={"model.nano.context": 64}, memory="24GB")
    with pytest.raises(ConfigError, match="gigabytes, as in 24GB, got 'much'"):
        make_job("arithmetic", memory="much")


def test_a_check_is_of_the_card_that_is_named(tmp_path: Path) -> None:
    model = make_tiny_qwen2(tmp_path / "model", context=2048)
    findings = gradus.check("arithmetic", model=model, quick=True, memory="24GB").findings
    assert "of a card of 24GB" in next(finding for finding in findings if finding.subject == "memory").evidence


def test_more_of_anything_is_never_less_memory() -> None:
    def total(config: GrpoConfig, lengths: Lengths = LENGTHS) -> float:
        return sum(memory_forecast(THREE_B, config, lengths, GPU).memory.values())

    base = adapters()
    assert total(adapters(token_budget=16_384)) >= total(base)
    assert total(adapters(group_size=16)) >= total(base)
    assert total(adapters(lora=None)) > total(base)
    assert total(adapters(gradient_checkpointing=False)) > total(base)
    assert total(base, Lengths(prompt=200, answer=2048)) >= total(base)
    assert total(adapters(lora=None, kl_coef=0.01)) > total(adapters(lora=None))
    assert total(adapters(kl_coef=0.01)) == total(base)  # the model itself, with the adapters it began with


def test_every_term_is_counted() -> None:
    """Masters, four-bit weights, a bounded cache, and many words, of which no copy is kept."""

    def memory(**changes: object) -> dict[str, float]:
        return memory_forecast(THREE_B, adapters(**changes), LENGTHS, GPU).memory

    weights = THREE_B.parameters
    assert memory(lora=None)["masters"] == 4 * weights
    assert "masters" not in memory()
    assert "masters" not in memory(lora=None, dtype="float32")
    assert memory(quantize="4bit")["weights"] < memory()["weights"] / 2
    caches = [
        cache_bytes(THREE_B, LENGTHS, 2, rows_at_once(config))
        for bound in ({}, {"batch_size": 8})
        for config in [adapters(groups=64, **bound)]
    ]
    assert max(caches[1:]) < caches[0] / 5
    large = memory_forecast(THREE_B, adapters(token_budget=16_384), LENGTHS, GPU).memory
    assert large["logits"] < 4 * THREE_B.vocabulary * THREE_B.hidden


def test_a_run_is_fitted_to_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_qwen2(tmp_path / "model", context=2048)
    settings = {"grpo.token_budget": 60_000, "grpo.groups": 64, "grpo.dtype": "bfloat16"}
    free = make_job("arithmetic", model=model, settings=settings)
    subject = Subject(free, tmp_path, Circumstances())
    needed = memory_forecast(subject.shape, free.recipe.grpo, lengths_of(subject), GPU).peak / GIB
    fitted = make_job("arithmetic", model=model, settings=settings, memory=f"{needed / 2:.4f}GB").recipe
    told = capsys.readouterr().err.strip().splitlines()[-1].split(": ", 1)[1].split()
    changes = dict(each.split("=", 1) for each in told)
    assert any(key.startswith("grpo.") for key in changes)
    for key, value in changes.items():
        stage, name = key.split(".")
        reached = getattr(getattr(fitted, stage), name)
        assert reached is not None if name == "lora" else str(reached).lower() == value
    assert fitted.grpo.groups == free.recipe.grpo.groups
    with pytest.raises(ConfigError, match="would need"):
        make_job("arithmetic", model=model, settings=settings, memory="0.0001GB")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 16 bits are slow on a CPU without instructions for them
def test_memory_is_forecast_within_a_quarter() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "plan_memory.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    ratios = json.loads(done.stdout.splitlines()[-1])["ratios"]
    assert len(ratios) >= 5
    assert all(0.75 < ratio < 1.25 for ratio in ratios.values()), ratios
