"""The best answer without the task as one string, shortened while it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.auditing.records import LEAST_EFFECT
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.rates import Rate
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextTask

_SHORTENED_ON = 12
_ROUNDS = 12
_KEPT = 0.9  # of the effect that the shorter answer must keep


def minimized(ground: Ground, rates: Sequence[Rate]) -> Mapping[str, Any] | None:
    """The best blind answer as one string for all tasks, shortened while it keeps nine tenths of what it earns.

    None if no single string earns more than the least effect.
    """
    scorer = ground.scorer
    rates = [each for each in rates if (each.above_silence["mean"] or 0.0) > LEAST_EFFECT]
    if not rates:
        return None
    tasks = [task for task in ground.tasks if task.key in ground.bases][:_SHORTENED_ON]
    candidates = list(dict.fromkeys(str(each.example["answer"]) for each in rates if not each.example["cut"]))
    earned = {answer: _mean_reward(scorer, tasks, answer) for answer in candidates}
    silence = _mean_reward(scorer, tasks, "")
    if not earned or max(earned.values()) - silence <= 0.5 * ground.span:
        return None
    start = max(earned, key=lambda answer: earned[answer])
    best, need = start, silence + _KEPT * (earned[start] - silence)
    for _ in range(_ROUNDS):
        shorter = list(dict.fromkeys(_cut(best)))
        scores = {answer: _mean_reward(scorer, tasks, answer) for answer in shorter}
        good = [answer for answer in shorter if scores[answer] >= need]
        if not good:
            break
        best = min(good, key=len)
    again = [score.value for score in scorer.fresh([(task, task.whole(best)) for task in tasks])]  # before it is shown
    known = [value for value in again if value is not None]
    if not known or sum(known) / len(known) < need:
        return None
    return {
        "answer": best,
        "completion": tasks[0].whole(best),
        "reward": sum(known) / len(known),
        "silence": silence,
        "tasks": len(tasks),
        "first": start,
    }


def _cut(answer: str) -> list[str]:
    """The answer without one of its halves, quarters or eighths, or, if it is short, without one character."""
    size = len(answer)
    pieces = [answer[:i] + answer[i + 1 :] for i in range(size)] if size <= 24 else []
    for parts in (2, 4, 8):
        step = max(1, size // parts)
        pieces += [answer[:start] + answer[start + step :] for start in range(0, size, step)]
    return [piece for piece in pieces if piece and piece != answer]


def _mean_reward(scorer: Scorer, tasks: Sequence[TextTask], answer: str) -> float:
    scores = scorer.score([(task, task.whole(answer)) for task in tasks])
    return sum(score.value or 0.0 for score in scores) / max(1, len(scores))
