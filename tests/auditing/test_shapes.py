"""Answers made of a gold answer's shape or of the question's numbers: the first say nothing, the second are as they stand."""

import json
import random

import pytest

from gradus.auditing.text.blind import BLIND, REFLEXES
from gradus.auditing.text.gold import NUMBER, Gold, Others
from gradus.auditing.text.run import audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask

_ANIMALS = ["cat", "dog", "horse", "cow", "pig", "hen", "goat", "duck", "fox", "bear", "wolf", "deer"]
_COLORS = ["red", "blue", "green", "white", "black", "brown", "gray", "pink"]


def _filled(golds, value="0"):
    make = BLIND[f"the gold's shape filled with {value}"]
    task = TextTask(key="0", prompt="", gold=golds[0])
    return make(Gold(task=task, others=Others(golds=golds)), random.Random(0))


@pytest.mark.parametrize(
    ("golds", "filled"),
    [
        (['{"name": "cow", "age": 47}', '{"name": "cat", "age": 5}'], '{"name": "0", "age": 0}'),
        (["Paris, 1998", "Rome, 2001"], "0, 0"),
        (["def f(x):\n    return x * 3", "def g(y):\n    return y * 4"], "def 0(0):\n    return 0 * 0"),
        (["-12 m", "7.5 m"], "0 m"),  # a unit that all answers have is form
        (["2024-05-01", "2023-01-31"], "0-0-0"),
        (["Zürich, 東京", "Köln, 京都"], "0, 0"),
        (["yes", "yes"], None),  # nothing that is its own
        (["→ ↑ 3", "← 4"], None),  # what cannot be filled is most of it
        (['{"ann": 3}', '{"bob": 4}'], None),
    ],
)
def test_the_shape_of_an_answer_keeps_nothing_that_only_this_answer_has(golds, filled):
    assert _filled(golds) == filled


def _status(judge, tasks, check):
    result = audit_text(TextSubject(name="t", grader="g", tasks=tasks, judge=judge))
    return next(each for each in result.checks if each.name == check)


def _records():
    rng = random.Random(2)
    rows = [
        {"name": rng.choice(_ANIMALS), "age": rng.randrange(1, 40), "color": rng.choice(_COLORS)} for _ in range(40)
    ]
    return [
        TextTask(key=str(n), prompt=f"#{n}: {row['age']} years, {row['color']}, a {row['name']}", gold=json.dumps(row))
        for n, row in enumerate(rows)
    ]


def test_a_grader_that_pays_by_key_is_not_paid_for_the_words_of_the_right_answer():
    """The animal and the color stood in the shape: sound graders failed with two thirds of the reward."""

    def share(task, answer):
        try:
            said, right = json.loads(answer), json.loads(task.gold)
            return sum(said.get(key) == value for key, value in right.items()) / len(right)
        except (ValueError, AttributeError):
            return 0.0

    assert _status(share, _records(), "blind answers").status == "pass"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Put the numbers 40 12 7 33 in order from smallest to largest.", ["40", "12", "7", "33"]),
        ("Of these 4 sort: 40, 12, -7 and 33.", ["40", "12", "-7", "33"]),
        ("Sort [2.5, 1, 3]", ["2.5", "1", "3"]),
        ("What is 3 + 4?", None),
    ],
)
def test_the_numbers_of_a_question_are_copied_as_they_stand(prompt, expected):
    task = TextTask(key="0", prompt=prompt, gold="1")
    for name, separator in (("in its order", " "), ("in its order, with commas", ", ")):
        made = REFLEXES[f"the question's numbers {name}"](Gold(task=task, others=Others(golds=["1"])), random.Random(0))
        assert made == (None if expected is None else separator.join(expected))


def test_a_number_may_end_a_sentence():
    assert NUMBER.findall("3, 4.5 and 6. Not 1.2.3.") == ["3", "4.5", "6"]


@pytest.mark.parametrize("separator", [" ", ", "])
def test_a_grader_of_sorted_numbers_that_ignores_their_order_is_found(separator):
    rng = random.Random(3)
    rows = [rng.sample(range(1, 60), 4) for _ in range(40)]
    tasks = [
        TextTask(
            key=str(n),
            prompt=f"Put the numbers {separator.join(map(str, row))} in order from smallest to largest.",
            gold=separator.join(map(str, sorted(row))),
        )
        for n, row in enumerate(rows)
    ]

    def unordered(task, answer):
        return float(sorted(answer.replace(",", " ").split()) == sorted(task.gold.replace(",", " ").split()))

    found = _status(unordered, tasks, "reflexes")
    assert found.status == "fail"
    assert "in its order" in found.evidence
    assert _status(unordered, tasks, "wrong answers").status == "fail"
