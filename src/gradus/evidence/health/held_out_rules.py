"""Rules about tasks and episodes that are held out: validation while training, and the evaluation at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.evidence.health.history import Finding, History
from gradus.evidence.health.learning_rules import SURE, VERY_SURE
from gradus.stats import Paired, format_interval, format_number, format_signed, paired_difference

_PAIRS = 8  # tasks below which a comparison says nothing
_SAME = ("decoding", "condition")
_OVERFIT = 1.05
_FAR = 0.25


def hack_on_validation(history: History) -> Finding | None:
    """Task by task against the first validation: the reward is up and the true reward down, both far beyond noise.

    Training steps meet other tasks each time, and how much tasks differ can hide for long what a pair of rollouts of the same
    task shows at once.
    """
    now, first, looks = _validations(history)
    up, down = (_moved(first, now, name) for name in ("rewards", "true_rewards"))
    rise, fall = (None if moved is None else moved.deviations(looks) for moved in (up, down))
    if first is now or up is None or down is None or rise is None or fall is None or min(rise, -fall) < SURE:
        return None
    evidence = (
        f"on the same {up.n} tasks ({now.get('decoding')}) the reward moved by {format_signed(up.mean)} since step {first.get('step')} "
        f"(t = {up.t:.1f}) and the true reward by {format_signed(down.mean)} (t = {down.t:.1f})"
    )
    return Finding(severity="stop" if min(rise, -fall) > VERY_SURE else "warn", evidence=evidence)


def worse_on_validation(history: History) -> Finding | None:
    """Task by task against the first validation the reward, or the true reward, has fallen beyond noise."""
    now, first, looks = _validations(history)
    if first is now:
        return None
    for name, word in (("rewards", "reward"), ("true_rewards", "true reward")):
        moved = _moved(first, now, name)
        sure = None if moved is None else moved.deviations(looks)
        if moved is None or moved.mean is None or sure is None:
            continue
        if sure > SURE:
            return None  # the reward rose; if the true reward fell, that is a hack and told as one
        if sure < -SURE:
            evidence = (
                f"on the same {moved.n} tasks ({now.get('decoding')}) the {word} fell by {format_number(-moved.mean)} "
                f"since step {first.get('step')} (t = {moved.t:.1f})"
            )
            return Finding(severity="warn", evidence=evidence)
    return None


def worse_in_evaluation(history: History) -> Finding | None:
    """In the evaluation of a run the trained student is below the student before GRPO, by an interval that leaves out 0."""
    for record in history.records:
        for name in ("reward", "true_reward"):
            change = record.get(name) or {}
            if isinstance(high := change.get("high"), int | float) and high < 0:
                evidence = (
                    f"{record['pair']} on {record['condition']}: {name.replace('_', ' ')} "
                    f"{format_interval(change, signed=True)}"
                )
                return Finding(severity="warn", evidence=evidence)
    return None


def no_gain(history: History) -> Finding | None:
    """In the evaluation of a run sampled answers of GRPO's student are not told apart from those of the student before it."""
    record = next((each for each in history.records if each["pair"].startswith("grpo - ")), None)
    change = (record or {}).get("reward") or {}
    low, high = change.get("low"), change.get("high")
    if record is None or record.get("of") == "teacher" or low is None or high is None or not low <= 0 <= high:
        return None
    evidence = f"{record['pair']} on {record['condition']}: reward {format_interval(change, signed=True)}"
    return Finding(severity="warn", evidence=evidence)


def far_below_teacher(history: History) -> Finding | None:
    """The trained student is surely below its teacher, by more than a quarter of what the teacher earns above the worst policy."""
    record = next((each for each in history.records if each.get("of") == "teacher"), None)
    if record is None:
        return None
    change, span = record["reward"], record["span"]
    high = change.get("high")
    if span <= 0 or -change["mean"] <= _FAR * span or (high is not None and high >= 0):
        return None
    evidence = (
        f"{record['pair']} on {record['condition']}: reward {format_signed(change['mean'])}, "
        f"{-change['mean'] / span:.0%} of what the teacher earns above the worst policy"
    )
    return Finding(severity="warn", evidence=evidence)


def overfitting(history: History) -> Finding | None:
    """The last three validation losses of SFT all lie 5 % above the best, while the training loss went on falling."""
    losses = history.known("validation_loss")
    if len(losses) < 4 or losses[-3:].min() <= _OVERFIT * losses.min():
        return None
    evidence = f"validation loss {format_number(losses[-1])} against {format_number(losses.min())} at its best, three times in a row"
    return Finding(severity="warn", evidence=evidence)


def _validations(history: History) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
    """The newest validation, the first one of its kind, and how often they have been compared with that one."""
    now = history.last
    alike = [each for each in history.records if all(each.get(key) == now.get(key) for key in _SAME)]
    return now, alike[0], max(1, len(alike) - 1)


def _moved(first: Mapping[str, Any], now: Mapping[str, Any], name: str) -> Paired | None:
    """Now minus then, task by task; None if the lists do not match or fewer than eight pairs are known."""
    earlier, later = first.get(name), now.get(name)
    if earlier is None or later is None or len(earlier) != len(later):
        return None
    moved = paired_difference(later, earlier)
    return moved if moved.n >= _PAIRS else None
