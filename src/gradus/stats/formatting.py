"""Numbers, intervals and p-values as text: the one way in which tables, pages, cards and messages write them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

MINUS = "\N{MINUS SIGN}"
MISSING = "–"
_ROUNDING = 1e-12  # what is nearer to 0 was left over by sums of larger numbers


def format_number(value: float | None, digits: int = 3, *, beside: float = 0.0) -> str:
    """``0.463``, with a true minus; a dash for None.

    A number that ``digits`` decimals would leave fewer than two figures of has ``digits`` figures: ``0.00123``, ``1.2e-05``.
    ``beside``: the largest number that it is read with, which is then as small.

    >>> format_number(0.0005), format_number(0.0005, beside=0.2)
    ('0.0005', '0.001')
    """
    if value is None:
        return MISSING
    size = max(abs(value), abs(beside))
    if _ROUNDING <= size < 10 ** (1 - digits):
        text = f"{value if abs(value) >= _ROUNDING else 0:.{digits}g}"
    elif abs(value) < 1000:
        text = f"{value:.{digits}f}"
    else:
        text = f"{value:,.0f}"
    if _number(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


def _number(text: str) -> float:
    """The number that a text shows, after rounding."""
    return float(text.replace(",", ""))


def format_signed(value: float | None, digits: int = 3, *, beside: float = 0.0) -> str:
    """``+0.043``: for differences."""
    text = format_number(value, digits, beside=beside)
    if value is None or value <= 0 or _number(text) == 0:
        return text
    return f"+{text}"


def format_interval(interval: Any, *, signed: bool = False, digits: int = 3) -> str:
    """``0.463 [0.450, 0.476]``, never broken inside the brackets; without them if the bounds are undefined.

    ``interval`` has ``mean``, ``low`` and ``high``, as attributes or as keys; None is a dash.
    """
    mean, low, high = (_part(interval, name) for name in ("mean", "low", "high"))
    write = partial(format_signed if signed else format_number, digits=digits)
    if mean is None or low is None or high is None:
        return write(mean)
    write = partial(write, beside=max(map(abs, (mean, low, high))))
    return f"{write(mean)} [{write(low)},\N{NO-BREAK SPACE}{write(high)}]"


def format_money(value: float) -> str:
    """US dollars: ``$3.20``; of less than ten cents two figures, ``$0.0042``."""
    if abs(value) >= 0.1:
        return f"${value:,.2f}"
    return f"${format_number(value, 2)}"


def format_seconds(value: float) -> str:
    """A duration: ``8.2 s``, ``3 min 20 s``, ``20 min``, ``1 h 05 min``."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {seconds:02d} s" if seconds else f"{minutes} min"


def format_p(value: float | None) -> str:
    """A p-value: ``0.031`` or ``< 0.001``."""
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _part(interval: Any, name: str) -> float | None:
    """An attribute of a record, or a key of a document."""
    if isinstance(interval, Mapping):
        return cast(Mapping[str, float | None], interval).get(name)
    return getattr(interval, name, None)
