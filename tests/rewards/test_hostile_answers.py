"""Answers that are made to take time or memory are cut off, and functions that hang are named."""

import time

import pytest

from gradus.rewards import Completion, Rewards, read_answer, same_answer

EXPRESSIONS = ["9!!!", "2^{3^{4^{5}}}", r"\binom{10^9}{5 \cdot 10^8}", "(1+x+y+z)^{300}"]
LONG = {
    "unclosed boxes": r"\boxed{" * 100_000,
    "different answers": "".join(f"<answer>{number}</answer>" for number in range(20_000)),
    "digits": "<answer>" + "9" * 1_000_000 + "</answer>",
    "fractions": "<answer>" + r"\frac" * 100_000 + "</answer>",
    "braces": r"\boxed{" + "{" * 100_000 + "}" * 100_000 + "}",
    "unclosed thoughts": "<think>" * 100_000,
    "a thought and no tag": "<thinking " + "a" * 500_000,
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_that_cannot_be_worked_out_is_no_answer_and_costs_seconds(expression: str) -> None:
    assert same_answer("x+1", "1+x")  # the worker is running
    before = time.process_time()
    assert not same_answer(expression, "x + 5")
    assert time.process_time() - before < 5  # nothing is computed in this process
    assert same_answer("y+1", "1+y")


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        (each, gold)
        for each in ("9**9**9**9", "x**x**x**x", "2^{3^{4}}", "9!!!", "2^1000000")
        for gold in ("light_on", "x+5")
    ],
)
def test_towers_of_powers_and_labels_are_not_given_to_math_verify(
    given: str, gold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(given: str, gold: str) -> bool:
        raise AssertionError(f"Math-Verify was asked about {given!r}")

    monkeypatch.setattr("gradus.rewards.answers._verify", asked)
    assert not same_answer(given, gold)


@pytest.mark.parametrize("name", LONG)
def test_long_texts_are_read_in_time_that_grows_with_their_length(name: str) -> None:
    before = time.process_time()
    reading = read_answer(LONG[name])
    assert not same_answer(reading.text or "", "12")
    assert not same_answer(reading.text or "", "x + 1")
    assert time.process_time() - before < 5


def test_a_reward_function_that_hangs_is_cut_off_and_named() -> None:
    def stuck(completions: list[str], **columns: object) -> list[float]:
        while True:
            time.sleep(0.01)

    rewards = Rewards([stuck], time_limit=0.2)
    scored = rewards([Completion(prompt="p", completion=text) for text in ("a", "b")])
    assert [each.value for each in scored] == [None, None]
    assert "reward 'stuck' took more than 0.2 s" in (scored[0].error or "")
    assert rewards.errors == {"stuck: OutOfTime": 2}


def test_a_reward_function_with_a_slow_expression_is_cut_off() -> None:
    import re

    def slow(completions: list[str], **columns: object) -> list[float]:
        return [float(bool(re.fullmatch(r"(a+)+b", text))) for text in completions]

    scored = Rewards([slow], time_limit=0.3)([Completion(prompt="p", completion="a" * 40)])
    assert "took more than 0.3 s" in (scored[0].error or "")
