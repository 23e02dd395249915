"""TRL's names: who types one is told ours, and the page says each."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from transformers import TrainingArguments
from trl import GRPOConfig

import gradus
from gradus.core import ConfigError
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.runs.recipe.trl_names import TRL_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "trl_names.md").read_text(encoding="utf-8")
MACHINERY = (
    "vllm_",
    "ds3_",
    "use_transformers_",
    "transformers_",
    "ref_model_",
    "entropy_coef_",
    "sapo_",
    "vespo_",
    "log_",
)
LOADING = {
    "model_init_kwargs", "trust_remote_code", "cast_lm_head_to_fp32", "shuffle_dataset", "pad_to_multiple_of",
    "num_completions_to_print", "entropy_target",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("grpo.beta", "grpo.kl_coef"),  # "did you mean betas?" was the answer
        ("grpo.temperature", "grpo.sampling.temperature"),
        ("learning_rate", "grpo.lr"),
        ("sft.learning_rate", "sft.lr"),
        ("sft.num_train_epochs", "sft.max_steps"),
    ],
)
def test_a_recipe_answers_to_a_name_of_trl(key: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"TRL's {key.rpartition('.')[2]} is {ours} here"):
        load_recipe("arithmetic", changes={key: 1})


def test_a_call_answers_to_a_name_of_trl() -> None:
    with pytest.raises(ConfigError, match=r"TRL's num_generations is grpo\.group_size here, a key of settings"):
        gradus.train(None, "arithmetic", num_generations=8)


def test_what_is_answered_is_a_key_and_stands_on_the_page() -> None:
    for name, key in TRL_NAMES.items():
        kind = Recipe
        for part in key.split("."):
            field = kind.model_fields[part]
            kind = field.annotation
        assert f"`{name}" in PAGE, name
        assert f"`{key}" in PAGE or f"`.{key.rpartition('.')[2]}`" in PAGE or key == "rewards", key


def test_every_setting_of_trl_stands_on_the_page() -> None:
    general = {each.name for each in fields(TrainingArguments)}
    own = {each.name for each in fields(GRPOConfig)} - general - LOADING
    missing = [name for name in own if not name.startswith(MACHINERY) and f"`{name}" not in PAGE]
    assert not missing
