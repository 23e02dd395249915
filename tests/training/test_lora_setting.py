"""`grpo.lora = true` stands for an adapter of the default rank."""

import pytest

from gradus.runs.recipe.load import load_recipe
from gradus.training.trainer_config import LoraConfig


@pytest.mark.parametrize("section", ["sft", "grpo"])
def test_true_is_the_default_adapter_and_false_is_none(section):
    for word, lora in (("true", LoraConfig()), ("false", None)):
        recipe = load_recipe("arithmetic", changes=[f"{section}.lora={word}"])
        assert getattr(recipe, section).lora == lora
    assert getattr(load_recipe("arithmetic", changes=[f"{section}.lora.rank=4"]), section).lora.rank == 4
