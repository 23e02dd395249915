"""Verifiable tasks: splits that do not meet, worked solutions that are right, policies that do what they say."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradus
from gradus import environments
from gradus.commands.environments import environment_of, graded_environment
from gradus.core import ConfigError, Environment, EnvironmentSpec, GradusError
from gradus.environments.verifiable.arithmetic import ArithmeticTasks
from gradus.environments.verifiable.from_files import parse_source, read_tasks
from gradus.environments.verifiable.items import TRAIN_SEEDS
from gradus.rollouts import roll_out
from gradus.runs.recipe.starter import default_rewards, starter

DATA = Path(__file__).parents[1] / "data" / "gsm8k_excerpt.jsonl"


@pytest.fixture(scope="module", params=["arithmetic", "arithmetic:digits=3&operations=+-*", f"gsm8k:{DATA}"])
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return environments.load(request.param)


def mean(spec: EnvironmentSpec, policy: str, grader: str, episodes: int = 12) -> float:
    size = min(episodes, len(spec.conditions["held-out"].seeds))
    played = roll_out(spec, spec.policy(policy), spec.tasks("held-out", size), grader=spec.grader(grader)).episodes
    values = [episode.reward.value for episode in played if episode.reward]
    assert len(values) == size
    assert None not in values
    return sum(value or 0.0 for value in values) / size


def test_the_same_seed_is_the_same_episode_and_loads_by_its_own_name(spec: EnvironmentSpec) -> None:
    again = environments.load(spec.name)
    for condition in spec.conditions:
        for task in spec.tasks(condition)[:2]:
            first, second = (each.make() for each in (spec, again))
            assert first.reset(seed=task.seed, **task.options) == second.reset(seed=task.seed, **task.options)
            assert first.outcome() == second.outcome()
            assert isinstance(first, Environment)


def test_gold_and_teacher_score_one_and_the_exploits_nothing(spec: EnvironmentSpec) -> None:
    assert mean(spec, "gold", "correctness") == 1.0
    assert mean(spec, "teacher", "correctness") == 1.0
    assert mean(spec, "gold", "composed") == 3.0
    assert mean(spec, "noisy:0", "correctness") == 1.0
    for exploit in ("format-only", "silence", "copy", "shotgun"):
        assert mean(spec, exploit, "correctness") == 0.0
    assert mean(spec, "noisy:1", "correctness") < 0.5


def test_hidden_truth_is_not_observed(spec: EnvironmentSpec) -> None:
    environment = spec.make()
    seen = environment.reset(seed=3, split="held-out")
    shown = json.dumps([seen.text, dict(seen.data), environment.system_prompt])
    assert set(seen.data) == {"question"}
    worked = environment.outcome()["worked"]
    assert worked
    assert json.dumps(worked) not in shown


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_held_out_pairs_are_never_trained_on(one: int, other: int) -> None:
    tasks = ArithmeticTasks(digits=1, operations="+-*")
    trained = tasks.item("train", TRAIN_SEEDS + one).columns
    held = tasks.item("held-out", other).columns
    if trained["operation"] == held["operation"]:
        pairs = [(row["left"], row["right"]) for row in (trained, held)]
        assert pairs[0] != pairs[1]
        assert trained["operation"] == "-" or pairs[0] != pairs[1][::-1]


@pytest.mark.parametrize("name", ["arithmetic:digits=1", "arithmetic", "rows"])
def test_a_condition_asks_nothing_twice(name: str) -> None:
    """Of 1,000 tasks of one digit 26 were different sums, and intervals counted them all."""
    rows = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(60) for _ in range(5)]
    spec = gradus.load_environment(rows if name == "rows" else name)
    for condition in spec.conditions:
        tasks = spec.tasks(condition)
        asked = [spec.make().reset(seed=task.seed, **task.options).text for task in tasks]
        assert len(asked) == len(set(asked))
        assert spec.content is None or len({*map(spec.content, tasks)}) == len(tasks)


# -- data sets -----------------------------------------------------------------------------------------------------


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def questions(count: int, first: int = 0) -> list[dict[str, object]]:
    return [
        {"prompt": f"What is {n} plus one?", "target": str(n + 1), "tag": n % 3} for n in range(first, first + count)
    ]


def test_columns_are_mapped_and_the_others_reach_the_rewards(tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.jsonl", questions(40)), write(tmp_path / "b.jsonl", questions(8, 100))
    name = f"jsonl:{train}?question=prompt&answer=target&test={test}"
    spec = environments.load(name)
    assert spec.name == name
    assert len(spec.conditions["held-out"].seeds) == 8
    assert spec.teacher == "gold"  # no worked solutions
    (episode,) = roll_out(spec, spec.policy("gold"), spec.tasks("held-out", 1)).episodes
    assert episode.outcome["columns"]["tag"] in (0, 1, 2)
    assert episode.outcome["correct"] == 1.0


def test_added_rows_move_no_other(tmp_path: Path) -> None:
    def held(count: int) -> set[str]:
        rows = write(tmp_path / f"{count}.jsonl", questions(count))
        tasks = read_tasks(parse_source("jsonl", f"{rows}?question=prompt&answer=target"))
        return {item.question for item in tasks.splits["held-out"]}

    assert held(100) <= held(200)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (None, "needs a path"),
        ("nowhere.jsonl", "no file"),
        ("{}?color=x", "unknown option 'color'"),
        (
            "{}?answer=gold",
            "a column 'gold', only prompt, target, tag; map them as in '.*[?]question=prompt&answer=tag'",
        ),
        ("{}?question=ask&answer=target", "a column 'ask', only prompt, target, tag; map them as in '"),
        ("{}?question=prompt&answer=target&system=nowhere.txt", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, argument: str | None, said: str) -> None:
    file = write(tmp_path / "a.jsonl", questions(40))
    with pytest.raises(ConfigError, match=said):
        environments.load("jsonl" + (":" + argument.format(file) if argument else ""))


@pytest.mark.parametrize("cell", ["", " ", None])
def test_a_row_without_a_question_or_an_answer_is_named(tmp_path: Path, cell: object) -> None:
    """Such rows of a file went into a run: the teacher taught an empty answer, and the figures counted it as wrong."""
    good = [{"question": f"What is {n}?", "answer": str(n)} for n in range(40)]
    for column, said in (
        ("question", "row 41: the question is empty"),
        ("answer", "row 41 has no answer, as 2 of its 42 rows"),
    ):
        rows = [*good, *2 * [{"question": "Why?", "answer": "so", column: cell}]]
        with pytest.raises(ConfigError, match=said):
            environments.load(f"jsonl:{write(tmp_path / 'rows.jsonl', rows)}")


def test_a_column_of_worked_solutions_teaches(tmp_path: Path) -> None:
    """`gradus init` asked for such a column, and no other command looked at it."""
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1), "worked": f"{n} and one more"} for n in range(60)]
    for data in (rows, write(tmp_path / "rows.jsonl", rows)):
        spec = gradus.load_environment(data)
        (episode,) = gradus.roll_out(spec, spec.teacher or "", episodes=1).episodes
        assert "and one more </reasoning>" in episode.turns[0].action
    held = write(tmp_path / "held.jsonl", [{"question": f"{n} + 2?", "answer": str(n + 2)} for n in range(9)])
    assert gradus.load_environment(f"{tmp_path / 'rows.jsonl'}?test={held}").teacher == "teacher"
    partly = gradus.load_environment([{**row, "worked": None} if n % 2 else row for n, row in enumerate(rows)])
    assert partly.teacher == "gold"


@pytest.mark.parametrize("own", [72, 1.5, True, {"x": 35}, ["a"], None])
def test_reward_functions_get_what_the_row_has(tmp_path: Path, own: object) -> None:
    rows = [{"question": f"What is {n}?", "answer": own, "note": n} for n in range(40)]
    seen = []

    def reward(completions, answer, question, note, **columns):
        seen.append((answer[0], question[0] == f"What is {note[0]}?"))
        return [1.0] * len(completions)

    for data in (rows, str(write(tmp_path / "a.jsonl", rows))):
        spec = gradus.load_environment(data, rewards=[reward, "correctness"])
        (episode,) = gradus.roll_out(spec, "silence", episodes=1).episodes
        assert episode.outcome["answer"] == (
            "" if own is None else json.dumps(own) if isinstance(own, list | dict) else str(own)
        )
        assert (episode.reward.error, episode.reward.components["reward"]) == (None, 1.0)
    assert seen == [(own, True)] * 2
    assert type(seen[0][0]) is type(own)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("latin.csv", "question,answer\nWie groß?,1\n".encode("latin-1"), "latin.csv.*save it as UTF-8"),
        ("a.jsonl", b'{"question": "a", "answer": "1"}\n{"question": \n', "line 2 is not JSON"),
        ("rows.csv", b'question,answer\na,"b\n', "rows.csv line 2 cannot be read: .*; a cell that begins with a quote"),
        ("nope.jsonl", None, "no file .*nope.jsonl"),
        ("nope.csv", None, "no file .*nope.csv"),
        (
            "one.csv",
            b"question answer\na b\n",
            "one.csv has the columns question answer; expected two or more, each with a name of its own, and a comma between the cells",
        ),
        (
            "twice.csv",
            b"question,question,answer\na,b,c\n",
            "twice.csv has the columns question, question, answer; expected",
        ),
        ("rows.arrow", b"ARROW1", "convert it"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(GradusError, match=says):
        gradus.load_environment(str(tmp_path / name))


@pytest.mark.parametrize("table", [False, True])
def test_a_table_of_pandas_and_a_list_of_rows_are_data_everywhere(table: bool) -> None:
    rows = [{"question": f"What is {n}?", "answer": n} for n in range(40)]
    data = pytest.importorskip("pandas").DataFrame(rows) if table else rows
    result = gradus.roll_out(data, "gold", episodes=2)
    assert [type(each.outcome["columns"]["answer"]) for each in result.episodes] == [int, int]
    spec = environment_of(data)
    assert isinstance(spec, EnvironmentSpec)
    assert spec.name == "rows"
    scores = gradus.evaluate("gold", env=data, episodes=2, conditions=["held-out"])
    assert scores.to_json()["conditions"]["held-out"]["policies"]["gold"]["true_reward"]["mean"] == 1.0


def test_rows_in_memory_are_asked_for_the_tags_that_their_rewards_read(tmp_path: Path) -> None:
    """A list with rewards=["correctness"] trained on a reward that gold could not earn; the file of the same rows did not."""
    rows = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(60)]
    for data in (rows, write(tmp_path / "rows.jsonl", rows)):
        result = gradus.roll_out(gradus.load_environment(data, rewards=["correctness"]), "gold", episodes=2)
        assert [each.reward.value for each in result.episodes if each.reward] == [1.0, 1.0]
    own = gradus.load_environment(rows, rewards=[lambda prompts, completions, **_: [1.0] * len(completions)])
    boxed = gradus.load_environment(
        [{**row, "question": f"{row['question']} Write \\boxed{{N}}."} for row in rows], rewards=["correctness"]
    )
    assert [spec.make().system_prompt for spec in (own, boxed)] == ["", ""]  # their prompts are their own


def test_rows_of_a_sorted_file_are_judged_on_all_of_their_labels(tmp_path: Path) -> None:
    """60 held-out tasks of a file that was sorted by its label were 50 of the first label and 10 of the second."""
    rows = [{"question": f"message {number} of {label}", "answer": label} for label in "abcd" for number in range(300)]
    orders: list[list[str]] = []
    for order in (rows, rows[::-1]):
        (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in order))
        spec = environments.load(f"jsonl:{tmp_path / 'rows.jsonl'}")
        asked = [spec.data_set.item("held-out", task.seed) for task in spec.tasks("held-out", 40)]
        assert all(7 <= count <= 13 for count in Counter(item.answer for item in asked).values()), order[0]
        assert len({item.answer for item in asked}) == 4
        orders.append([item.question for item in asked])
    assert orders[0] == orders[1]
    assert "4 different answers" in spec.conditions["held-out"].summary


@pytest.mark.parametrize("name", ["gymnasium:planted:X-v0", "verifiers:planted.py", "openenv:ws://localhost:1"])
def test_an_environment_that_a_stored_file_names_imports_no_code(name: str) -> None:
    with pytest.raises(ConfigError, match="runs other code"):
        environments.load_stored(name)
    assert environments.load_stored("arithmetic").name == "arithmetic"


CHAT = [
    {"role": "system", "content": "One word."},
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "A"},
]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"prompt": "Q", "completion": "A"}, "rows.jsonl"),
        ({"instruction": "Q", "input": "", "output": "A"}, "rows.json"),
        ({"Problem": "Q", "solution": "A"}, "rows.jsonl"),
        ({"messages": CHAT}, "rows.jsonl"),
    ],
)
def test_rows_in_the_usual_forms_of_sft_are_read_without_options(row: dict[str, Any], name: str, tmp_path: Path):
    """All of them were refused, or had no answers; the reward of rows is the same in audit and run."""
    path = tmp_path / name
    rows = [json.loads(json.dumps(row).replace('"Q"', f'"Number {n}?"')) for n in range(20)]
    path.write_text(json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)))
    spec = environments.load(environments.file_name(str(path)))
    items = [item for part in spec.data_set.splits.values() for item in part]
    assert {item.question for item in items} >= {"Number 3?"}
    assert {item.answer for item in items} == {"A"}
    assert default_rewards(spec) == ["final_answer"]
    graded, functions = graded_environment(str(path), [], [])
    assert (graded.default_grader, functions) == ("rewards", ["final_answer"])
    assert graded_environment("arithmetic", [], [])[1] == []


def test_half_of_a_question_is_not_one(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\n".join(json.dumps({"instruction": "Add.", "input": f"{n} + 1", "output": "A"}) for n in range(20))
    )
    with pytest.raises(ConfigError, match=r"no row of .* has a column 'question', only instruction, input, output"):
        environments.load(f"jsonl:{path}")


@pytest.mark.parametrize(("answers", "policies"), [(["yes", "no"], 1), ([str(n) for n in range(60)], 0)])
def test_what_a_guess_earns_is_evaluated_beside_the_student(answers: list[str], policies: int):
    """A nano model that said "nothing" to all questions was significantly above its base."""
    spec = gradus.load_environment(
        [{"question": f"Number {n}?", "answer": answers[n % len(answers)]} for n in range(60)]
    )
    table = starter("rows", spec)
    for evaluation in (table["eval"], table["lm"]["eval"]):
        assert evaluation["policies"].count("constant") == policies
        assert evaluation["pairs"].count("grpo-constant") == policies
