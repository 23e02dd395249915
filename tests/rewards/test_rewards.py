"""Composing rewards: sums, errors that are named and counted, built-ins, graders under other weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import ConfigError, Episode, StopReason, StorageError, Task, Turn
from gradus.rewards import (
    BUILT_IN,
    Completion,
    Rewards,
    correctness,
    find_reward,
    grader_of,
    incremental_format,
    json_schema,
    length,
    load_rewards,
    parse_reward,
    read_completions,
    repetition,
    reweigh,
    strict_format,
    style,
    try_rewards,
)

RIGHT = "<reasoning> 1 + 1 </reasoning> <answer> 2 </answer>"
WRONG = "<reasoning> 1 + 1 </reasoning> <answer> 3 </answer>"
BROKEN = "2"


def rows(*texts: str, **columns: Any) -> list[Completion]:
    return [Completion(prompt="1 + 1?", completion=text, columns={"answer": "2", **columns}) for text in texts]


def test_the_value_is_the_weighted_sum() -> None:
    scored = Rewards([(correctness, 2.0), (strict_format, 0.5)])(rows(RIGHT, WRONG, BROKEN))
    assert [each.value for each in scored] == [2.5, 0.5, 0.0]
    assert scored[1].components == {"correct": 0.0, "format": 1.0}


def test_a_raising_function_is_an_error_of_that_completion_alone() -> None:
    def picky(prompts, completions, **columns):
        if any("3" in text for text in completions):
            raise KeyError("three")
        return [1.0] * len(completions)

    rewards = Rewards([(picky, 1.0), (strict_format, 1.0)])
    good, bad, broken = rewards(rows(RIGHT, WRONG, BROKEN))
    assert (good.value, broken.value) == (2.0, 1.0)
    assert bad.value is None
    assert bad.components == {"picky": None, "format": 1.0}
    assert (
        bad.error
        == f"reward 'picky' raised KeyError: 'three' (test_rewards.py:{picky.__code__.co_firstlineno + 2} in picky)"
    )
    assert dict(rewards.errors) == {"picky: KeyError": 1}


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("slow", [False, True])
def test_a_batch_of_a_wrong_number_of_rewards_is_an_error_and_is_not_asked_again(count: int, slow: bool) -> None:
    calls: list[int] = []

    def wrong(completions):
        calls.append(len(completions))
        return [1.0] * (count if len(completions) > 1 else 1)

    async def waits(completions):
        return wrong(completions)

    scored = Rewards([waits if slow else wrong])(rows(RIGHT, WRONG, BROKEN))
    assert [each.value for each in scored] == [None] * 3
    assert f"returned {count} rewards for 3 completions" in (scored[0].error or "")
    assert calls == [3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "returned 0 rewards for 1"),
        ([float("nan")], "not finite"),
        ([-1e308], "larger than 1e+100"),
        (["x"], "expected a number"),
        (3, "return a list"),
        ("1", "returned a str"),
    ],
)
def test_what_is_no_list_of_numbers_is_an_error(values: Any, said: str) -> None:
    def odd(prompts, completions):
        return values

    (scored,) = Rewards([odd])(rows(RIGHT))
    assert scored.value is None
    assert said in (scored.error or "")


def test_none_means_does_not_apply() -> None:
    never = Rewards([(lambda prompts, completions: [None] * len(completions), 1.0)])
    assert never(rows(RIGHT))[0].error.startswith("None came from every reward function")
    one, two = Rewards([(correctness, 1.0), (strict_format, 1.0)])(
        [Completion(prompt="?", completion=RIGHT), Completion(prompt="?", completion=RIGHT, columns={"answer": "2"})]
    )
    assert (one.value, one.components["correct"]) == (1.0, None)
    assert two.value == 2.0


FORMATS = [
    (RIGHT, 1.0, 1.0),
    (f"  {RIGHT}\n", 1.0, 1.0),
    (RIGHT + " so", 0.0, 0.98),
    (f"<think>in <answer> tags</think>{RIGHT}", 1.0, 1.0),
    (f"in <answer> tags</think>\n{RIGHT}", 1.0, 1.0),
    ("<reasoning> </reasoning> <answer> 2 </answer>", 0.0, 1.0),
    ("<reasoning> 1 </reasoning> <answer> </answer>", 0.0, 1.0),
    ("<answer> 2 </answer> <reasoning> 1 </reasoning>", 0.0, 0.78),
    (RIGHT + RIGHT, 0.0, 0.0),
    ("<answer>2</answer>", 0.0, 0.5),
    ("", 0.0, 0.0),
    ("</answer>" + "x" * 500, 0.0, -0.25),
]


@pytest.mark.parametrize(("text", "strict", "incremental"), FORMATS)
def test_formats(text: str, strict: float, incremental: float) -> None:
    assert strict_format(prompts=[""], completions=[text]) == [strict]
    assert incremental_format(prompts=[""], completions=[text]) == pytest.approx([incremental], abs=0.1)


@given(st.text(max_size=200))
def test_built_ins_stay_in_range_on_any_text(text: str) -> None:
    for function, low, high in [
        (strict_format, 0, 1),
        (incremental_format, -0.5, 1),
        (length(limit=10), -1, 0),
        (repetition(), -1, 0),
        (style("a"), 0, 1),
    ]:
        (value,) = function(prompts=[""], completions=[text])  # pyright: ignore
        (same,) = function(prompts=[[]], completions=[[{"role": "assistant", "content": text}]])  # pyright: ignore
        assert low <= value <= high
        assert value == same


def test_json_schema(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    right = ['{"n": 1}', '<answer>{"n": 2}</answer>', '```json\n{"n": 3}\n```', '```JSON\n{"n": 3}\n```']
    right += ['<think>x</think>\n{"n": 4}', '<reasoning>x</reasoning>{"n": 5}']
    wrong = ['{"n": "1"}', "n = 1", "[" * 100_000]
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for given_schema in (schema, str(tmp_path / "schema.json")):
        assert json_schema(given_schema)(prompts=[""] * 9, completions=right + wrong) == [1.0] * 6 + [0.0] * 3
    with pytest.raises(ConfigError, match="needs a JSON schema: 'nonsense'"):
        json_schema({"type": "nonsense"})
    with pytest.raises(StorageError, match="no file"):
        json_schema(str(tmp_path / "schemata.json"))


def test_rewards_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def tone(completions, **columns):\n    return [0.25] * len(completions)\n")
    rewards = load_rewards(
        ["correctness=2", ["format", 0.5], {"function": "length", "settings": {"limit": 3}}, f"{file}:tone"]
    )
    assert rewards.weights == {"correct": 2.0, "format": 0.5, "length": 1.0, "tone": 1.0}
    assert rewards(rows(RIGHT))[0].value == pytest.approx(2.0 + 0.5 - 1.0 + 0.25)
    assert parse_reward("math:f=0.5").weight == 0.5
    assert set(BUILT_IN) >= {"correctness", "format", "incremental_format"}


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("corectness", {}, "known are correctness"),
        ("format", {"limit": 3}, "takes no settings"),
        ("length", {"limt": 3}, "unexpected keyword"),
        ("json_schema", {}, "its settings in a recipe are schema, name"),
        ("json:loads", {"text": 3}, "its settings in a recipe are s, cls"),
        ("no_such_module:f", {}, "no module"),
        ("nowhere.py:f", {}, "no file"),
    ],
)
def test_unknown_rewards_say_what_is_known(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_reward(name, settings)


def episode(text: str, *, turns: int = 1) -> Episode:
    turn = Turn(index=0, observation="1 + 1?", action=text)
    return Episode(
        task=Task(environment="sums", seed=0),
        policy="p",
        turns=(turn,) * turns,
        stop=StopReason.TERMINATED,
        outcome={"columns": {"answer": "2"}},
    )


def test_a_grader_pays_by_components_and_its_terms_sum_to_the_grade() -> None:
    grader = grader_of(Rewards([(correctness, 2.0), (strict_format, 0.5)]), name="g")
    right, wrong, long = grader.compute([episode(RIGHT), episode(WRONG), episode(RIGHT, turns=2)])
    assert (right.value, wrong.value, long.value) == (2.5, 0.5, 2.0)
    assert right.turn_rewards == (2.5,)
    assert {term.component: term.value for term in right.terms[0]} == {"correct": 2.0, "format": 0.5}
    assert [len(terms) for terms in long.terms] == [0, 2]


WEIGHT = st.one_of(st.just(0.0), st.floats(0.01, 3))


@given(WEIGHT, WEIGHT, WEIGHT, WEIGHT)
def test_reweighing_equals_grading_under_those_weights(a: float, b: float, c: float, d: float) -> None:
    rewards = Rewards([(correctness, a), (strict_format, b)])
    changed = reweigh(grader_of(rewards, name="g"), {"correct": c, "format": d})
    direct = grader_of(Rewards([(correctness, c), (strict_format, d)]), name="g")
    episodes = [episode(RIGHT), episode(WRONG), episode(BROKEN)]
    for one, other in zip(changed.compute(episodes), direct.compute(episodes), strict=True):
        assert one.value == pytest.approx(other.value)
        assert one.components == other.components
    assert changed.weights == direct.weights


def test_trying_rewards_on_stored_completions(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    records = [{"prompt": "1 + 1?", "completion": text, "answer": "2"} for text in (RIGHT, WRONG)]
    file.write_text("\n".join(json.dumps(record) for record in records))

    def fragile(completions, answer, **columns):
        return [1 / (text == RIGHT) for text in completions]

    tried = try_rewards(Rewards([(correctness, 1.0), (fragile, 1.0)]), read_completions(file))
    assert tried.mean == 2.0
    assert tried.component_means() == {"correct": 0.5, "fragile": 1.0}
    assert tried.errors == {"fragile: ZeroDivisionError": 1}
    assert [row["read"] for row in tried.rows()] == ["2", "3"]
