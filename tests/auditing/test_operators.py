"""Answers that are made from gold, from the question or from nothing: wrong ones are surely wrong, right ones surely right."""

import json
import random
from collections.abc import Sequence

import pytest
from text_graders import gold_of

from gradus.auditing.text.blind import BLIND, REFLEXES
from gradus.auditing.text.gold import NUMBER, Gold, Others, states
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.tasks import TextTask

_NUMBERS = tuple(map(str, range(100, 140)))
_LINES = "def f0(x):\n    y = x + 0\n    return y"
_CALL = '{"name": "pay", "arguments": {"sum": 3}}'
_WHY = '{"why": "because two and two are four"}'
_REASONED = json.dumps({"answer": 4, "why": "because two and two are four"})
_OTHER_REASON = json.dumps({"answer": 5, "why": "because six and two are four"})


def _made(operator: str, gold: str, prompt: str = "", others: Sequence[str] = _NUMBERS) -> set[tuple[str, ...]]:
    return {WRONG[operator].answers(gold_of(gold, others, prompt), random.Random(seed)) for seed in range(20)}


@pytest.mark.parametrize(
    ("operator", "gold", "prompt", "wrong"),
    [
        ("half a day off", "15:20", "", "03:20"),
        ("half a day off", "at 3:20 PM", "", "at 3:20 AM"),
        ("half a day off", "03:20", "It left at 9 am. When did it arrive?", None),  # it may mean either half
        ("half a day off", "ratio 3:200", "", None),
        ("half a day off", "1:15:20", "", "13:15:20"),
        ("day and month exchanged", "2024-03-07", "", "2024-07-03"),
        ("day and month exchanged", "due 07/03/2024", "", "due 03/07/2024"),
        ("day and month exchanged", "27.03.2024", "", None),
        ("day and month exchanged", "07/03", "", None),  # a fraction, perhaps
        ("a day off", "2024-03-07", "", "2024-03-08"),
        ("a day off", "07/03/2024", "", None),
        ("the first half of it", "14 km", "How far?", None),  # a number that lost its unit may still be right
        ("the first half of it", "1234 km", "How far?", "123"),
        ("the first half of it", "6.32098837209", "How far?", None),  # it may be rounding
        ("another digit in a word", "8.055e-06", "", None),
        ("one word twice", "red, blue", "Name the colors.", None),  # said twice it may still be so
        ("one word twice", "a b", "Make a list.", None),
        ("one number twice", "A=1,B=2,C=3", "", None),
        ("one number twice", "4, 5, 6", "", "4, 5, 6, 4"),
        ("the right answer denied", "1 0\n0 1", "", None),  # nobody denies a grid
        ("another unit", "12 km", "", "12 kg"),
        ("another sign", "0", "", None),
        ("two digits exchanged", "1134 km", "", "1314 km"),
        ("two digits exchanged", "100", "", None),
        ("one element dropped", _LINES, "", None),  # a line behind `return` does nothing
        ("an element too many", _LINES, "", None),
        ("right among wrong lines, in both orders", _LINES, "", None),
    ],
)
def test_what_is_made_wrong_is_surely_wrong(operator, gold, prompt, wrong):
    assert _made(operator, gold, prompt) == {(wrong,) if wrong else ()}


@pytest.mark.parametrize(
    ("operator", "gold", "others", "made"),
    [
        ("the call made twice", f"[{_CALL}]", (), {(f"[{_CALL}, {_CALL}]",)}),
        ("the call made twice", _CALL, (), {()}),  # one object is no list
        ("the opposite word", "It is to the left of it.", (), {("It is to the right of it.",)}),
        ("the negated sentence", "The lamp is on the table.", (), {("The lamp is not on the table.",)}),
        (
            "two names exchanged",
            "The cat of Anna is older than Berta.",
            (),
            {("The cat of Berta is older than Anna.",)},
        ),
        ("another value of the last key", _REASONED, (_OTHER_REASON,), {()}),  # a long text may be left out
        ("one key left out", _REASONED, (_OTHER_REASON,), {(_WHY,)}),
        ("an element too many", "b a c", ("c a b", "a c b"), {()}),  # all have the same elements: there is no other
        ("another unit", "7 mm", ("3 m", "4 meters", "5 kg"), {("7 m",), ("7 meters",)}),  # surely another
        ("another unit", "7 m", ("3 mm", "4 meters", "5 kg"), {("7 mm",)}),
        ("another first number in it", "2024-03-15", ("2024-05-11",), {()}),  # every answer has this year
        ("another second number in it", "2024-03-15", ("2024-04-11", "2024-09-11"), {("2024-09-15",)}),  # far away
        ("another second number in it", "2024-03-15", tuple(f"{'x ' * n}y" for n in range(8)), {()}),
    ],
)
def test_what_is_made_wrong_is_taken_from_answers_of_one_form(operator, gold, others, made):
    assert _made(operator, gold, "Call the tool.", others) == made


