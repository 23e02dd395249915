"""Each grader here has one slip, which one row of the audit's tables finds with an answer that shows it, or it is sound and has none."""

import json
import math
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import date
from itertools import product

import pytest
from text_graders import as_json, check_of, exact, rows_of, sound, sums, tasks_of

_DATES = [f"20{20 + i % 5}-{1 + i % 12:02d}-{1 + i * 7 % 28:02d}" for i in range(30)]
_WORDS = [f"{a}{b}{c}" for a in ("bro", "ste", "pla") for b in ("ad", "in", "um") for c in ("est", "er", "ly")]
_FRUIT = ["apple", "pear", "plum", "fig", "kiwi", "lime", "mango", "grape", "peach", "cherry", "olive"]


def _numbers(text):
    return [int(each) for each in re.findall(r"\d+", text)]


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.inf


# Tasks


def _two_odd_numbers():
    rng = random.Random(5)
    pairs = [(rng.randrange(2, 90), rng.randrange(2, 90)) for _ in range(30)]
    return rows_of([(f"Two odd numbers with sum {a + b}", f"{a} {b}") for a, b in pairs])


def _networks():
    golds = [f"10.{i}.{16 * (i % 5)}.0" for i in range(30)]
    return rows_of([(f"What is the network of {gold[:-1]}{7 + i}?", gold) for i, gold in enumerate(golds)])


def _notes():
    told = product(("Luis", "Sana", "Emil"), ("kettle", "lantern", "loom"), ("Oslo", "Perth", "Hanoi"))
    return tasks_of([f"{who} repaired 28 old {what}s in {where} before noon." for who, what, where in told], "note {}")


def _arrivals():
    rng = random.Random(3)
    times = [(rng.randrange(24), rng.randrange(60), rng.randrange(1, 20)) for _ in range(30)]
    golds = [f"{h:02}:{m:02}, platform {p}" for h, m, p in times]
    return tasks_of(golds, "Train {}: when and where, on a clock of 24 hours?")


def _records(prompt="Fill the fields name, city, age of"):
    names, cities = ("Ann", "Bo", "Cy", "Di"), ("Oslo", "Rome", "Lima")
    golds = [{"name": names[i % 4], "city": cities[i % 3], "age": 20 + i % 7} for i in range(30)]
    return tasks_of(list(map(json.dumps, golds)), f"{prompt} {{}}")


def _units():
    rows = [{"sum": 3 * i, "name": f"n{i}", **({"unit": f"u{i}"} if i % 5 else {})} for i in range(48)]
    return tasks_of(list(map(json.dumps, rows)), "The keys sum, name and unit of {}?")


def _shown_records():
    rng = random.Random(2)
    animals, colors = ("cat", "dog", "horse", "cow", "pig", "hen"), ("red", "blue", "green", "white", "black")
    rows = [{"name": rng.choice(animals), "age": rng.randrange(40), "color": rng.choice(colors)} for _ in range(40)]
    return rows_of([(f"{row['age']} years, {row['color']}, a {row['name']}", json.dumps(row)) for row in rows])


def _with_e(order=" in any order"):
    rng = random.Random(5)
    asked = "{}: which words of this list have the letter e: {}? Write them{}, with commas."
    drawn = [rng.sample(_FRUIT, 7) for _ in range(40)]
    golds = [", ".join(word for word in each if "e" in word) for each in drawn]
    return rows_of([(asked.format(i, " ".join(drawn[i]), order), gold) for i, gold in enumerate(golds)])


def _multiples():
    return rows_of([(f"The first multiples of {i}?", f"{i}, {2 * i}, {3 * i}, {4 * i}") for i in range(3, 27)])


def _days():
    return tasks_of([str(i) for i in range(40, 88)], "How many days pass until day {} of some year?")


def _to_sort(separator):
    rng = random.Random(3)
    rows = [rng.sample(range(1, 60), 4) for _ in range(40)]
    asked = [f"Put the numbers {separator.join(map(str, row))} in order from smallest to largest." for row in rows]
    golds = [separator.join(map(str, sorted(row))) for row in rows]
    return [replace(task, ordered=True) for task in rows_of(list(zip(asked, golds, strict=True)))]


def _signs():
    rows = [f"{i + 20} {'++-+*++'[i % 7]} {i % 11 + 2}" for i in range(48)]
    return rows_of([(f"How much is {asked}?", str(eval(asked))) for asked in rows])


def _queries():
    return tasks_of([f"SELECT name FROM people WHERE age > {i + 20}" for i in range(30)])


# Graders


def _two_that_sum(task, answer):
    return len(_numbers(answer)) == 2 and sum(_numbers(answer)) == _numbers(task.prompt)[-1]


def _object_in_the_text(task, answer):
    found = re.search(r"\{.*\}", answer, re.DOTALL)
    return bool(found) and as_json(found[0]) == as_json(task.gold)


