"""`gradus init`: what it sees in data and environments, and that its recipe can be used at once."""

import gzip
import json
from dataclasses import replace

import pytest

import gradus
from gradus.commands import init
from gradus.core import Condition, ConfigError
from gradus.environments import load
from gradus.environments.verifiable import check_tasks
from gradus.environments.verifiable.rows import gold_column
from gradus.runs.recipe.first import find_columns
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.starter import starter


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
    said = " ".join(init(str(data), tmp_path / "recipe.toml", model=None, overwrite=False))
    assert "column 'text'" in said
    assert "2 different answers" in said
    assert "worked solutions" in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert recipe.spec().teacher == "gold"  # gold answers teach
    assert recipe.sft.epochs * recipe.teach.episodes / recipe.sft.batch_size > 100  # enough steps to learn something
    assert recipe.grpo.first_task >= recipe.teach.episodes
    with pytest.raises(ConfigError, match="there already"):
        init(str(data), tmp_path / "recipe.toml", model=None, overwrite=False)


def test_a_language_model_that_sorts_is_told_the_labels_and_taught_them_first(tmp_path):
    """It got 256 tokens, no SFT, a prompt without the labels, and a base at 0.00."""
    labels = ("light_on", "light_off", "lock_the_door")
    data = rows(tmp_path / "home.jsonl", [{"text": f"message {n}", "label": labels[n % 3]} for n in range(80)])
    said = " ".join(init(str(data), tmp_path / "recipe.toml", model="owner/name", overwrite=False))
    assert "recipe.prompt.txt" in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    spec = recipe.spec()
    assert all(label in spec.data_set.system_prompt for label in labels)
    assert spec.grader(recipe.grader_name).name == "rewards"
    assert recipe.grpo.sampling.max_new_tokens == 16
    assert recipe.teach.enabled
    assert recipe.teach.episodes <= 80
    assert "sft" in recipe.eval.policies


@pytest.mark.parametrize("answers", [("A", "B", "C"), ("1", "2", "3"), ("Q1", "Q2", "Q3")])
def test_letters_and_numbers_are_not_labels(answers, tmp_path):
    data = rows(tmp_path / "quiz.jsonl", [{"question": f"ask {n}", "answer": answers[n % 3]} for n in range(80)])
    init(str(data), tmp_path / "recipe.toml", model="owner/name", overwrite=False)
    assert not (tmp_path / "recipe.prompt.txt").exists()


def test_chat_messages_and_worked_solutions_in_jsonl(tmp_path):
    columns = [
        {"messages": [{"role": "user", "content": f"{n} + 1"}], "solution": f"count on from {n}", "answer": n + 1}
        for n in range(80)
    ]
    data = rows(tmp_path / "chat.jsonl", columns)
    said = " ".join(init(str(data), tmp_path / "recipe.toml", model="owner/name", overwrite=False))
    assert "chat messages" in said
    assert "missing: worked" not in said
    recipe = load_recipe(None, path=tmp_path / "recipe.toml")
    assert recipe.spec().teacher == "teacher"
    assert recipe.model.path == "owner/name"
    assert not recipe.teach.enabled
    assert recipe.grpo.lr < 1e-4  # not the rate of a nano model


def said_of(tmp_path, columns):
    data = rows(tmp_path / "rows.jsonl", columns)
    return " ".join(init(str(data), tmp_path / "recipe.toml", overwrite=True))


def test_chats_that_end_with_their_answer(tmp_path):
    """The message advised what then was refused, to name one column as both."""
    chats = [[{"role": role, "content": f"{role} {n}"} for role in ("system", "user", "assistant")] for n in range(80)]
    assert "the last message of each is the answer" in said_of(tmp_path, [{"messages": each} for each in chats])
    tasks = load_recipe(None, path=tmp_path / "recipe.toml").spec().data_set
    asked = {(item.system, item.question, item.answer) for items in tasks.splits.values() for item in items}
    assert asked == {(f"system {n}", f"user {n}", f"assistant {n}") for n in range(80)}


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        ({"choices": ["Rome", "Oslo"]}, 1),
        ({"options": ["Rome", "Oslo"]}, "B"),
        ({"choices": {"text": ["Rome", "Oslo"], "label": ["A", "B"]}}, "B"),
        ({"A": "Rome", "B": "Oslo"}, "B"),
    ],
)
def test_choices_that_no_question_shows_are_missing(choices, answer, tmp_path):
    """The model was asked for the letter of a choice that it never saw, and every check passed."""
    columns = [{"question": f"{n}: north?", **choices, "answer": answer} for n in range(80)]
    assert "missing: the choices" in said_of(tmp_path, columns)
    told = {each.check: each for each in check_tasks(load_recipe(None, path=tmp_path / "recipe.toml").spec().data_set)}
    assert (told["choices"].severity, "80" in told["choices"].message) == ("error", True)
    (finding,) = [each for each in gradus.check(recipe=tmp_path / "recipe.toml").findings if "choices:" in each.message]
    assert (finding.check, finding.status) == ("data", "fail"), finding
    shown = [{**row, "question": row["question"] + " (A) Rome (B) Oslo"} for row in columns]
    assert "missing: the choices" not in said_of(tmp_path, shown)
    assert "missing: the choices" not in said_of(tmp_path, [{**row, "answer": "Oslo"} for row in columns])


