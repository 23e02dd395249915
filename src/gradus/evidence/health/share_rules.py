"""Rules about shares: answers that cannot be read or were cut, failed episodes, calls of tools, groups without variance.

A share fires a rule only if it lies above the limit beyond chance: a step of eight episodes says little about its share.
"""

from __future__ import annotations

import numpy as np

from gradus.core.frozen_record import frozen_record
from gradus.evidence.health.history import Array, Fired, History, difference
from gradus.evidence.health.learning_rules import MOST_ZERO_VARIANCE, VERY_SURE
from gradus.stats import format_number
from gradus.stats.intervals import score_interval

_STEPS, _MOST_STEPS = 5, 50
_ENOUGH = 400  # episodes, answers or groups that are pooled if five steps hold fewer
_MANY = 1e6
_SURE = 2.5  # standard errors that a share must lie above a limit; rules ask at every step


@frozen_record
class Share:
    """A share of late, and what it is at least."""

    now: float  # over the last five steps
    # The higher of two lower bounds of Wilson's interval: over as many steps as hold enough, and over these five.
    low: float

    def above(self, limit: float) -> bool:
        """Says if the share lies above ``limit`` beyond chance."""
        return min(self.now, self.low) > limit


def share_of(history: History, name: str, count: str = "episodes") -> Share | None:
    """The recent share ``name`` of what ``count`` counts at each step; None if fewer than three of five steps say it."""
    counts = counts_of(history, count)
    return recent_share(history.column(name) * counts, counts)


def counts_of(history: History, name: str) -> Array:
    """Returns how many of ``name`` each step had, (n,); many where that is missing, so that the share is taken as it is."""
    return np.nan_to_num(history.column(name, optional=True), nan=_MANY)


def recent_share(hits: Array, counts: Array) -> Share | None:
    """The share of ``hits`` among ``counts``, both one value a step (n,), the newest last; NaN is missing."""
    hits, counts = hits[-_MOST_STEPS:], counts[-_MOST_STEPS:]
    has_figures = ~np.isnan(hits) & (counts > 0)
    if has_figures[-_STEPS:].sum() < 3:
        return None
    # A step without the figure counts as a step without episodes.
    hits, counts = np.where(has_figures, hits, 0.0), np.where(has_figures, counts, 0.0)
    # So many of the newest steps as hold enough together.
    pooled = np.cumsum(counts[::-1])
    enough = max(_STEPS, 1 + int(np.searchsorted(pooled, _ENOUGH)))
    now, low = _bounded(hits[-_STEPS:], counts[-_STEPS:])
    _, pooled_low = _bounded(hits[-enough:], counts[-enough:])
    return Share(now=now, low=max(low, pooled_low))


def _bounded(hits: Array, counts: Array) -> tuple[float, float]:
    """A share and its lower bound."""
    count = counts.sum()
    # Faults may have been taken off that were none, so that fewer than 0 remain.
    share = min(1.0, max(0.0, hits.sum() / count))
    return share, score_interval(share, count, _SURE).low or 0.0


_WINDOW = 10
_ZERO_VARIANCE_STOP = 0.8
_SHORT = 20  # steps of a stage below which it is not stopped: a short one ends by itself
_SOLVED = 0.6  # of the spread over episodes at the start, below which tasks count as solved
_INVALID = 0.05
_TRUNCATED = 0.1
_FAILED_WARN, _FAILED_STOP = 0.1, 0.5
_FAILED_FEW = 0.25  # of one or two steps


def zero_variance_groups(history: History) -> Fired:
    """More than half without variance is a warning, more than four fifths a stop, unless the reward says that the tasks are solved."""
    share = share_of(history, "zero_variance_groups", "groups")
    if share is None or not share.above(MOST_ZERO_VARIANCE):
        return None
    evidence = f"{share.now:.0%} of groups without reward variance over the last 5 steps"
    if not share.above(_ZERO_VARIANCE_STOP):
        return "warn", evidence
    success = _solved(history)
    if success:
        return "warn", evidence + success
    stage = history.last.get("stage")
    if stage is not None and len(history) < _SHORT:
        return "warn", f"{evidence}, in the first {len(history)} of stage {stage}"
    rewards = set(history.column("reward_mean", _WINDOW).tolist())
    if len(rewards) == 1 and min(rewards) > 0 and not history.column("reward_total_std", _WINDOW).any():
        evidence += f"; every answer earned {format_number(min(rewards))}: if that is the most, the tasks are solved"
    return "fail", evidence


def _solved(history: History) -> str:
    """A sentence if the reward has risen and differs less between episodes than it did: little is left to learn.

    Where adaptive weights are lowered with success the reward falls by that alone, and the true reward tells what was learned.
    """
    start, now = history.first_mean("reward_mean", 5), history.mean("reward_mean", _WINDOW)
    first_spread = history.first_mean("reward_total_std", 5)
    spread = history.mean("reward_total_std", _WINDOW)
    if start is None or now is None:
        return ""
    if first_spread is None or spread is None or spread > _SOLVED * first_spread:
        return ""
    if now - start >= max(first_spread, 1e-9) / 2:  # a rise that matters, beside how far episodes lay apart
        rise = f"from {format_number(start)} to {format_number(now)}"
        return f"; the reward rose {rise} and is nearly the same everywhere: the tasks may be solved"
    first = history.head("true_reward_mean", _WINDOW)
    last = history.column("true_reward_mean", _WINDOW)
    gain = difference(first, last)
    if not history.names("weights") or gain is None or gain < VERY_SURE:
        return ""
    before, after = format_number(float(first.mean())), format_number(float(np.nanmean(last)))
    rise = f"from {before} to {after}"
    return f"; the true reward rose {rise} and the reward differs little: the tasks may be solved"


