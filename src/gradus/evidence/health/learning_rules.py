"""Rules about what is learned: variety, length, reward and what it is worth."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradus.evidence.health.history import Fired, History, difference, measured, trend
from gradus.stats import format_number, format_signed

_WINDOW = 10
MOST_ZERO_VARIANCE = 0.5  # of the groups
_HALF = 0.5  # of what spread and variety were at the start
_VARIED = 0.75  # of the variety at the start, from which its fall is held against the reward
_GONE = 0.2  # of what the answer told about the task at the start
_LONGER = 1.3
_STUCK = 50
_NOISE = 2.0  # t within which a slope is noise
SURE, VERY_SURE = 3.0, 4.5  # t beyond which two opposite slopes are not chance
_HACK_WINDOW, _HACK_LEAST = 60, 20
_FALL_WINDOWS = (20, 60, 180)
_FALLEN = 0.5  # of the spread between episodes: a fall that matters
_DOMINANT = 0.9
_SAME = 0.95  # correlation over steps
_WORTH = 0.15  # of the spread between episodes: a rise over 50 steps that is worth having


def collapse(history: History) -> Fired:
    """Spread and variety both below half of what they were, the reward flat over the last 20 steps, and nothing gained meanwhile.

    Members of a group also agree when they are all right: then the reward rose while the variety fell from three quarters to
    less than half.
    """
    spread = _against_start(history, "reward_std")
    variety = _against_start(history, "distinct_actions")
    flat = trend(history.column("reward_mean", 2 * _WINDOW))
    if len(history) < 3 * _WINDOW or spread is None or variety is None:
        return None
    if spread >= _HALF or variety >= _HALF:
        return None
    if flat is None or flat.t > _NOISE:
        return None
    if _rose_while_variety_fell(history):
        return None
    return "warn", (
        f"reward_std is {spread:.0%} and distinct_actions {variety:.0%} of the first {_WINDOW} steps, "
        f"the reward moved by {format_signed(flat.rise)} in {2 * _WINDOW} steps"
    )


def _rose_while_variety_fell(history: History) -> bool:
    """Says if the reward rose since the variety was last at three quarters of its start, over windows of ten steps.

    At least a quarter of the whole rise must lie there, so that the end of an earlier rise does not count.
    """
    variety, rewards = history.column("distinct_actions"), history.column("reward_mean")
    first = history.first_mean("distinct_actions", _WINDOW) or 0.0
    averages = np.nanmean(sliding_window_view(variety, _WINDOW), axis=1)
    varied = np.flatnonzero(averages >= _VARIED * first)
    if not len(varied):
        return False
    start, now = rewards[:_WINDOW], rewards[-_WINDOW:]
    then = rewards[varied[-1] :][:_WINDOW]  # of the last window that was varied
    rise = difference(then, now)
    is_large = 4 * np.nanmean(now - then) >= np.nanmean(now - start)
    return rise is not None and rise > _NOISE and bool(is_large)


def template_collapse(history: History) -> Fired:
    """Fires if answers tell less than a fifth of what they told about their task at the start, or if beliefs spread as little."""
    if len(history) < 2 * _WINDOW:
        return None
    spreads = [name for name in history.names("metrics") if name.endswith(("_variance", "_spread"))]
    for name in ("answer_information", *(f"metrics.{name}" for name in spreads)):
        start = history.first_mean(name, _WINDOW)
        share = _against_start(history, name)
        if start is None or share is None:
            continue
        # What told hardly anything at the start cannot lose it.
        if start > 1e-3 and share < _GONE:
            figure = name.removeprefix("metrics.")
            return "warn", f"{figure} fell to {share:.0%} of the first {_WINDOW} steps ({format_number(start)})"
    return None


def length_drift(history: History) -> Fired:
    """Answers longer by a third than 50 steps ago at most, while the reward has not risen beyond its noise."""
    window = min(len(history), 5 * _WINDOW)
    if window < 2 * _WINDOW:
        return None
    lengths = history.column("action_tokens_mean", window)
    first = measured(lengths[:_WINDOW])
    last = measured(lengths[-_WINDOW:])
    slope = trend(history.column("reward_mean", window))
    if not len(first) or not len(last):
        return None
    if slope is None or slope.t > _NOISE:
        return None
    before, now = first.mean(), last.mean()
    if before <= 0 or now < _LONGER * before:
        return None
    growth = f"from {before:.0f} to {now:.0f} tokens in {window} steps"
    return "warn", f"answers grew {growth}, the reward moved by {format_signed(slope.rise)}"


def reward_stuck(history: History) -> Fired:
    """No slope beyond noise for 50 steps with live groups; after a real rise that is a plateau, which is only said."""
    if len(history) < _STUCK:
        return None
    share = history.mean("zero_variance_groups", _STUCK)
    if share is not None and share > MOST_ZERO_VARIANCE:
        return None
    rewards = history.column("reward_mean", _STUCK)
    slope, spread = trend(rewards), history.mean("reward_total_std", _STUCK)
    if slope is None or abs(slope.t) >= _NOISE:
        return None
    # With few groups a rise that is worth having may hide in the noise.
    highest = abs(slope.rise) + _NOISE * slope.error
    if spread is not None and highest > _WORTH * spread:
        return None
    evidence = (
        f"the reward moved by {format_signed(slope.rise)} in {_STUCK} steps, within its noise (t = {slope.t:+.1f})"
    )
    first, last = history.head("reward_mean", _WINDOW), rewards[-_WINDOW:]
    risen = difference(first, last)
    if len(history) > _STUCK and risen is not None and risen > SURE:
        gain = format_number(float(np.nanmean(last) - np.nanmean(first)))
        return "note", f"{evidence}; it had risen by {gain} before, so this is a plateau"
    return "warn", evidence


def reward_falls(history: History) -> Fired:
    """The reward has fallen far beyond noise over the last 20, 60 or 180 steps, by at least half of the spread between episodes.

    Where adaptive weights are lowered with success the reward falls by that alone; there the true reward is judged.
    """
    has_weights = bool(history.names("weights"))
    name = "true_reward_mean" if has_weights else "reward_mean"
    if len(history) < _FALL_WINDOWS[0]:
        return None
    for window in dict.fromkeys(min(window, len(history)) for window in _FALL_WINDOWS):
        values = history.column(name, window)
        first, last = values[:_WINDOW], values[-_WINDOW:]
        slope, change = trend(values), difference(first, last)
        if slope is None or change is None:
            continue
        if slope.t > -VERY_SURE or change > -VERY_SURE:
            continue
        then, now = float(np.nanmean(first)), float(np.nanmean(last))
        # Of the first half: at the end of a fall the spread is another one. It is the reward's, and says nothing of the true reward.
        spreads = history.measured("reward_total_std", window)[: window // 2]
        matters = has_weights or not len(spreads) or then - now >= _FALLEN * spreads.mean()
        if matters:
            what = name.removesuffix("_mean").replace("_", " ")
            fall = f"from {format_number(then)} to {format_number(now)}"
            return "warn", f"the {what} fell {fall} in {window} steps (t = {slope.t:.1f})"
    return None


def component_dominance(history: History) -> Fired:
    """One of several components carries more than nine tenths of the reward's variance; if it moves with the true reward it should."""
    names = history.names("component_variance", last=_WINDOW)
    # A single component always carries all of it.
    if len(names) < 2 or len(history) < _WINDOW:
        return None
    for name in names:
        share = history.mean(f"component_variance.{name}", _WINDOW)
        if share is not None and share > _DOMINANT:
            evidence = f"{name} carries {share:.0%} of the reward's variance over the last {_WINDOW} steps"
            return None if _is_the_aim(history, name) else ("warn", evidence)
    return None


