"""The page of TRL's names says each, and what it names are keys."""

import re
import tomllib
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest
from transformers import TrainingArguments
from trl import GRPOConfig

from gradus.core import ConfigError
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe

PAGE = (Path(__file__).parents[2] / "docs/reference/trl.md").read_text(encoding="utf-8")
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


def test_what_the_page_names_is_a_key() -> None:
    """Of the keys of GRPO's own settings; sections within it are looked at as a whole."""
    for name in set(re.findall(r"`(?:grpo|eval)\.[a-z_.]+", PAGE)):
        kind = Recipe
        for part in name.removeprefix("`").split("."):
            kind = kind.model_fields[part].annotation


def test_every_setting_of_trl_stands_on_the_page() -> None:
    general = {each.name for each in fields(TrainingArguments)}
    own = {each.name for each in fields(GRPOConfig)} - general - LOADING
    missing = [name for name in own if not name.startswith(MACHINERY) and f"`{name}" not in PAGE]
    assert not missing


NAMES = tomllib.loads(resources.files("gradus.runs.recipe").joinpath("trl_names.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_trl_is_answered_with_ours(name: str) -> None:
    """The page said so, and the message listed all keys."""
    assert f"`{name}" in PAGE
    if name in ("max_steps", "temperature", "top_p", "top_k", "entropy_coef", "gradient_checkpointing"):
        return  # a key of ours has this name
    with pytest.raises(ConfigError, match=rf"it is TRL's name, and {re.escape(NAMES[name])} here"):
        load_recipe("arithmetic", changes=[f"grpo.{name}=1"])
