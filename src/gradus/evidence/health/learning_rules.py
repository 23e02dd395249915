"""Rules about what is learned: variety, length, reward and what it is worth."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradus.evidence.health.history import Finding, History, difference, trend
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


def collapse(history: History) -> Finding | None:
    """Spread and variety both below half of what they were, the reward flat over the last 20 steps, and nothing gained meanwhile.

    Members of a group also agree when they are all right: then the reward rose while the variety fell from three quarters to
    less than half.
    """
    if len(history) < 3 * _WINDOW:
        return None
    spread = _against_start(history, "reward_std")
    variety = _against_start(history, "distinct_actions")
    if spread is None or variety is None or spread >= _HALF or variety >= _HALF:
        return None
    flat = trend(history.column("reward_mean", 2 * _WINDOW))
    if flat is None or flat.t > _NOISE or _paid_for(history, "distinct_actions"):
        return None
    evidence = (
        f"reward_std is {spread:.0%} and distinct_actions {variety:.0%} of the first {_WINDOW} steps, "
        f"the reward moved by {format_signed(flat.rise)} in {2 * _WINDOW} steps"
    )
    return Finding(severity="warn", evidence=evidence)


def _paid_for(history: History, name: str) -> bool:
    """Says if the reward rose while ``name`` fell: since it was last at three quarters of its start, over windows of ten steps.

    At least a quarter of the whole rise must lie there, so that the end of an earlier rise does not count.
    """
    values, rewards = history.column(name), history.column("reward_mean")
    first = history.first_mean(name, _WINDOW)
    if first is None or len(values) < _WINDOW:
        return False
    varied = np.flatnonzero(np.nanmean(sliding_window_view(values, _WINDOW), axis=1) >= _VARIED * first)
    if not len(varied):
        return False
    start, then, now = rewards[:_WINDOW], rewards[varied[-1] :][:_WINDOW], rewards[-_WINDOW:]
    rose = difference(then, now)
    return rose is not None and rose > _NOISE and bool(4 * np.nanmean(now - then) >= np.nanmean(now - start))


def template_collapse(history: History) -> Finding | None:
    """Fires if answers tell less than a fifth of what they told about their task at the start, or if beliefs spread as little."""
    if len(history) < 2 * _WINDOW:
        return None
    spreads = [f"metrics.{name}" for name in history.names("metrics") if name.endswith(("_variance", "_spread"))]
    for name in ["answer_information", *spreads]:
        start = history.first_mean(name, _WINDOW)
        share = _against_start(history, name)
        if start is not None and start > 1e-3 and share is not None and share < _GONE:
            shown = name.removeprefix("metrics.")
            return Finding(
                severity="warn",
                evidence=f"{shown} fell to {share:.0%} of the first {_WINDOW} steps ({format_number(start)})",
            )
    return None


def length_drift(history: History) -> Finding | None:
    """Answers longer by a third than 50 steps ago at most, while the reward has not risen beyond its noise."""
    window = min(len(history), 5 * _WINDOW)
    if window < 2 * _WINDOW:
        return None
    lengths, rewards = history.column("action_tokens_mean", window), history.column("reward_mean", window)
    before, now = np.nanmean(lengths[:_WINDOW]) if _any(lengths[:_WINDOW]) else 0.0, _last_mean(lengths)
    rising = trend(rewards)
    if now is None or before <= 0 or now < _LONGER * before or rising is None or rising.t > _NOISE:
        return None
    evidence = f"answers grew from {before:.0f} to {now:.0f} tokens in {window} steps, the reward moved by {format_signed(rising.rise)}"
    return Finding(severity="warn", evidence=evidence)


def reward_stuck(history: History) -> Finding | None:
    """No slope beyond noise for 50 steps with live groups; after a real rise that is a plateau, which is only said."""
    share = history.mean("zero_variance_groups", _STUCK)
    if len(history) < _STUCK or (share is not None and share > MOST_ZERO_VARIANCE):
        return None
    rewards, first = history.column("reward_mean", _STUCK), history.head("reward_mean", _WINDOW)
    flat, spread = trend(rewards), history.mean("reward_total_std", _STUCK)
    if flat is None or abs(flat.t) >= _NOISE:
        return None
    if spread is not None and abs(flat.rise) + _NOISE * flat.error > _WORTH * spread:
        return None  # few groups: a rise that is worth having may hide in the noise
    evidence = f"the reward moved by {format_signed(flat.rise)} in {_STUCK} steps, within its noise (t = {flat.t:+.1f})"
    risen = difference(first, rewards[-_WINDOW:])
    if len(history) > _STUCK and risen is not None and risen > SURE:
        gained = float(np.nanmean(rewards[-_WINDOW:]) - np.nanmean(first))
        return Finding(
            severity="info",
            evidence=f"{evidence}; it had risen by {format_number(gained)} before, so this is a plateau",
        )
    return Finding(severity="warn", evidence=evidence)


def reward_falls(history: History) -> Finding | None:
    """The reward has fallen far beyond noise over the last 20, 60 or 180 steps, by at least half of the spread between episodes.

    Where adaptive weights are lowered with success the reward falls by that alone; there the true reward is judged.
    """
    name = "true_reward_mean" if history.names("weights") else "reward_mean"
    if len(history) < _FALL_WINDOWS[0]:
        return None
    for window in dict.fromkeys(min(each, len(history)) for each in _FALL_WINDOWS):
        values = history.column(name, window)
        down, apart = trend(values), difference(values[:_WINDOW], values[-_WINDOW:])
        if down is None or apart is None or max(down.t, apart) > -VERY_SURE:
            continue
        then, now = float(np.nanmean(values[:_WINDOW])), float(np.nanmean(values[-_WINDOW:]))
        spreads = history.known("reward_total_std", window)[: window // 2]
        if name == "true_reward_mean" or not len(spreads) or then - now >= _FALLEN * float(spreads.mean()):
            what = name.removesuffix("_mean").replace("_", " ")
            evidence = f"the {what} fell from {format_number(then)} to {format_number(now)} in {window} steps (t = {down.t:.1f})"
            return Finding(severity="warn", evidence=evidence)
    return None


def component_dominance(history: History) -> Finding | None:
    """One of several components carries more than nine tenths of the reward's variance; if it moves with the true reward it should."""
    names = history.names("component_variance", last=_WINDOW)
    if len(names) < 2 or len(history) < _WINDOW:
        return None
    for name in names:
        share = history.mean(f"component_variance.{name}", _WINDOW)
        if share is not None and share > _DOMINANT:
            evidence = f"{name} carries {share:.0%} of the reward's variance over the last {_WINDOW} steps"
            return None if _is_the_aim(history, name) else Finding(severity="warn", evidence=evidence)
    return None


