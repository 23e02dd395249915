"""Rules about calls of tools."""

from __future__ import annotations

from gradus.health.finding import Finding
from gradus.health.history import History

_FAULTY, _FAILED = 0.05, 0.5
_FEW = 0.1  # calls an episode below which shares of them say nothing


def calls_not_understood(history: History) -> Finding | None:
    """More than one call of a tool in twenty cannot be read, or names no tool or wrong arguments."""
    malformed, refused = (_of_calls(history, name) for name in ("malformed", "refused"))
    if malformed is None or refused is None or malformed + refused <= _FAULTY:
        return None
    said = f"{malformed:.1%} of calls could not be read and {refused:.1%} were refused over the last 5 steps"
    return Finding(severity="warn", evidence=f"{said}, above {_FAULTY:.0%} together")


def failing_tools(history: History) -> Finding | None:
    """More than half of the calls that were carried out raised: the tools are broken, or asked for what they cannot do."""
    share = _of_calls(history, "failed")
    if share is None or share <= _FAILED:
        return None
    return Finding(severity="warn", evidence=f"{share:.0%} of calls failed over the last 5 steps, above {_FAILED:.0%}")


def _of_calls(history: History, fault: str) -> float | None:
    """The share of calls with a fault; None if hardly any tools are called."""
    calls, faulty = history.mean("metrics.calls", 5), history.mean(f"metrics.calls_{fault}", 5)
    return faulty / calls if calls and calls >= _FEW and faulty is not None else None
