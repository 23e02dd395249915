"""A wrong answer that is accepted on some tasks fails with the rule that these tasks have in common."""

import json

import pytest

from gradus.auditing.text.run import audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask


def _check(judge, rows):
    tasks = [TextTask(key=str(i), prompt=prompt, gold=gold) for i, (prompt, gold) in enumerate(rows)]
    result = audit_text(TextSubject(name="n", grader="g", tasks=tasks, judge=judge))
    (found,) = (check for check in result.checks if check.name == "wrong answers")
    return found


def _sums(n=48):
    signs = ("+", "+", "-", "+", "*", "+", "+")
    rows = [(f"{i + 20} {signs[i % 7]} {i % 11 + 2}", i) for i in range(n)]
    return [(f"How much is {asked}?", str(eval(asked))) for asked, _ in rows]


def test_an_operator_whose_results_are_not_compared_is_named():
    check = _check(
        lambda task, answer: float(answer == task.gold or (" - " in task.prompt and answer.isdigit())), _sums()
    )
    assert check.status == "fail"
    assert "where the question has '-' (15% of all)" in check.evidence


def test_a_range_of_answers_is_named():
    def judge(task, answer):
        return float(answer == task.gold or (float(task.gold) >= 66 and answer.isdigit() and float(answer) >= 66))

    check = _check(judge, [(f"How much is {i} and {i + 3}?", str(2 * i + 3)) for i in range(20, 44)])
    assert check.status == "fail"
    assert "the right answer is at least" in check.evidence


def test_a_field_that_is_not_there_is_named():
    def judge(task, answer):
        gold = json.loads(task.gold)
        try:
            given = json.loads(answer)
        except ValueError:
            return 0.0
        return float("unit" not in gold or given == gold) if isinstance(given, dict) else 0.0

    rows = [{"sum": 3 * i, "name": f"n{i}", **({"unit": f"u{i}"} if i % 5 else {})} for i in range(48)]
    check = _check(judge, [(f"The keys sum, name and unit of {i}?", json.dumps(row)) for i, row in enumerate(rows)])
    assert check.status == "fail"
    assert "has no field 'unit' (21% of all)" in check.evidence


@pytest.mark.parametrize("every", [5, 9])
def test_what_is_accepted_by_chance_has_no_rule(every):
    check = _check(
        lambda task, answer: float(answer == task.gold or (answer.isdigit() and int(answer) % every == 0)), _sums()
    )
    assert "tasks where" not in check.evidence