def test_programs_and_worked_solutions_are_said(tmp_path):
    with pytest.raises(ConfigError, match=r"question=prompt&answer=.*--reward FILE.py:function"):
        find_columns([{"prompt": "def one():", "canonical_solution": "return 1", "test": "assert one() == 1"}])
    assert "gsm8k:" in said_of(tmp_path, [{"question": f"{n}?", "answer": f"so #### {n}"} for n in range(80)])


def test_gzipped_rows_and_other_tables(tmp_path):
    """They were unknown environments."""
    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("question,answer\n" + "".join(f"{n}?,{n}\n" for n in range(80)))
    assert "80 rows" in " ".join(init(str(tmp_path / "rows.csv.gz"), tmp_path / "recipe.toml"))
    with pytest.raises(ConfigError, match="convert it"):
        init("rows.parquet", tmp_path / "other.toml")


def test_few_rows_and_columns_that_say_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"none of the columns a, b is known as the question"):
        find_columns([{"a": 1, "b": 2}])
    data = rows(tmp_path / "few.jsonl", [{"question": f"{n}", "answer": f"{n * 7 % 30}"} for n in range(40)])
    said = " ".join(init(str(data), tmp_path / "recipe.toml", model=None, overwrite=False))
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


@pytest.mark.parametrize("name", ["worked", "solution"])
def test_the_worked_solutions_that_are_announced_teach(name, tmp_path):
    """A column called worked was announced, left out of the recipe, and gold answers taught."""
    columns = [{"question": f"{n} + 1", "answer": n + 1, name: f"count on from {n}"} for n in range(80)]
    assert f"worked: column '{name}'" in said_of(tmp_path, columns)
    assert load_recipe(None, path=tmp_path / "recipe.toml").spec().teacher == "teacher"
    del columns[5][name]
    assert f"missing: column '{name}' in 1 of the rows, so it is left out" in said_of(tmp_path, columns)
    assert load_recipe(None, path=tmp_path / "recipe.toml").spec().teacher == "gold"


def test_a_row_without_an_answer_is_named(tmp_path):
    """The first command that a newcomer types ended in a traceback."""
    columns = [{"question": f"{n} + 1", "answer": f"one more #### {n + 1}"} for n in range(80)]
    del columns[7]["answer"]
    with pytest.raises(ConfigError, match="row 8 has no answer, as 1 of its 80 rows"):
        said_of(tmp_path, columns)


def test_a_column_may_have_any_name(tmp_path):
    columns = [{"prompt": f"{n} + 1", "Answer": n + 1, "Solution": f"{n} + 1"} for n in range(80)]
    said_of(tmp_path, columns)
    named = load_recipe(None, path=tmp_path / "recipe.toml").environment
    assert named.endswith("rows.jsonl?question=prompt&answer=Answer&worked=Solution")


def test_every_command_takes_the_column_that_init_takes_for_gold(tmp_path, capsys):
    """Of rows in TRL's form init alone knew the gold answers; an audit with a reward function had none."""
    stored = [{"prompt": f"{n} + 1", "solution": str(n + 1), "category": "sums"} for n in range(60)]
    file = rows(tmp_path / "sums.jsonl", stored)
    assert find_columns(stored)["answer"] == "solution"
    assert load(f"jsonl:{file}").teacher == "gold"
    assert gradus.one_turn(stored, [lambda completions, **_: [0.0] * len(completions)]).teacher == "gold"
    assert "gold answers are taken from the column 'solution'" in capsys.readouterr().err
    assert load(f"jsonl:{file}?answer=").teacher is None
    assert gold_column([*stored, {"prompt": "?", "solution": ""}]) is None