def _same_words(task, answer):
    said, gold = (Counter(re.findall(r"\w+", text)) for text in (answer, task.gold))
    return 2 * (said & gold).total() / (said.total() + gold.total())


def _near_day(task, answer):
    try:
        one, other = (date.fromisoformat(text.strip()) for text in (answer, task.gold))
    except ValueError:
        return False
    return abs((one - other).days) <= 3


def _by(read):
    """A grader that compares what it reads of a time and a platform."""

    def judge(task, answer):
        match = re.fullmatch(r"\s*(\d\d?):(\d\d), platform (\d+)\s*", answer, re.ASCII)
        return match is not None and read(*map(int, match.groups())) == read(*_numbers(task.gold))

    return judge


def _reads(*keys):
    def judge(task, answer):
        said, gold = as_json(answer), json.loads(task.gold)
        return isinstance(said, dict) and all(said.get(key) == gold[key] for key in keys or gold)

    return judge


def _unit_by_luck(task, answer):
    said, gold = as_json(answer), json.loads(task.gold)
    return isinstance(said, dict) and ("unit" not in gold or said == gold)


def _share_of_keys(task, answer):
    said, gold = as_json(answer), json.loads(task.gold)
    return sum(said.get(key) == gold[key] for key in gold) / len(gold) if isinstance(said, dict) else 0.0


def _as_set(task, answer):
    return sorted(word.strip() for word in answer.split(",")) == sorted(task.gold.split(", "))


def _without_counts(task, answer):
    return {word.strip() for word in answer.split(",")} == set(task.gold.split(", "))


def _no_distance(task, answer):
    given, gold = ([_number(each) for each in text.split(", ")] for text in (answer, task.gold))
    return len(given) == len(gold) and not any(abs(a - b) > 1e-6 for a, b in zip(given, gold, strict=True))


def _unordered(task, answer):
    return sorted(answer.replace(",", " ").split()) == sorted(task.gold.replace(",", " ").split())


def _digits_from(least):
    return lambda task, answer: (
        exact(task, answer) or (_number(task.gold) >= least and answer.isdigit() and _number(answer) >= least)
    )


def _scrambled():
    return [replace(task, prompt=f"Unscramble the word: {task.gold[1:]}{task.gold[0]}") for task in tasks_of(_WORDS)]


def _matches(pattern, text):
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return False


def _durations():
    return tasks_of([f"{1 + i % 7} h {5 + 7 * i % 50} min" for i in range(30)])


_WRONG, _BLIND, _COPIED = "wrong answers", "blind answers", "reflexes"