@pytest.mark.parametrize(("prompt", "settled"), [("Name, city and age as JSON.", True), ("Order {} as JSON.", False)])
def test_a_key_that_the_question_names_may_not_be_left_out(prompt, settled):
    gold = gold_of('{"name": "Ada", "city": "Rome", "age": 31}', prompt=prompt)
    assert WRONG["one key left out"].is_settled(gold.task) == settled


@pytest.mark.parametrize("gold", ["$7y^{6} + 6$", "x^2 - 3 x", r"\frac{1}{2} \pi"])
def test_a_formula_is_no_list_of_words(gold):
    assert not gold_of(gold).elements.texts
    assert gold_of("north east west").elements.texts


def test_another_digit_is_one_that_rounding_keeps():
    for (answer,) in _made("one digit changed", "0.0936000013830"):
        assert abs(float(answer) / 0.093600001383 - 1) > 0.01
    assert not {(), ("352",)} & _made("one digit changed", "352")


@pytest.mark.parametrize("ordered", [True, False, None])
def test_neighbors_may_not_be_swapped_if_the_row_says_that_order_matters(ordered):
    """A grammar of questions guessed it, took "reverse" for a demand, and sound graders of sets failed."""
    task = TextTask(key="0", prompt="Sort these words: b a c", gold="a b c", ordered=ordered)
    gold = Gold(task=task, others=Others(golds=["a b c"]))
    swapped = WRONG["neighbors swapped"]
    assert swapped.is_settled(task) == (ordered is True)
    assert bool(swapped.answers(gold, random.Random(0))) == (ordered is not False)


@pytest.mark.parametrize(
    ("gold", "made"),
    [("yes", " yes"), ("def f(x): return x", None), ("import os\nprint(os.sep)\n", None), ("a:\n  b: 1", None)],
)
def test_a_space_before_it_is_the_same_answer_where_indents_mean_nothing(gold, made):
    """Before a program it is Python's IndentationError, so that sound graders of programs failed."""
    assert EQUIVALENT["a space before it"][0](gold_of(gold), random.Random(0)) == made


def test_one_answer_is_another_up_to_case_spaces_and_the_way_a_number_is_written():
    assert states("50%", "0.5")
    assert not states("50%", "50")
    others = Others(golds=["18", "018", "19"])
    assert {others.another("18", random.Random(seed)) for seed in range(20)} == {"19"}


@pytest.mark.parametrize(
    ("name", "prompt", "copied"),
    [
        ("what is asked for", "What is 3 + 4 * 2?", "3 + 4 * 2"),
        ("what is asked for", "Compute $\\frac{3}{4}+\\frac{1}{2}$.", "\\frac{3}{4}+\\frac{1}{2}"),
        ("what is asked for", "Evaluate \\int_0^1 x dx\nAnswer:", "\\int_0^1 x dx"),
        ("what is asked for", "What is the capital of France?", None),
        ("the question's numbers in its order", "Of these 4 sort: 40, 12, -7 and 33.", "40 12 -7 33"),
        ("the question's numbers in its order, with commas", "Sort [2.5, 1, 3]", "2.5, 1, 3"),
        ("the question's numbers in its order", "What is 3 + 4?", None),
    ],
)
def test_what_stands_in_the_question_is_copied_as_it_stands(name, prompt, copied):
    assert REFLEXES[name](gold_of("1", ["2"], prompt), random.Random(0)) == copied


def test_a_number_may_end_a_sentence():
    assert NUMBER.findall("3, 4.5 and 6. Not 1.2.3.") == ["3", "4.5", "6"]


def test_golds_of_other_tasks_are_joined_as_they_stand():
    assert BLIND["all golds of other tasks joined by ', '"](gold_of("6", "5758"), random.Random(0)) == "5, 7, 8"


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
    made = BLIND["the gold's shape filled with 0"](gold_of(golds[0], golds[1:]), random.Random(0))
    assert made == filled
