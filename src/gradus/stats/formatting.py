"""Numbers, intervals and p-values as text: the one way in which tables, pages, cards and messages write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MINUS = "\N{MINUS SIGN}"
MISSING = "–"


def format_number(value: float | None, digits: int = 3) -> str:
    """``0.463``, with a true minus; a dash if there is none."""
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def format_signed(value: float | None, digits: int = 3) -> str:
    """``+0.043``: for differences."""
    text = format_number(value, digits)
    return f"+{text}" if value is not None and value > 0 and float(f"{value:.{digits}f}") != 0 else text


def format_interval(interval: Any, *, signed: bool = False, digits: int = 3) -> str:
    """``0.463 [0.450, 0.476]``, never broken inside the brackets; without them if the bounds are undefined.

    ``interval`` has ``mean``, ``low`` and ``high``, as attributes or as keys; None is a dash.
    """
    mean, low, high = (_part(interval, name) for name in ("mean", "low", "high"))
    write = format_signed if signed else format_number
    text = write(mean, digits)
    if mean is None or low is None or high is None:
        return text
    return f"{text} [{write(low, digits)},\N{NO-BREAK SPACE}{write(high, digits)}]"


def format_p(value: float | None) -> str:
    """A p-value: ``0.031`` or ``< 0.001``."""
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _part(interval: Any, name: str) -> float | None:
    if isinstance(interval, Mapping):
        return cast(Mapping[str, float | None], interval).get(name)
    return getattr(interval, name, None)
