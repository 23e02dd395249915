"""Rules about calls of tools."""

from __future__ import annotations

import numpy as np

from gradus.evidence.health.finding import Finding
from gradus.evidence.health.history import History
from gradus.evidence.health.share_rules import cut_episodes
from gradus.evidence.health.shares import Share, counts_of, recent_share

_FAULTY, _FAILED = 0.05, 0.5
_FEW = 0.1  # calls an episode below which shares of them say nothing


def calls_not_understood(history: History) -> Finding | None:
    """More than one call of a tool in twenty cannot be read, beyond those that a budget may have cut, or names no tool or wrong arguments."""
    malformed, refused, both = (
        _of_calls(history, *faults) for faults in (("malformed",), ("refused",), ("malformed", "refused"))
    )
    if malformed is None or refused is None or both is None or not both.above(_FAULTY):
        return None
    said = f"{malformed.now:.1%} of calls could not be read and {refused.now:.1%} were refused over the last 5 steps"
    return Finding(severity="warn", evidence=f"{said}, above {_FAULTY:.0%} together")


def failing_tools(history: History) -> Finding | None:
    """More than half of the calls that were carried out raised: the tools are broken, or asked for what they cannot do."""
    share = _of_calls(history, "failed")
    if share is None or not share.above(_FAILED):
        return None
    evidence = f"{share.now:.0%} of calls failed over the last 5 steps, above {_FAILED:.0%}"
    return Finding(severity="warn", evidence=evidence)


def _of_calls(history: History, *faults: str) -> Share | None:
    """The share of calls with one of the faults; None if hardly any tools are called."""
    calls = history.mean("metrics.calls", 5)
    if calls is None or calls < _FEW:
        return None
    episodes = counts_of(history, "episodes")
    faulty = np.sum([history.column(f"metrics.calls_{fault}") for fault in faults], axis=0)
    if "malformed" in faults:
        faulty = faulty - cut_episodes(history)
    return recent_share(faulty * episodes, history.column("metrics.calls") * episodes)
