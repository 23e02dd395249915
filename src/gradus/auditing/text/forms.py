"""How a right answer is written as a completion: as the task declares it, or in the form that the grader rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextTask

DECLARED = "as declared"
_FORMS: Mapping[str, tuple[str, str]] = {
    "bare": ("", ""),
    "in <answer> tags": ("<answer>", "</answer>"),
    "in <answer> tags after <think>": ("<think>\nso it is\n</think>\n<answer>\n", "\n</answer>"),
    "in <answer> tags after <reasoning>": ("<reasoning>\nso it is\n</reasoning>\n<answer>\n", "\n</answer>\n"),
    "in \\boxed{}": ("\\boxed{", "}"),
    "after ####": ("#### ", ""),
    "after 'The answer is'": ("The answer is ", ""),
}
_TASKS = 6


def in_best_form(tasks: Sequence[TextTask], scorer: Scorer, *, top: float | None) -> tuple[str, list[TextTask]]:
    """The form in which gold earns most, the declared one if no other earns more, and the tasks with it.

    ``top``: the most that can be earned; if the declared form earns it, no other is tried.
    """
    declared = _earned(tasks, scorer)
    best, kept = DECLARED, list(tasks)
    most = float("-inf") if declared is None else declared
    if top is not None and most >= top - 1e-9:
        return best, kept
    for name, (before, after) in _FORMS.items():
        written = [replace(task, before=before, after=after) for task in tasks]
        earned = _earned(written, scorer)
        if earned is not None and earned > most + 1e-9:
            best, kept, most = name, written, earned
    return best, kept


def _earned(tasks: Sequence[TextTask], scorer: Scorer) -> float | None:
    """The mean reward of gold on a few tasks; None if the grader fails on one."""
    values = [score.value for score in scorer.score([(task, task.whole(task.gold or "")) for task in tasks[:_TASKS]])]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
