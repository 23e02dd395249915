"""Audits of rows without reference answers: what earns without the task is found, and no right answer is presumed."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradus
from gradus.auditing.result import AuditResult
from gradus.sandbox.command import sandbox_works

SUMS = [
    {"prompt": f"Write add(a, b), which returns the sum. Number {n}.", "tests": [f"assert add({n}, 2) == {n + 2}"]}
    for n in range(8)
]


def _ran(completion: str, tests: list[str]) -> tuple[int, str]:
    """The exit code and the output of a completion's code with its tests."""
    code = re.search(r"```python\n(.*?)```", completion, re.DOTALL)
    program = [(code[1] if code else "raise ValueError").replace("\0", ""), *tests, "print('all of them', 1 + 1)"]
    command = [sys.executable, "-S", "-c", "\n".join(program)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2)
    except subprocess.TimeoutExpired:
        return 1, ""
    return done.returncode, done.stdout


def by_exit_code(completions: list[str], tests: list[list[str]], **_: Any) -> list[float]:
    return [float(_ran(*each)[0] == 0) for each in zip(completions, tests, strict=True)]


def by_last_words(completions: list[str], tests: list[list[str]], **_: Any) -> list[float]:
    return [float(_ran(*each)[1].endswith("all of them 2\n")) for each in zip(completions, tests, strict=True)]


def audited(reward: Callable[..., list[float]], **changes: Any) -> tuple[AuditResult, dict[str, Any]]:
    result = gradus.audit(reward, SUMS, **changes).result
    return result, {check.subject: check for check in result.checks}


@pytest.mark.skipif(not sandbox_works(), reason="no sandbox on this machine")
@pytest.mark.parametrize(("reward", "verdict"), [(by_exit_code, "fail"), (by_last_words, "unresolved")])
def test_tests_without_a_reference_program_are_asked_by_programs(reward: Any, verdict: str) -> None:
    """A grader that pays `raise SystemExit` was searched for minutes by policies that write no program, and was unresolved."""
    result, checks = audited(reward)
    assert result.verdict == verdict
    assert checks["gold"].status == "open"
    if verdict == "fail":
        assert "SystemExit" in checks["files and processes"].evidence
        assert "raise SystemExit" in result.exploit.completion


def test_a_reward_that_copies_or_any_text_earn_fails() -> None:
    def shared(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
        pairs = zip(completions, prompts, strict=True)
        return [float(set(prompt.split()) <= set(text.split())) for text, prompt in pairs]

    result, checks = audited(shared)
    assert result.verdict == "fail"
    assert "the question earns 1.00; the most is 1.00" in checks["reflexes"].evidence
    result, checks = audited(lambda completions, **_: [1.0 for _ in completions])
    assert result.verdict == "fail"
    assert "any text earns the most" in checks["gold"].evidence


def test_a_reward_without_a_range_may_be_small() -> None:
    """Thirty of a hundred is no exploit, and nobody knows that it is of a hundred."""
    result, checks = audited(lambda completions, **_: [30.0 * ("because" in text) for text in completions])
    assert result.verdict == "unresolved"
    assert "declare no range" in checks["blind answers"].evidence
