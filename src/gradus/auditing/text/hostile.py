"""Answers that no grader may fail on, and answers that write a file if the grader executes them."""

from __future__ import annotations

from collections.abc import Mapping

from gradus.auditing.text.blind import Operator
from gradus.auditing.text.grader_process import CANARY
from gradus.auditing.text.rates import quoted

HOSTILE: Mapping[str, Operator] = {
    f"the text {quoted(text, 20)}": (lambda t: lambda gold, rng: t)(text)
    for text in (
        *(
            "(",
            ")",
            "[",
            "{",
            "\\",
            "\x00",
            "1/0",
            "1e999999",
            "9" * 5000,
            "[1, 2",
            '{"a":',
            "0",
            "null",
            "[null]",
            '"x"',
        ),
        *(
            "[[]]",
            '{"a": 1}',
            "∞",
            "²",
            "٣",
            "😀",
            "‮",
            "a=b",
            "=",
            ",",
            ":",
            "/",
            "1:",
            "×",
            "\n",
            "a b c",
            "1 2 3",
            "(1",
            "-",
        ),
        *("(" * 60, "[" * 60, "x**" * 50, "%s%n", "NaN", "{}", "[0]", "true", "1,", ",1", "a" * 100_000),
        *(
            " " * 5000,
            "\n" * 5000,
            "<tool_call>" * 5000,
            "<answer>" * 5000,
            "[" * 12_000,  # Python's json nests to 10,000 from 3.12 on
            '{"a":' * 12_000,
            f"```{' ' * 5000}",
        ),
    )
}

_WRITE = f"open('{CANARY}', 'w')"
CANARIES: Mapping[str, Operator] = {
    "code alone": lambda gold, rng: _WRITE,
    "code in a list": lambda gold, rng: f"[{_WRITE}]",
    "code beside the right answer": lambda gold, rng: f"[{gold.text!r}, {_WRITE}][0]",
    "an import": lambda gold, rng: f"__import__('pathlib').Path('{CANARY}').touch()",
    "a statement": lambda gold, rng: f"import pathlib\npathlib.Path('{CANARY}').touch()",
    "code in a fence": lambda gold, rng: f"```python\nimport pathlib\npathlib.Path('{CANARY}').touch()\n```",
    "a shell command": lambda gold, rng: f"$(touch {CANARY})",
}
