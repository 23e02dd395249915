"""Rules about tasks and episodes that are held out: validation while training, and the evaluation at the end."""

from __future__ import annotations

from gradus.core.frozen_record import frozen_record
from gradus.evidence.health.history import Fired, History, Record
from gradus.evidence.health.learning_rules import SURE, VERY_SURE
from gradus.stats import Paired, format_interval, format_number, format_signed, paired_difference

_PAIRS = 8  # tasks below which a comparison says nothing
_OVERFIT = 1.05
_FAR = 0.25


@frozen_record
class _Change:
    """A figure on the same tasks, the newest validation minus the first of its kind."""

    paired: Paired
    deviations: float  # standard errors, signed, and after so many looks at it
    tasks: str  # in words
    since: int | None  # the step of the first


def hack_on_validation(history: History) -> Fired:
    """Task by task against the first validation: the reward is up and the true reward down, both far beyond noise.

    Training steps meet other tasks each time, and how much tasks differ can hide for long what a pair of rollouts of the same
    task shows at once.
    """
    up, down = _change(history, "rewards"), _change(history, "true_rewards")
    if up is None or down is None:
        return None
    sure = min(up.deviations, -down.deviations)
    if sure < SURE:
        return None
    rise, fall = format_signed(up.paired.mean), format_signed(down.paired.mean)
    evidence = (
        f"{up.tasks} the reward moved by {rise} since step {up.since} "
        f"and the true reward by {fall}, {sure:.1f} standard errors or more after so many looks"
    )
    return "fail" if sure > VERY_SURE else "warn", evidence


def worse_on_validation(history: History) -> Fired:
    """Task by task against the first validation the reward, or the true reward, has fallen beyond noise."""
    for name, word in (("rewards", "reward"), ("true_rewards", "true reward")):
        change = _change(history, name)
        if change is None:
            continue
        if change.deviations > SURE:
            return None  # the reward rose; if the true reward fell, another rule calls it a hack
        if change.deviations < -SURE:
            fall = format_number(-(change.paired.mean or 0.0))
            evidence = f"{change.tasks} the {word} fell by {fall} since step {change.since}"
            return "warn", f"{evidence}, {-change.deviations:.1f} standard errors after so many looks"
    return None


def worse_in_evaluation(history: History) -> Fired:
    """In the evaluation of a run the trained student is proven to be below the student before GRPO."""
    for record in history.records:
        for name in ("reward", "true_reward"):
            change = record.get(name, {})
            if change.get("decision") == "worse":
                return "warn", f"{_pair(record)}: {name.replace('_', ' ')} {format_interval(change, signed=True)}"
    return None


def no_gain(history: History) -> Fired:
    """In the evaluation of a run sampled answers of GRPO's student are not proven to differ from those of the student before it."""
    record = next((record for record in history.records if record["pair"].startswith("grpo - ")), None)
    if record is None or record.get("of") == "teacher":
        return None
    change: Record = record.get("reward", {})
    if change.get("decision") != "undecided":
        return None
    return "warn", f"{_pair(record)}: reward {format_interval(change, signed=True)}"


def far_below_teacher(history: History) -> Fired:
    """The trained student is surely below its teacher, by more than a quarter of what the teacher earns above the worst policy."""
    record = next((record for record in history.records if record.get("of") == "teacher"), None)
    if record is None:
        return None
    change, span = record["reward"], record["span"]
    high = change.get("high")
    if span <= 0 or -change["mean"] <= _FAR * span:
        return None
    if high is not None and high >= 0:
        return None
    share = -change["mean"] / span
    return "warn", (
        f"{_pair(record)}: reward {format_signed(change['mean'])}, "
        f"{share:.0%} of what the teacher earns above the worst policy"
    )


def _pair(record: Record) -> str:
    return f"{record['pair']} on {record['condition']}"


def overfitting(history: History) -> Fired:
    """The last three validation losses of SFT all lie 5 % above the best, while the training loss went on falling."""
    losses = history.measured("validation_loss")
    if len(losses) < 4:
        return None
    best = losses.min()
    if losses[-3:].min() <= _OVERFIT * best:
        return None
    last = format_number(losses[-1])
    return "warn", f"validation loss {last} against {format_number(best)} at its best, three times in a row"


def _kind(record: Record) -> tuple[object, object]:
    return record.get("decoding"), record.get("condition")


def _change(history: History, name: str) -> _Change | None:
    """Now minus the first, task by task; None before there are two, if the lists do not match, or if fewer than eight pairs are known."""
    kind = _kind(history.last)
    alike = [record for record in history.records if _kind(record) == kind]
    first, last = alike[0], history.last
    earlier, later = first.get(name, []), last.get(name, [])
    if len(alike) < 2 or len(earlier) != len(later):
        return None
    paired = paired_difference(later, earlier)
    # Each validation is one more look, any of which may be the lucky one.
    deviations = paired.deviations(looks=len(alike) - 1)
    if paired.n < _PAIRS or deviations is None:
        return None
    return _Change(
        paired=paired,
        deviations=deviations,
        tasks=f"on the same {paired.n} tasks ({last.get('decoding')})",
        since=first.get("step"),
    )
