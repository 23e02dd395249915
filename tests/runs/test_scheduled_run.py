"""Stages, adaptive weights and own rewards in a recipe: understood, refused with a reason, paid, written down and drawn."""

import re
from pathlib import Path

import pytest

import gradus
from gradus.core import ConfigError
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.runner import run_stages

TINY = """
environment = "arithmetic:digits=1"

[model.nano]
hidden_size = 16
layers = 1
heads = 2
intermediate_size = 32
context = 64

[audit]
enabled = false

[teach]
episodes = 8

[sft]
max_steps = 2
batch_size = 4

[grpo]
groups = 2
group_size = 2
validation_every = 0
store_every = 0

[grpo.sampling]
max_new_tokens = 6

[eval]
policies = ["sft", "grpo"]
conditions = ["held-out"]
episodes = 2
shown = 1
"""
STAGES = """
[adaptive]

[[stage]]
name = "form"
steps = 1
weights = { format = 1.0, incremental_format = 1.0 }

[[stage]]
name = "sums"
steps = 2
lr = 5e-4
carry_optimizer = false
"""


def recipe(text: str, folder: Path, *changes: str) -> Recipe:
    path = folder / "recipe.toml"
    path.write_text(TINY + text)
    return load_recipe(None, path=path, changes=changes)


def test_a_run_follows_its_stages_and_the_report_shows_them(tmp_path: Path) -> None:
    result = recipe(STAGES, tmp_path)
    assert result.grpo.max_steps == 3  # as long as the stages
    folder = run_stages(resolve(result), tmp_path / "run")
    steps = gradus.load_run(folder).metrics()
    assert [line["stage"] for line in steps] == ["form", "sums", "sums"]
    assert [line["lr"] for line in steps] == [3e-4, 5e-4, 5e-4]
    assert steps[0]["weights"] == {"correct": 0.0, "format": 1.0, "incremental_format": 1.0}
    assert steps[1]["weights"] == {"correct": 2.0, "format": 0.5, "incremental_format": 0.5}
    assert steps[2]["weights"] == {"correct": 2.4, "format": 0.6, "incremental_format": 0.6}  # nothing succeeds yet
    page = (folder / "report.html").read_text()
    assert "Weights of the components" in page
    assert re.search(r'"marks":\s*\[\{"x":\s*1.0,\s*"name":\s*"form"\},\s*\{"x":\s*2.0,\s*"name":\s*"sums"\}\]', page)
    assert load_recipe(None, path=folder / "recipe.toml").model_dump() == result.model_dump()
    with pytest.raises(ConfigError, match=r"stage was .*form.*, is now"):
        run_stages(resolve(recipe(STAGES, tmp_path, "stage.0.name=shape")), folder)


def test_ones_own_rewards_are_the_grader(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def short(completions, **columns):\n    return [-len(text) for text in completions]\n"
    )
    result = recipe("", tmp_path, f'rewards=["correctness=2", ["format", 0.5], "{tmp_path}/mine.py:short=0.01"]')
    spec = resolve(result).environment
    grader = spec.grader(result.grader)
    assert (grader.name, dict(grader.weights)) == ("rewards", {"correct": 2.0, "format": 0.5, "short": 0.01})
    assert spec.grader("composed").name == "composed"
    with pytest.raises(ConfigError, match="got both; leave out grader = 'composed'"):
        recipe("", tmp_path, 'rewards=["correctness"]', "grader=composed")
    several = resolve(
        load_recipe("rhythm", changes=['rewards=["correctness"]', 'grader="rewards"', "promises=[]"])
    ).environment
    assert not several.grader().per_turn  # the reward of several turns stands at the last one


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["stage.0.weigths={format=1.0}"], r"stage\.0\.weigths: unknown key, did you mean weights\?$"),
        (["stage.0.steps=0"], r"stage\.0\.steps: .*greater than or equal to 1, got 0"),
        (["grpo.max_steps=5"], r"1 \+ 2 = 3 steps and grpo\.max_steps is 5; leave max_steps out"),
        (['stage.1={name="sums"}', "grpo.max_steps=1"], "leaves none of grpo.max_steps = 1 for 'sums'"),
    ],
)
def test_a_schedule_that_cannot_be_used_says_why(changes: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(STAGES, tmp_path, *changes)


def test_what_only_the_grader_can_know_fails_before_anything_is_done(tmp_path: Path) -> None:
    job = resolve(recipe(STAGES, tmp_path, "stage.0.weights={tone=1.0}"))
    with pytest.raises(ConfigError, match="component 'tone'; the grader has correct, format, incremental_format"):
        run_stages(job, tmp_path / "run")
    assert not (tmp_path / "run" / "teach").exists()
