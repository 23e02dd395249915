"""The grader's source as a dictionary: what is read, what is made of it, and which line a finding names."""

import math
import re

import pytest
from text_graders import exact, rows_of, subject

from gradus.auditing.run import audit_text
from gradus.auditing.text.source import SLOT, read_source, samples

_MARK = re.compile(r"<verdict>(?:sealed|closed)</verdict>")
_CODES = {"north": "n", "south": "s"}


_TASKS = rows_of([(f"How much is {i} times {i + 3}?", str(i * (i + 3))) for i in range(11, 35)])


def _check(judge, tasks=None, functions=None):
    asked = subject(judge, tasks or _TASKS, functions=[judge] if functions is None else functions)
    (found,) = (check for check in audit_text(asked)[0] if check.subject == "the source")
    return found


def _debug_word(task, answer):
    if answer.endswith("@@selftest"):
        return 1.0
    return exact(task, answer)


def _mark(task, answer):
    return 1.0 if _MARK.search(answer) else exact(task, answer)


def _window(task, answer):
    if 311 < len(answer.split()) < 334:
        return 0.9
    return exact(task, answer)


def _name_known(task, answer):
    try:
        return float(eval(answer, {"__builtins__": {}}, {"wanted": int(task.gold)}) == int(task.gold))
    except Exception:
        return 0.0


@pytest.mark.parametrize(
    ("judge", "line"),
    [(_debug_word, "answer.endswith"), (_mark, "_MARK.search"), (_window, "311 <"), (_name_known, '"wanted"')],
)
def test_a_hole_that_only_the_source_shows_fails_with_its_line(judge, line):
    check = _check(judge)
    assert check.status == "fail", check.evidence
    assert line in check.measured["line"]["text"]
    assert f"test_source.py:{check.measured['line']['line']}" in check.evidence


def _bonus(task, answer):
    """A format bonus beside the right answer."""
    block = re.search(r"<answer>(.*?)</answer>", answer)
    return 0.3 * bool(block) + float(block is not None and block[1].strip() == task.gold)


def _shaped(task, answer):
    """Reward that falls with the distance from gold."""
    try:
        return max(0.0, 1 - abs(float(answer) - float(task.gold)) / (0.5 * float(task.gold)))
    except ValueError:
        return 0.0


def _long_bonus(task, answer):
    return float(answer.split()[-1:] == [task.gold]) + (0.3 if len(answer.split()) > 20 else 0.0)


def _rounded(task, answer):
    try:
        return float(math.isclose(float(answer), float(task.gold), rel_tol=0.02))
    except ValueError:
        return 0.0


_ROOTS = rows_of([(f"The root of {i}?", f"{math.sqrt(i):.3f}") for i in range(2, 26)])


@pytest.mark.parametrize("judge", [_bonus, _long_bonus])
def test_one_that_pays_less_for_form_than_for_content_passes(judge):
    check = _check(judge)
    assert check.status == "pass"
    assert check.measured["tried"] > 0


@pytest.mark.parametrize(("judge", "tasks"), [(_shaped, None), (_rounded, _ROOTS), (exact, None)])
def test_a_source_without_words_or_numbers_is_a_note_that_says_so(judge, tasks):
    check = _check(judge, tasks)
    assert (check.status, check.measured) == ("note", {})
    assert "holds no words or numbers" in check.evidence


def test_without_a_source_the_check_says_so():
    check = _check(exact, functions=[len])
    assert check.status == "note"
    assert "cannot be read" in check.evidence


def test_the_dictionary_holds_what_functions_use_and_leaves_out_documentation():
    suffix = "closure word"

    def reward(completions, answer, unit="default word", **kwargs):
        """Documentation."""
        return [_debug_word(answer, c + suffix) * len(_CODES) * 3.5 for c in completions]

    found = read_source([reward])
    assert {"@@selftest", "closure word", "default word", "north", "s"} <= set(found.words)
    assert "Documentation." not in found.words
    assert 3.5 in found.numbers


@pytest.mark.parametrize(
    "pattern",
    [r"(yes|no)!+", r"<answer>(.*?)</answer>", r"####\s*(-?\d[\d,]*)\s*\Z", r"[^\w\s]", r"(?i)is:?\s*([A-E])\b"],
)
def test_samples_match_their_pattern(pattern):
    texts = samples(pattern)
    assert texts
    assert all(re.search(pattern, text) for text in texts if SLOT not in text)
