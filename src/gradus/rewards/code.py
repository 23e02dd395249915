"""A reward for programs: runs the code of an answer in the sandbox and compares its results outside."""

from __future__ import annotations

import ast
import json
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast

from gradus.core import ConfigError, GradingError
from gradus.core.values import Json
from gradus.rewards.answers import without_reasoning
from gradus.rewards.compose import RewardFunction, completion_text
from gradus.sandbox.command import Finished, run_python

_AT_ONCE = 2  # programs
Run = Callable[..., Finished]  # run_python with the limits of a reward
_FENCE = re.compile(
    r"(?:[^`]|`(?!``))*+`{3,}+(?P<info>[^`]*)"
)  # words may stand before it: models write <answer>```python
_PYTHON = re.compile(r"\W*(?:python|py)[\d.]*\b", re.IGNORECASE)
_STATEMENT = re.compile(
    r"^[^\S\n]*+(?:def|class|import|from|for|while|if|with|try|async)\b|\w\s*=[^=]|\w\(", re.MULTILINE
)
# The calls are made inside, one a line; values come out as JSON on a file of their own, so that prints do not mix with them.
# What writes and tells them is bound before the program runs, which may put something else in the place of json.dumps.
_CALLS = """
import json as _json, os as _os, sys as _sys, types as _types
_results = _os.fdopen(_os.dup(1), "w")
_os.dup2(2, 1)
_calls = _json.loads(_sys.stdin.readline())
def _plain(_value, _sets=(set, frozenset), _sorted=sorted, _map=map):
    if isinstance(_value, _sets):
        return {"set": _sorted(_map(_encode, _value))}
    return _value.tolist()  # of numpy and torch
_encode, _write = _json.JSONEncoder(default=_plain).encode, _results.write
_module = _sys.modules["answer"] = _types.ModuleType("answer")  # pickle and dataclasses look for it there
_names = vars(_module)
exec(compile(open("answer.py").read(), "answer.py", "exec"), _names)
for _call in _calls:
    try:
        _line = _encode({"value": eval(_call, _names)})
    except Exception:
        _line = ""
    _write(_line + "\\n")
    _results.flush()
"""


def code_tests(seconds: float = 10.0, unsafe: bool = False) -> RewardFunction:
    """Rewards the share of a row's ``tests`` that the answer's code passes.

    A test is ``{"call": "add(1, 2)", "expected": 3}``, or ``{"stdin": "1 2", "stdout": "3"}`` for a whole program. The code runs in the
    sandbox, ``seconds`` a program; what it gives is compared outside, where it cannot reach. ``unsafe``: run it without a sandbox.
    """
    if seconds <= 0:
        raise ConfigError(f"code_tests needs seconds above 0, got {seconds}")
    run = partial(run_python, seconds=seconds, unsafe=unsafe)

    def reward(prompts: Sequence[Any], completions: Sequence[Any], tests: Sequence[Any], **columns: Any) -> list[Any]:
        texts = [completion_text(completion) for completion in completions]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(partial(_score, run), texts, tests))

    vars(reward)["component_name"] = "tests"
    return reward


def find_code(text: str) -> str:
    """Returns the last block marked as Python outside the reasoning, else the last unmarked one with a statement.

    Without a block, returns the text in the last ``<answer>`` tags, or all of it.

    >>> find_code("Like this: ```python\\nprint(1)\\n```\\nIt prints:\\n```\\n1\\n```")
    'print(1)\\n'
    """
    visible = without_reasoning(text.replace("\r\n", "\n"))
    blocks = _blocks(visible)
    marked = [code for info, code in blocks if _PYTHON.match(info)]
    unmarked = [code for info, code in blocks if not info]
    likely = [code for code in unmarked if _STATEMENT.search(code)]  # what a program printed is unmarked too
    # The last one: earlier blocks are often drafts.
    for codes in (marked, likely, unmarked):
        if codes:
            return codes[-1]
    # A model may write bare code between the tags.
    _, opening, rest = visible.rpartition("<answer>")
    inside, closing, _ = rest.partition("</answer>")
    return inside.strip() if opening and closing else visible


