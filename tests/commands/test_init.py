"""`gradus init`: its recipe can be used at once, and it says what is missing."""

import json

import pytest

import gradus
from gradus.commands import init
from gradus.core import ConfigError
from gradus.environments import load
from gradus.environments.verifiable.rows import gold_column
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe


def rows(path, columns):
    path.write_text("\n".join(map(json.dumps, columns)))
    return path


def test_its_recipe_can_be_used_at_once_and_takes_no_place(tmp_path):
    data = rows(tmp_path / "even.jsonl", [{"question": f"is {n} even", "answer": n % 2} for n in range(80)])
    init(str(data), out=tmp_path / "recipe.toml", model=None, overwrite=False)
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert resolve(recipe).environment.teacher == "gold"  # gold answers teach
    assert recipe.sft.epochs * recipe.teach.episodes / recipe.sft.batch_size > 100  # enough steps to learn something
    assert recipe.grpo.first_task >= recipe.teach.episodes
    with pytest.raises(ConfigError, match="there already"):
        init(str(data), out=tmp_path / "recipe.toml", model=None, overwrite=False)
    with pytest.raises(ConfigError, match="convert it"):
        init("rows.arrow", out=tmp_path / "other.toml")


def test_a_given_model_gets_no_rate_of_a_nano_model(tmp_path):
    columns = [
        {"prompt": [{"role": "user", "content": f"{n} + 1"}], "worked": f"count on from {n}", "answer": n + 1}
        for n in range(80)
    ]
    data = rows(tmp_path / "chat.jsonl", columns)
    assert init(str(data), out=tmp_path / "recipe.toml", model="owner/name", overwrite=False) == []
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert resolve(recipe).environment.teacher == "teacher"
    assert recipe.model.path == "owner/name"
    assert not recipe.teach.enabled
    assert recipe.grpo.lr < 1e-4


def test_a_language_model_that_sorts_is_told_the_labels_and_taught_them_first(tmp_path):
    """It got 256 tokens, no SFT, a prompt without the labels, and a base at 0.00."""
    labels = ("light_on", "light_off", "lock_the_door")
    data = rows(tmp_path / "home.jsonl", [{"text": f"message {n}", "label": labels[n % 3]} for n in range(80)])
    said = " ".join(init(str(data), out=tmp_path / "recipe.toml", model="owner/name", overwrite=False))
    assert "Reply with one of these labels" in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    job = resolve(recipe)
    assert all(label in job.environment.data_set.system_prompt for label in labels)
    assert job.grader.name == "rewards"
    assert recipe.grpo.sampling.max_new_tokens == 16
    assert recipe.teach.enabled
    assert recipe.teach.episodes <= 80
    assert "sft" in recipe.eval.policies


@pytest.mark.parametrize("answers", [("A", "B", "C"), ("1", "2", "3"), ("Q1", "Q2", "Q3")])
def test_letters_and_numbers_are_not_labels(answers, tmp_path):
    data = rows(tmp_path / "quiz.jsonl", [{"question": f"ask {n}", "answer": answers[n % 3]} for n in range(80)])
    init(str(data), out=tmp_path / "recipe.toml", model="owner/name", overwrite=False)
    assert not (tmp_path / "recipe.prompt.txt").exists()


def test_what_an_environment_lacks_is_said(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Door:\n    def reset(self, seed):\n        return 'open or shut ?'\n"
        "    def step(self, action):\n        return '', float(action == 'open'), True\n"
    )
    said = " ".join(init(str(tmp_path / "mine.py"), out=tmp_path / "recipe.toml"))
    assert "missing: a vocabulary" in said
    assert "missing: a view" in said


def test_a_gold_column_of_a_usual_name_is_taken_and_said(tmp_path, capsys):
    """Of rows in TRL's form an audit with a reward function had no gold answers."""
    stored = [{"prompt": f"{n} + 1", "solution": str(n + 1), "category": "sums"} for n in range(60)]
    file = rows(tmp_path / "sums.jsonl", stored)
    assert load(f"jsonl:{file}").teacher == "gold"
    assert gradus.one_turn(stored, [lambda completions, **_: [0.0] * len(completions)]).teacher == "gold"
    assert "gold answers are taken from the column 'solution'" in capsys.readouterr().err
    assert load(f"jsonl:{file}?answer=").teacher is None
    assert gold_column([*stored, {"prompt": "?", "solution": ""}]) is None
