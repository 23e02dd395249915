"""`gradus init`: what it sees in data and environments, and that its recipe can be used at once."""

import json
from dataclasses import replace

import pytest

from gradus.core import Condition, ConfigError
from gradus.environments import load
from gradus.pipeline.first_recipe import find_columns, write_first_recipe
from gradus.pipeline.recipe_files import load_recipe
from gradus.pipeline.starter import starter


def rows(path, columns):
    if path.suffix == ".csv":
        header = ",".join(columns[0])
        path.write_text("\n".join([header, *(",".join(map(str, row.values())) for row in columns)]))
    else:
        path.write_text("\n".join(map(json.dumps, columns)))
    return path


def test_labels_in_a_csv(tmp_path):
    data = rows(
        tmp_path / "mail.csv", [{"text": f"is {n} even", "label": ("no", "yes")[n % 2 == 0]} for n in range(80)]
    )
    said = " ".join(write_first_recipe(str(data), tmp_path / "recipe.toml", model=None, overwrite=False))
    assert "column 'text'" in said
    assert "2 different answers" in said
    assert "worked solutions" in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert recipe.spec().teacher == "gold"  # gold answers teach
    assert recipe.sft.epochs * recipe.teach.episodes / recipe.sft.batch_size > 100  # enough steps to learn something
    assert recipe.grpo.first_task >= recipe.teach.episodes
    with pytest.raises(ConfigError, match="there already"):
        write_first_recipe(str(data), tmp_path / "recipe.toml", model=None, overwrite=False)


def test_chat_messages_and_worked_solutions_in_jsonl(tmp_path):
    columns = [
        {"messages": [{"role": "user", "content": f"{n} + 1"}], "solution": f"count on from {n}", "answer": n + 1}
        for n in range(80)
    ]
    data = rows(tmp_path / "chat.jsonl", columns)
    said = " ".join(write_first_recipe(str(data), tmp_path / "recipe.toml", model="owner/name", overwrite=False))
    assert "chat messages" in said
    assert "missing: worked" not in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert recipe.spec().teacher == "teacher"
    assert recipe.model.path == "owner/name"
    assert not recipe.teach.enabled
    assert recipe.grpo.lr < 1e-4  # not the rate of a nano model


def test_few_rows_and_columns_that_say_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"none of the columns a, b is known as the question"):
        find_columns([{"a": 1, "b": 2}])
    data = rows(tmp_path / "few.jsonl", [{"question": f"{n}", "answer": f"{n * 7 % 30}"} for n in range(40)])
    said = " ".join(write_first_recipe(str(data), tmp_path / "recipe.toml", model=None, overwrite=False))
    assert "missing: rows" in said


def test_own_data_without_a_recipe_gets_settings_that_can_learn_and_a_quick_form(tmp_path):
    data = rows(tmp_path / "sums.jsonl", [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(80)])
    whole, quick = (load_recipe(f"jsonl:{data}", quick=small) for small in (False, True))
    assert whole.sft.epochs * whole.teach.episodes / whole.sft.batch_size > 100
    assert (quick.grpo.max_steps, quick.teach.episodes) < (whole.grpo.max_steps, whole.teach.episodes)


def test_an_environment_with_few_seeds_gets_no_more_episodes_than_it_has():
    few = replace(load("arithmetic"), recipe=None, conditions={"main": Condition(name="main", seeds=range(7))})
    recipe = starter("arithmetic", few)
    assert recipe["eval"]["episodes"] == recipe["lm"]["eval"]["episodes"] == 7