def _blocks(text: str) -> list[tuple[str, str]]:
    """Reads fenced blocks that are closed: the words behind the opening fence, and the lines without their common indent."""
    blocks: list[tuple[str, str]] = []
    info: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        if info is None:
            fence = _FENCE.fullmatch(line)
            if fence:
                info = fence["info"].strip()
                lines = []
        elif line.lstrip().startswith("```"):
            code = "".join(f"{line}\n" for line in lines)
            blocks.append((info, textwrap.dedent(code)))  # a block in a list is indented
            info = None
        else:
            lines.append(line)
    return blocks


def _score(run: Run, text: str, tests: Any) -> float | Exception | None:
    """Returns None for a row without tests; an exception if there is no sandbox or a test cannot be read."""
    # Tables of CSV and some data sets hold the tests as JSON.
    if isinstance(tests, str):
        tests = json.loads(tests)
    if not tests:
        return None
    try:
        return sum(_passed(find_code(text), list(tests), run)) / len(tests)
    except (OSError, GradingError) as error:
        return error


def _passed(code: str, tests: Sequence[Json], run: Run) -> list[bool]:
    # Of all tests before one is run: a row that cannot be read has no reward.
    for test in tests:
        if ({"call", "expected"} <= set(test)) == ("stdout" in test):
            raise GradingError(f"a test has call and expected, or stdin and stdout, got {str(test)[:100]}")
    passed: list[bool] = []
    calls: list[tuple[Any, Any]] = []
    for test in tests:
        if "stdout" in test:
            result = run(code, stdin=str(test.get("stdin", "")))
            passed.append(_same_lines(result, str(test["stdout"])))
        else:
            calls.append(_split(test["call"], test["expected"]))
    # A program is started for each stdin, and one for all calls, which is most of the time that they take.
    if calls:
        request = json.dumps([call for call, _ in calls]) + "\n"
        lines = run(_CALLS, files={"answer.py": code}, stdin=request).stdout.splitlines()
        lines += [""] * (len(calls) - len(lines))  # it ended early
        passed += [_same_value(line, expected) for line, (_, expected) in zip(lines, calls, strict=False)]
    return passed


def _split(call: Any, expected: Any) -> tuple[Any, Any]:
    """Returns what is evaluated inside and the value that it must have: ``f(1) == 3`` that must be true is ``f(1)`` that must be 3.

    Compared inside, an object of the program would say what it is equal to. What cannot be split so is left as it is.
    """
    if expected is True:
        with suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            comparison = ast.parse(call, mode="eval").body
            if isinstance(comparison, ast.Compare) and list(map(type, comparison.ops)) == [ast.Eq]:
                value = ast.literal_eval(comparison.comparators[0])
                json.dumps(value, default=_plain)
                return ast.unparse(comparison.left), value
    return call, expected


def _plain(value: Any) -> Any:
    """A set in the form that it has when it comes out of the sandbox."""
    if isinstance(value, set):
        return {"set": sorted(json.dumps(member, default=_plain) for member in cast(set[Any], value))}
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _same_lines(result: Finished, expected: str) -> bool:
    """True if a program ended well and wrote the expected lines, white space at their ends aside."""
    return result.code == 0 and _lines(result.stdout) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_value(line: str, expected: Any) -> bool:
    """True if a line holds the expected value; a tuple is a list here, numbers may differ in the ninth digit."""
    # Through JSON on both sides: a tuple is a list there, and a key a text.
    try:
        value = json.loads(line)["value"]
        return bool(_equal(value, json.loads(json.dumps(expected, default=_plain))))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False


def _equal(value: Any, expected: Any) -> bool:
    """Says whether two JSON values are equal, true and 1 not; numbers are close if one of them is a float."""
    types: set[type] = {type(value), type(expected)}  # bool is a type of its own here, though Python counts with it
    if float in types and types <= {int, float}:
        is_close = math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)  # by equality if one is infinite
        return is_close or (math.isnan(value) and math.isnan(expected))
    if len(types) > 1:
        return False
    if types == {list}:
        return len(value) == len(expected) and all(map(_equal, value, expected))
    if types == {dict}:
        return value.keys() == expected.keys() and all(_equal(value[key], expected[key]) for key in value)
    return value == expected
