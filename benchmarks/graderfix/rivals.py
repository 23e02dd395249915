"""What other auditors say of the same graders, each in an environment of its own that can import Gradus too:
reward-doctor 0.2, rewardlint 0.1, gradecheck 0.1, falsepass 0.11 and bohrin 0.4 (`pip install` and the name).

A verdict is what makes their command, or the gate that their page recommends, end with another code than 0. reward-doctor and rewardlint bring
references of their own, so graders that score a stored entry cannot be asked by them. reward-contract-fuzzer 0.2 takes a decision process with
states, actions and an intended policy. A grader of texts is none, so it cannot be asked.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradus.auditing.text.tasks import TextSubject, TextTask

_SAMPLE = 20  # tasks, as gradecheck's documentation has it
_GATE = ("ceiling>0.1", "errors>0")  # of the action on falsepass' page
Said = tuple[str, list[str]]


def _linted(subject: TextSubject, free: bool, audit: Callable[..., Any]) -> Said:
    if not free:
        return "not run", ["it has references of its own"]

    def grade(completion: str, reference: str, prompt: str) -> float:
        return subject.judge(TextTask(key="0", prompt=prompt, gold=reference), completion) or 0.0

    result = audit(grade)
    bad = [*result.exploits_accepted, *result.errors]
    return "fail" if bad else "pass", [f"{each.case.id}: {each.error or each.case.completion}" for each in bad]


def reward_doctor(subject: TextSubject, free: bool) -> Said:
    """The verdict and what it found. ``free``: the grader takes any reference."""
    from reward_doctor import audit  # pyright: ignore[reportMissingImports]

    return _linted(subject, free, audit)


def rewardlint(subject: TextSubject, free: bool) -> Said:
    """The verdict and what it found, by the same rule."""
    from rewardlint import audit  # pyright: ignore[reportMissingImports]

    return _linted(subject, free, audit)


def _by_prompt(subject: TextSubject) -> dict[str, TextTask]:
    return {task.prompt: task for task in subject.tasks}


def gradecheck(subject: TextSubject, free: bool) -> Said:
    """The verdict and what it found, through the door that it has for verifiers' environments."""
    from gradecheck.completion_attacks import run_all  # pyright: ignore[reportMissingImports]
    from gradecheck.verifiers_env import VerifiersEnv  # pyright: ignore[reportMissingImports]

    tasks = _by_prompt(subject)
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


def falsepass(subject: TextSubject, free: bool) -> Said:
    """The verdict of its gate, through the door that it has for reward functions in TRL's signature."""
    from falsepass import report, runner  # pyright: ignore[reportMissingImports]

    tasks = _by_prompt(subject)

    def grade(completions: Sequence[str], prompts: Sequence[str], **_: Any) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [subject.judge(tasks[prompt], completion) or 0.0 for prompt, completion in pairs]

    sys.modules["asked_grader"] = SimpleNamespace(grade=grade)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": task.prompt, "answer": task.gold} for task in tasks.values()]
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (folder / "rewards.py").write_text(
            "import asked_grader\n\ndef grade(completions, prompts, **columns):\n    return asked_grader.grade(completions, prompts)\n"
        )
        (folder / "env.toml").write_text(
            f'[env]\nid = "local/rewards"\nframework = "reward"\ntask = "{folder}/rewards.py"\ndataset = "{folder}/rows.jsonl"\nfunctions = ["grade"]\n'
        )
        try:
            results = runner.run(folder, _SAMPLE, jobs=1)["results"]
        except RuntimeError as error:
            return "not run", [str(error)[:300]]
    bad = {f"{row['probe']} {row['variant']}: {row['completion'][:80]}" for row in results if not row["passed"]}
    return "fail" if report.gate(results, list(_GATE)) else "pass", sorted(bad)


def bohrin(subject: TextSubject, free: bool) -> Said:
    """Fails if the grader accepts a submission of its battery, all of which it calls wrong by construction."""
    from bohrin.ir.task import Task  # pyright: ignore[reportMissingImports]
    from bohrin.mutate.battery import battery  # pyright: ignore[reportMissingImports]

    taken: list[str] = []
    for task in subject.tasks[:_SAMPLE]:
        right = subject.judge(task, f"{task.before}{task.gold or ''}{task.after}") or 0.0
        for candidate in battery(Task(id=task.key, prompt=task.prompt, reference=task.gold)).grounded:
            text = getattr(candidate.payload, "text", None)
            if text is not None and right > 0 and (subject.judge(task, text) or 0.0) >= right:
                taken.append(f"{candidate.provenance.operator}: {text[:80]}")
    return "fail" if taken else "pass", taken[:10]


RIVALS: dict[str, Callable[[TextSubject, bool], Said]] = {
    "reward-doctor": reward_doctor,
    "rewardlint": rewardlint,
    "gradecheck": gradecheck,
    "falsepass": falsepass,
    "bohrin": bohrin,
}
