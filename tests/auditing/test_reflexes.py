"""Answers that copy, guess or come near: each grader here has one slip that one row of a table finds."""

import math

import pytest

from gradus.auditing.text.blind import BLIND, REFLEXES
from gradus.auditing.text.gold import Gold, Others
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.run import audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask, subject_of
from gradus.core import child_rng
from gradus.environments import load
from gradus.rewards import Rewards
from gradus.rewards.grading import grader_of


def _audit(judge, rows, **options):
    tasks = [TextTask(key=str(i), prompt=prompt, gold=gold) for i, (prompt, gold) in enumerate(rows)]
    subject = TextSubject(name="n", grader="g", tasks=tasks, judge=judge)
    return {check.name: check for check in audit_text(subject, **options).checks}


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.inf


def _decimals(n=24):
    return [(f"The root of {i}, to three decimals?", f"{math.sqrt(i):.3f}") for i in range(2, 2 + n)]


def test_a_tolerance_of_a_tenth_is_found():
    checks = _audit(
        lambda task, answer: float(math.isclose(_number(answer), float(task.gold), rel_tol=0.1)), _decimals()
    )
    assert "9 percent more" in checks["wrong answers"].evidence
    assert checks["wrong answers"].status == "fail"


def test_nan_in_a_list_is_found():
    def judge(task, answer):
        given, gold = ([_number(each) for each in text.split(", ")] for text in (answer, task.gold))
        return float(len(given) == len(gold) and not any(abs(a - b) > 1e-6 for a, b in zip(given, gold, strict=True)))

    checks = _audit(judge, [(f"The first multiples of {i}?", f"{i}, {2 * i}, {3 * i}, {4 * i}") for i in range(3, 27)])
    assert "NaN for one number" in checks["wrong answers"].measured
    assert checks["wrong answers"].status == "fail"


def test_the_middle_of_the_golds_pays_where_reward_falls_with_distance():
    rows = [(f"How many days pass until day {i} of the year, beginning with day 1?", str(i)) for i in range(40, 88)]
    checks = _audit(lambda task, answer: max(0.0, 1 - abs(_number(answer) - float(task.gold)) / 60), rows)
    assert "quantile" in checks["blind answers"].evidence
    assert checks["blind answers"].status == "fail"


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("What is 3 + 4 * 2?", "3 + 4 * 2"),
        ("Compute $\\frac{3}{4}+\\frac{1}{2}$.", "\\frac{3}{4}+\\frac{1}{2}"),
        ("Evaluate \\int_0^1 x dx\nAnswer:", "\\int_0^1 x dx"),
        ("What is the capital of France?", None),
    ],
)
def test_what_is_asked_for_is_copied_with_its_latex(prompt, asked):
    gold = Gold(task=TextTask(key="0", prompt=prompt, gold="1"), others=Others(golds=["1", "2"]))
    assert REFLEXES["what is asked for"](gold, child_rng(0)) == asked


def test_golds_of_other_tasks_and_calls_made_twice_are_written_as_they_stand():
    call = '{"name": "pay", "arguments": {"sum": 3}}'
    gold = Gold(
        task=TextTask(key="0", prompt="Call the tool.", gold=call), others=Others(golds=["5", "7", "5", "8", call])
    )
    assert BLIND["all golds of other tasks joined by ', '"](gold, child_rng(0)) == "5, 7, 8"
    assert WRONG["the call made twice"].make(gold, child_rng(0)) == (f"[{call}, {call}]", f"{call}\n{call}")
    assert WRONG["the call made twice"].is_settled("Call the tool.")


def test_a_power_tower_is_cut_off_and_named():
    rows = [(f"What is {i} + {i + 5}?", str(2 * i + 5)) for i in range(3, 15)]

    def judge(task, answer):
        try:
            return float(eval(answer, {"__builtins__": {}}) == int(task.gold))
        except Exception:
            return 0.0

    checks = _audit(judge, rows, seconds=0.5)
    assert "hangs on '9**9**9**9'" in checks["hostile answers"].evidence


@pytest.mark.parametrize(("first", "status"), [(400, "fail"), (2000, "pass")])
def test_a_reward_that_pays_anything_late_in_a_training_fails(tmp_path, first, status):
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(f'{{"question": "How much is {i} and {i + 7}?", "answer": "{2 * i + 7}"}}' for i in range(24)) + "\n"
    )

    def reward(completions, answer, trainer_state=None, **kwargs):
        if trainer_state.global_step > first:
            return [1.0 for _ in completions]
        return [float(said.strip() == gold) for said, gold in zip(completions, answer, strict=True)]

    spec = load(f"jsonl:{tmp_path / 'rows.jsonl'}")
    checks = audit_text(subject_of(spec, grader_of(Rewards([reward]), name="late"), tasks=24)).checks
    (sanity,) = (check for check in checks if check.name == "sanity")
    assert sanity.status == status
    assert ("step of a training" in sanity.evidence) == (status == "fail")


@pytest.mark.parametrize(
    ("name", "gold"), [("another digit in a word", "8.055e-06"), ("the first half of it", "6.32098837209")]
)
def test_what_may_be_rounding_is_no_wrong_answer(name, gold):
    asked = Gold(task=TextTask(key="0", prompt="How much?", gold=gold), others=Others(golds=[gold, "1"]))
    assert WRONG[name].make(asked, child_rng(0)) is None
