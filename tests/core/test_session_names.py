"""Objects of a session have names; a run does not take what was named later."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

import gradus
from gradus import environments
from gradus.commands.environments import as_name
from gradus.commands.training import make_recipe
from gradus.core import ConfigError
from gradus.environments import registry
from gradus.runs.stages.context import RunContext, section_of
from gradus.runs.stages.runner import do_stages


@pytest.fixture(autouse=True)
def _other_tests_see_no_names_of_these(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


def rows(word):
    return [{"question": f"{word} {n}?", "answer": word} for n in range(60)]


def brief(completions, **_):
    return [float(len(text) < 9) for text in completions]


@pytest.mark.parametrize("rewards", [[], [(brief, 2.0), "correctness"]])
def test_a_run_is_not_evaluated_on_rows_that_were_named_later(tmp_path, rewards):
    recipe = make_recipe(rows("apple"), rewards=rewards, settings={"grpo.max_steps": 1})
    folder = tmp_path / "run"
    (folder / "teach").mkdir(parents=True)
    run = RunContext(recipe, folder, redo=False, console=Console(quiet=True))
    do_stages(run, {"teach": (lambda run, cost: None, section_of("teach"))})
    results = gradus.evaluate("gold", env=rows("apple"), episodes=2).to_json()
    (folder / "results.json").write_text(json.dumps(results))
    found = gradus.commands.comparing._environment_of([gradus.load_run(folder)])
    assert found.data_set.splits["train"][0].question.startswith("apple")
    as_name(rows("berry"))
    with pytest.raises(
        ConfigError, match=r"'rows' is not what .* other rows; give the environment or the data as env="
    ):
        gradus.evaluate([gradus.load_run(folder)], episodes=2)


@pytest.mark.parametrize("name", ["jsonl", "arithmetic"])
def test_an_environment_of_ones_own_does_not_replace_one_of_gradus(name):
    mine = replace(gradus.load_environment("arithmetic"), name=name, summary="mine")
    with pytest.raises(ConfigError, match="comes with Gradus"):
        as_name(mine)
    assert as_name(replace(mine, name="mine")) == "mine"
    assert environments.load("mine").summary == "mine"
    assert environments.load("arithmetic").summary != "mine"
