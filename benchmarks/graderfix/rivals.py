"""What two other auditors say of the same graders: reward-doctor 0.2 and gradecheck 0.1 (`pip install reward-doctor gradecheck`).

A verdict is what makes their command end with another code than 0: reward-doctor accepts one of its own wrong completions or the grader raises,
gradecheck is "fooled". reward-doctor brings references of its own, so graders that score a stored entry cannot be asked by it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gradus.auditing.text.tasks import TextSubject, TextTask

_SAMPLE = 20  # tasks, as gradecheck's documentation has it
Said = tuple[str, list[str]]


def reward_doctor(subject: TextSubject, free: bool) -> Said:
    """The verdict and what it found. ``free``: the grader takes any reference."""
    from reward_doctor import audit  # pyright: ignore[reportMissingImports]

    if not free:
        return "not run", ["it has references of its own"]

    def grade(completion: str, reference: str, prompt: str) -> float:
        return subject.judge(TextTask(key="0", prompt=prompt, gold=reference), completion) or 0.0

    result = audit(grade)
    bad = [*result.exploits_accepted, *result.errors]
    return "fail" if bad else "pass", [f"{each.case.id}: {each.error or each.case.completion}" for each in bad]


def gradecheck(subject: TextSubject, free: bool) -> Said:
    """The verdict and what it found, through the door that it has for verifiers' environments."""
    from gradecheck.completion_attacks import run_all  # pyright: ignore[reportMissingImports]
    from gradecheck.verifiers_env import VerifiersEnv  # pyright: ignore[reportMissingImports]

    tasks = {task.prompt: task for task in subject.tasks}
    some = next(iter(tasks.values()))

    def grade(prompt: str, completion: str, **_: Any) -> float:
        return subject.judge(tasks[prompt], completion) or 0.0

    written = SimpleNamespace(
        answer_field="answer", format=lambda answer: some.before + answer + some.after if some.before else None
    )
    rows = [{"prompt": task.prompt, "answer": task.gold} for task in tasks.values()]
    environment = SimpleNamespace(
        message_type="completion",
        parser=written,
        rubric=SimpleNamespace(funcs=[grade], weights=[1.0]),
        get_dataset=lambda: rows,
    )
    fooled = [each for each in run_all(VerifiersEnv(environment, sample=_SAMPLE)) if each.verdict == "fooled"]
    return "fail" if fooled else "pass", [each.summary for each in fooled]


RIVALS: dict[str, Callable[[TextSubject, bool], Said]] = {"reward-doctor": reward_doctor, "gradecheck": gradecheck}