def _is_the_aim(history: History, component: str) -> bool:
    """Says if a component's mean moves with the true reward, as that of right answers does."""
    means, aims = (history.column(key, _HACK_WINDOW) for key in (f"components.{component}", "true_reward_mean"))
    known = ~(np.isnan(means) | np.isnan(aims))
    x, y = means[known], aims[known]
    if len(x) < _WINDOW or np.ptp(x) < 1e-9 or np.ptp(y) < 1e-9:
        return False
    return float(np.corrcoef(x, y)[0, 1]) > _SAME


def hack_suspected(history: History) -> Finding | None:
    """The reward rises and the true reward falls, both far beyond noise, over the last 20 to 60 steps."""
    window = min(len(history), _HACK_WINDOW)
    if window < _HACK_LEAST:
        return None
    rewards, aims = history.column("reward_mean", window), history.column("true_reward_mean", window)
    up, down = trend(rewards), trend(aims)
    if up is None or down is None or up.t < SURE or down.t > -SURE:
        return None
    apart = difference(aims[:_WINDOW], aims[-_WINDOW:])
    if apart is None or apart > -_NOISE:
        return None
    evidence = f"over {window} steps the reward moved by {format_signed(up.rise)} (t = {up.t:.1f}) and the true reward by {format_signed(down.rise)} (t = {down.t:.1f})"
    sure = up.t > VERY_SURE and down.t < -VERY_SURE
    return Finding(severity="stop" if sure else "warn", evidence=evidence)


def short_answers(history: History) -> Finding | None:
    """Episodes shrink to one short answer: below half of the tokens and of the variety at the start, and nothing gained by it."""
    if len(history) < 2 * _WINDOW:
        return None
    length, variety = _against_start(history, "action_tokens_mean"), _against_start(history, "distinct_actions")
    if length is None or variety is None or length >= _HALF or variety >= _HALF:
        return None
    aim = "true_reward_mean" if len(history.known("true_reward_mean")) else "reward_mean"
    gained = difference(history.head(aim, _WINDOW), history.column(aim, _WINDOW))
    if gained is None or gained > _NOISE:
        return None
    tokens = history.mean("action_tokens_mean", _WINDOW)
    evidence = f"episodes have {length:.0%} of the tokens ({tokens:.0f}) and {variety:.0%} of the distinct answers of the first {_WINDOW} steps"
    return Finding(severity="warn", evidence=evidence)


def _against_start(history: History, name: str) -> float | None:
    """Mean of the last ten steps over the mean of the first ten."""
    start, now = history.first_mean(name, _WINDOW), history.mean(name, _WINDOW)
    return None if start is None or now is None or start <= 0 else now / start


def _last_mean(values: np.ndarray) -> float | None:
    known = values[-_WINDOW:][~np.isnan(values[-_WINDOW:])]
    return float(known.mean()) if len(known) else None


def _any(values: np.ndarray) -> bool:
    return bool((~np.isnan(values)).any())
