"""Code as an action: programs of an answer are run in the sandbox, and judged where they cannot reach."""

import runpy
from pathlib import Path

import pytest

from gradus.rewards import Completion, load_rewards
from gradus.rewards.code import find_code
from gradus.sandbox.command import sandbox_works

pytestmark = pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")

CALLS = [
    {"call": "add(1, 2)", "expected": 3},
    {"call": "add('a', 'b')", "expected": "ab"},
    {"call": "add([1], [2.5])", "expected": [1, 2.5]},
    {"call": "add((1,), ())", "expected": (1,)},
]
ENDS_EARLY = "import os, sys\nprint(3)\nos._exit(0)"
FORGES = (
    "import sys, json\nout = sys._getframe(1).f_globals['_results']\n"
    "class Same:\n    def __eq__(self, other): return True\n"
    "for _ in range(4): print(json.dumps({'value': None}), file=out, flush=True)\ndef add(a, b): return Same()"
)


@pytest.fixture(scope="module")
def score():
    rewards = load_rewards([{"function": "code_tests", "settings": {"seconds": 2}}])

    def of(text, tests):
        return rewards([Completion(prompt="", completion=text, columns={"tests": tests})])[0]

    return of


def fenced(code):
    return f"<think>```python\nraise SystemExit\n```</think> Here it is:\n```python\n{code}\n```\nDone."


@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b):\n    print('noise')\n    return a + b", 1.0),
        ("def add(a, b): return 3 if a == 1 else 1 / 0", 0.25),
        (ENDS_EARLY, 0.0),
        (FORGES, 0.0),
        ("while True: pass", 0.0),
        ("def add(a, b): return True", 0.0),
        ("import numpy as np\ndef add(a, b): return np.int64(3) if a == 1 else np.array([1, 2.5])", 0.5),
    ],
)
def test_calls_are_compared_outside(score, code, share):
    assert score(fenced(code), CALLS).value == share


COMPARED = [
    {"call": "add(1, 2) == 3", "expected": True},
    {"call": "set(add([1], [2, 2])) == {1, 2}", "expected": True},
    {"call": "add((1,), ('a',)) == (1, 'a')", "expected": True},
]
EQUAL_TO_ALL = "class Same(set):\n    def __eq__(self, other): return True\ndef add(a, b): return Same()\n"
PATCHED = (
    "import json\njson.dumps = json.JSONEncoder.encode = lambda *a, **k: '{\"value\": true}'\ndef add(a, b): return 0\n"
)


@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return a + b if a != 1 else 3.0", 1.0),
        (EQUAL_TO_ALL, 0.0),
        (f"{EQUAL_TO_ALL}set = Same", 0.0),
        (PATCHED, 0.0),
        ("import builtins\nbuiltins.eval = lambda *a: True\ndef add(a, b): pass", 0.0),
    ],
)
def test_a_comparison_is_made_outside_too(score, code, share):
    """It was made inside, where an object of the program said that it is equal."""
    assert score(fenced(code), COMPARED).value == share


def test_a_test_that_cannot_be_split_is_judged_inside(score):
    tests = [{"call": "add(1, 2) == add(2, 1) and add(0, 1) < 2", "expected": True}]
    assert score(fenced("def add(a, b): return a + b"), tests).value == 1.0
    assert score(fenced("def add(a, b): return a"), tests).value == 0.0


def test_whole_programs_are_judged_by_what_they_print(score):
    tests = [{"stdin": "2 3", "stdout": "5\n"}, {"stdin": "1 1", "stdout": "3"}]
    assert score("print(sum(map(int, input().split())))", tests).value == 0.5
    assert score(fenced("print(5)\nraise ValueError"), tests).value == 0.0


def test_a_row_without_tests_has_no_reward_and_a_broken_test_is_an_error(score):
    assert score("x", []).components == {"tests": None}
    for test in (
        {"expected": 3},
        {"call": "f()", "expect": 3},
        {"call": "f()", "expected": 3, "stdout": ""},
        "f() == 3",
    ):
        broken = score("def f():\n    return 3", [{"call": "f()", "expected": 3}, test])
        assert broken.value is None
        assert "a test has call and expected" in broken.error
        assert str(test) in broken.error


FENCE, CODE = "`" * 3, "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{FENCE}python3\n{CODE}{FENCE}",
        f"{FENCE}Python title='a.py'\n{CODE}{FENCE}",
        f"{FENCE}python\n{CODE}{FENCE}".replace("\n", "\r\n"),
        "1. So:\n" + "".join(f"   {line}\n" for line in f"{FENCE}python\n{CODE}{FENCE}".splitlines()),
        f"{FENCE}bash\npip install x\n{FENCE}\nThen:\n{FENCE}python\n{CODE}{FENCE}",
        f"{FENCE}python\n{CODE}{FENCE}\nIt prints:\n{FENCE}\n3\n{FENCE}",
        f"{FENCE}\n{CODE}{FENCE}\nIt prints:\n{FENCE}\n3\n{FENCE}",
        f"{FENCE}\na = 1\n{FENCE}\nBetter:\n{FENCE}\n{CODE}{FENCE}",
        f"<answer>{FENCE}python\n{CODE}{FENCE}</answer>",
        f"<thinking>{FENCE}python\na = 1\n{FENCE}</thinking>{FENCE}python\n{CODE}{FENCE}",
        f"{FENCE}python\n{CODE}{FENCE}\n<think>or {FENCE}python\na = 1\n{FENCE}",
    ],
)
def test_fences_are_read_as_models_write_them(text):
    assert find_code(text) == CODE


def test_code_in_tags_needs_no_fence():
    """Our own system prompt asks for tags, and gold answers are written in them: neither got a reward."""
    assert find_code("<reasoning>`a`</reasoning> <answer> def f():\n    return 1 </answer>") == "def f():\n    return 1"
    assert find_code(f"<answer>\n{fenced('a = 1')}\n</answer>") == "a = 1\n"
    assert find_code("<answer> cut") == "<answer> cut"
    assert find_code("print('</answer>')") == "print('</answer>')"


def test_the_example_turns_asserts_into_tests(score):
    names = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "program_rows.py"))
    asserts = "assert candidate(1) == [2, 'a']\n    assert candidate(2) == [3, 'a'], 'why'\n    assert candidate(3)"
    humaneval = {
        "prompt": "def add(x):\n",
        "canonical_solution": "    return [x + 1, 'a']\n",
        "entry_point": "add",
        "test": f"def check(candidate):\n    {asserts}\n",
    }
    mbpp = {
        "text": "?",
        "code": "def add(x): return -x",
        "test_list": ["assert add(1) == -1", "assert set(add(2)) == {1}"],
    }
    for row, count in ((names["from_humaneval"](humaneval), 2), (names["from_mbpp"](mbpp), 1)):
        assert len(row["tests"]) == count
        assert score(row["answer"], row["tests"]).value == 1.0