def _is_the_aim(history: History, component: str) -> bool:
    """Says if a component's mean moves with the true reward, as that of right answers does."""
    means = history.column(f"components.{component}", _HACK_WINDOW)
    aims = history.column("true_reward_mean", _HACK_WINDOW)
    both = ~(np.isnan(means) | np.isnan(aims))
    x, y = means[both], aims[both]
    if len(x) < _WINDOW:
        return False
    if np.ptp(x) < 1e-9 or np.ptp(y) < 1e-9:  # no correlation is defined
        return False
    return bool(np.corrcoef(x, y)[0, 1] > _SAME)


def hack_suspected(history: History) -> Fired:
    """The reward rises and the true reward falls, both far beyond noise, over the last 20 to 60 steps."""
    window = min(len(history), _HACK_WINDOW)
    aims = history.column("true_reward_mean", window)
    up, down = trend(history.column("reward_mean", window)), trend(aims)
    if window < _HACK_LEAST or up is None or down is None:
        return None
    sure = min(up.t, -down.t)
    if sure < SURE:
        return None
    # A line through all steps may fall although the end is where the beginning was.
    change = difference(aims[:_WINDOW], aims[-_WINDOW:])
    if change is None or change > -_NOISE:
        return None
    return "fail" if sure > VERY_SURE else "warn", (
        f"over {window} steps the reward moved by {format_signed(up.rise)} (t = {up.t:.1f}) "
        f"and the true reward by {format_signed(down.rise)} (t = {down.t:.1f})"
    )


def short_answers(history: History) -> Fired:
    """Episodes shrink to one short answer: below half of the tokens and of the variety at the start, and nothing gained by it."""
    length = _against_start(history, "action_tokens_mean")
    variety = _against_start(history, "distinct_actions")
    if len(history) < 2 * _WINDOW or length is None or variety is None:
        return None
    if length >= _HALF or variety >= _HALF:
        return None
    # Short answers that are right are no fault.
    aim = "true_reward_mean" if len(history.measured("true_reward_mean")) else "reward_mean"
    gain = difference(history.head(aim, _WINDOW), history.column(aim, _WINDOW))
    if gain is None or gain > _NOISE:
        return None
    tokens = history.mean("action_tokens_mean", _WINDOW)
    return "warn", (
        f"episodes have {length:.0%} of the tokens ({tokens:.0f}) and {variety:.0%} of the distinct answers "
        f"of the first {_WINDOW} steps"
    )


def _against_start(history: History, name: str) -> float | None:
    """Mean of the last ten steps over the mean of the first ten."""
    start, now = history.first_mean(name, _WINDOW), history.mean(name, _WINDOW)
    if start is None or now is None or start <= 0:
        return None
    return now / start