def format_ignored(history: History) -> Fired:
    """More than one answer in twenty cannot be understood, beyond those that a budget may have cut: they were not finished."""
    episodes, turns = counts_of(history, "episodes"), history.column("turns_mean")
    cut = cut_episodes(history) / np.where(turns >= 1, turns, 1.0)
    invalid = share_of(history, "invalid_actions")  # answers of one episode are alike, so episodes are counted
    uncut = recent_share((history.column("invalid_actions") - cut) * episodes, episodes)
    if invalid is None or uncut is None or not uncut.above(_INVALID):
        return None
    evidence = f"{invalid.now:.1%} of answers invalid over the last 5 steps, above {_INVALID:.0%}"
    if invalid.now > uncut.now:
        evidence += f"; {uncut.now:.1%} without one for each episode that a budget cut"
    return "warn", evidence


def truncation(history: History) -> Fired:
    """More than one episode in ten is cut by a budget. Turns may be a rule of the task, so that their limit is only a note."""
    share, episodes = share_of(history, "truncated_episodes"), counts_of(history, "episodes")
    if share is None or not share.above(_TRUNCATED):
        return None
    cut = recent_share(cut_episodes(history) * episodes, episodes)
    if cut is None or not cut.above(_TRUNCATED):
        turns = history.mean("turn_limit_episodes", 5) or 0.0
        return "note", f"{turns:.0%} of episodes ended at the turn limit over the last 5 steps"
    return "warn", f"{share.now:.0%} of episodes hit a budget over the last 5 steps, above {_TRUNCATED:.0%}"


def cut_episodes(history: History) -> Array:
    """The share of episodes at each step that a budget of tokens or the environment cut, and not the turn limit."""
    truncated = np.nan_to_num(history.column("truncated_episodes"))
    return truncated - np.nan_to_num(history.column("turn_limit_episodes"))


def failing_episodes(history: History) -> Fired:
    """Errors are data, but a run cannot live on them."""
    return _lost(history, "failed_episodes", "failed")


def broken_episodes(history: History) -> Fired:
    """Each costs its reward, but a model that can hardly keep from it learns little else."""
    return _lost(history, "broken_episodes", "were broken by the model")


def ungraded_episodes(history: History) -> Fired:
    """A reward function that raises, or applies to nothing, leaves episodes without a reward: they teach nothing."""
    fired = _lost(history, "ungraded_episodes", "got no reward")
    errors = [record["reward_error"] for record in history.records[-5:] if record.get("reward_error")]
    if fired is None or not errors:
        return fired
    status, evidence = fired
    return status, f"{evidence}, as in: {errors[-1]}"


def _lost(history: History, name: str, what: str) -> Fired:
    """Fires if many episodes teach nothing."""
    share = share_of(history, name)
    if share is None:  # a run of one or two steps; nobody else would say it
        shares = history.measured(name, 5)
        few = shares.mean() if len(shares) else 0.0
        evidence = f"{few:.0%} of episodes {what} in the last {len(shares)} steps"
        return ("warn", evidence) if few > _FAILED_FEW else None
    if not share.above(_FAILED_WARN):
        return None
    evidence = f"{share.now:.0%} of episodes {what} over the last 5 steps"
    return "fail" if share.above(_FAILED_STOP) else "warn", evidence


_FAULTY, _FAILED_CALLS = 0.05, 0.5
_FEW = 0.1  # calls an episode below which shares of them say nothing


def calls_not_understood(history: History) -> Fired:
    """More than one call of a tool in twenty cannot be read, beyond those that a budget may have cut, or names no tool or wrong arguments."""
    malformed, refused = _of_calls(history, "malformed"), _of_calls(history, "refused")
    both = _of_calls(history, "malformed", "refused")
    if malformed is None or refused is None or both is None or not both.above(_FAULTY):
        return None
    shares = f"{malformed.now:.1%} of calls could not be read and {refused.now:.1%} were refused"
    return "warn", f"{shares} over the last 5 steps, above {_FAULTY:.0%} together"


def failing_tools(history: History) -> Fired:
    """More than half of the calls that were carried out raised: the tools are broken, or asked for what they cannot do."""
    share = _of_calls(history, "failed")
    if share is None or not share.above(_FAILED_CALLS):
        return None
    return "warn", f"{share.now:.0%} of calls failed over the last 5 steps, above {_FAILED_CALLS:.0%}"


def _of_calls(history: History, *faults: str) -> Share | None:
    """The share of calls with one of the faults; None if hardly any tools are called."""
    if (history.mean("metrics.calls", 5) or 0.0) < _FEW:
        return None
    episodes = counts_of(history, "episodes")
    faulty = np.sum([history.column(f"metrics.calls_{fault}") for fault in faults], axis=0)
    if "malformed" in faults:  # a call that a budget cut cannot be read either: one in each such episode at most
        faulty = faulty - cut_episodes(history)
    return recent_share(faulty * episodes, history.column("metrics.calls") * episodes)