@pytest.mark.parametrize(
    ("name", "judge", "tasks", "told"),
    [
        (_BLIND, lambda task, answer: bool(answer), sums, "' '"),
        (_BLIND, lambda task, answer: "nan" in answer or sound(task, answer), sums, "nan"),
        (_BLIND, lambda task, answer: task.gold.startswith(answer.strip()) and "people" in answer, _queries, "what all golds begin with"),
        (_BLIND, lambda task, answer: 1 - abs(min(_number(answer), 999) - int(task.gold)) / 60, _days, "quantile"),
        (_BLIND, _share_of_keys, _shown_records, None),  # words of the right answer stood in its shape
        # Another task's answer has half of its words, those of the form and some by luck, and earns half.
        *((name, _same_words, _notes, None) for name in (_BLIND, _COPIED)),
        (_COPIED, lambda task, answer: answer.startswith(task.gold[:4]) and answer.count(".") == 3, _networks, "the first place of the question in the gold's form"),
        (_COPIED, _two_that_sum, _two_odd_numbers, "else 0"),  # of the question's number and a constant
        (_COPIED, lambda task, answer: sorted(answer) == sorted(task.gold), _scrambled, "place of the question in the gold's form"),
        (_BLIND, lambda task, answer: _matches(answer, task.gold), lambda: tasks_of(_WORDS), "'.*'"),
        (_WRONG, lambda task, answer: re.findall(r"\d+ min", answer) == re.findall(r"\d+ min", task.gold), _durations, "another first number in it: accepted"),
        *((_COPIED, _unordered, lambda by=by: _to_sort(by), "in its order") for by in (" ", ", ")),
        (_WRONG, _unordered, lambda: _to_sort(" "), "neighbors swapped"),
        (_WRONG, lambda task, answer: task.gold in answer, sums, " or "),
        (_WRONG, lambda task, answer: sorted(answer) == sorted(task.gold), sums, "two digits exchanged"),
        (_WRONG, _object_in_the_text, lambda: _records("Give name and age of"), None),
        (_WRONG, _near_day, lambda: tasks_of(_DATES), "a day off"),
        (_WRONG, lambda task, answer: sorted(answer.split("-")) == sorted(task.gold.split("-")), lambda: tasks_of(_DATES), "day and month exchanged"),
        (_WRONG, lambda task, answer: sorted(answer) == sorted(task.gold), lambda: tasks_of(_WORDS), "a word backwards"),
        *((_WRONG, exact, lambda golds=golds: tasks_of(golds), None) for golds in (_DATES, _WORDS)),
        # A number was changed only if it was the whole answer.
        (_WRONG, _by(lambda hour, minute, platform: (hour % 12, minute, platform)), _arrivals, "half a day off"),
        (_WRONG, _by(lambda hour, minute, platform: (minute, platform)), _arrivals, "another first number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, platform)), _arrivals, "another second number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, minute)), _arrivals, "another last number in it"),
        (_WRONG, _by(lambda hour, minute, platform: (hour, minute, platform)), _arrivals, None),
        (_WRONG, _no_distance, _multiples, "NaN for one number"),
        # A grader of JSON that left out a field of words passed in silence.
        (_WRONG, _reads("city", "age"), _records, "another value of the first key"),
        (_WRONG, _reads("name", "age"), _records, "another value of the second key"),
        (_WRONG, _reads("name", "city"), _records, "another value of the last key"),
        (_WRONG, _reads(), _records, None),
        (_WRONG, _without_counts, _with_e, "one word"),
        (_WRONG, _as_set, _with_e, None),
        # Flaws on some tasks, named by the rule that these have in common.
        (_WRONG, lambda task, answer: exact(task, answer) or (" - " in task.prompt and answer.isdigit()), _signs, "where the question has '-'"),
        (_WRONG, _digits_from(66), lambda: tasks_of([str(2 * i + 3) for i in range(20, 44)]), "the right answer is at least"),
        (_WRONG, _unit_by_luck, _units, "has no field 'unit'"),
    ],
)  # fmt: skip
def test_a_flaw_is_found_with_the_answer_that_shows_it_and_a_sound_grader_has_none(name, judge, tasks, told):
    check = check_of(name, judge, tasks())
    assert check.status == ("pass" if told is None else "fail"), check.evidence
    assert (told if told is not None else "none of") in check.evidence


@pytest.mark.parametrize("every", [5, 9])
def test_what_is_accepted_by_chance_has_no_rule(every):
    judge = lambda task, answer: exact(task, answer) or (answer.isdigit() and int(answer) % every == 0)  # noqa: E731
    assert "tasks where" not in check_of(_WRONG, judge, _signs()).evidence


@pytest.mark.parametrize(
    ("judge", "tasks", "operator"),
    [
        (lambda task, answer: answer.lower() == task.gold.lower(), lambda: tasks_of(_WORDS), "other case"),
        (_as_set, lambda: _with_e(" once each"), "neighbors swapped"),
        (_reads("name", "age"), lambda: _records("Describe"), "another value of the second key"),  # it names no key
    ],
)
def test_what_no_rule_settles_is_for_a_person_and_fails_nothing(judge, tasks, operator):
    check = check_of(_WRONG, judge, tasks())
    assert check.status == "pass", check.evidence
    assert operator in {row["operator"] for row in check.review}


@pytest.mark.parametrize(
    ("before", "after", "pattern"),
    [("<think>so</think>\n<answer>", "</answer>", r"<answer>(.*?)</answer>"), ("\\boxed{", "}", r"\\boxed\{(.*?)\}")],
)
@pytest.mark.parametrize(
    ("reads", "status"), [(any, "fail"), (lambda rights: len(rights) == 1 and rights[0], "pass"), (lambda r: r and r[-1], "pass")]
)  # fmt: skip
def test_any_of_two_answer_blocks_is_found(before, after, pattern, reads, status):
    def judge(task, answer):
        return bool(reads([text.strip() == task.gold for text in re.findall(pattern, answer, re.DOTALL)]))

    wrong = check_of(_WRONG, judge, [replace(task, before=before, after=after) for task in sums()])
    assert wrong.status == status, wrong.evidence
    assert ("in two blocks" in wrong.evidence) == (status == "fail")


def _by_share_of_characters(task, answer):
    """One for the right answer; of a longer one the share that it is."""
    return len(task.gold) / len(answer) if answer and task.gold in answer else 0.0


@pytest.mark.parametrize(
    ("judge", "status"), [(_by_share_of_characters, "pass"), (lambda task, answer: task.gold in answer, "fail")]
)
def test_all_options_in_a_row_are_compared_with_a_guess_however_they_are_joined(judge, status):
    """Both of two options in one word earned a half, as either does, and the audit failed; of a grader that takes any text that holds the right one it must."""
    check = check_of("blind answers", judge, tasks_of(["Yes", "Yes", "Yes", "No"] * 8))
    assert check.status == status, check.evidence
