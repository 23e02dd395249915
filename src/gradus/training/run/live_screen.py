"""The live screen of a training run; plain lines if nobody watches a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradus.core.printing import quiet, verbose
from gradus.core.terminal import Terminal
from gradus.stats import format_number

FIGURES = {  # of GRPO: label -> metric
    "reward": "reward_mean",
    "reward std": "reward_std",
    "true_reward": "true_reward_mean",
    "kl": "kl",
    "entropy": "entropy",
    "zero-variance groups": "zero_variance_groups",
    "turns": "turns_mean",
    "tokens": "action_tokens_mean",
    "logp diff": "logp_diff_max",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
    "seconds": "seconds.total",
}

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 40
EVERY = 5.0  # seconds between two plain lines
WIDTH = 80  # columns of a plain line


class Screen:
    """Shows one run.

    ``figures`` maps a label to the metric it shows; a metric inside another is named with a dot (``metrics.belief_mae``). Without a
    terminal: the first step, the last, and a line of at most 80 columns every few seconds between them, with the figures that
    fit; all steps and figures with ``--verbose``, and notes alone with ``--quiet``.
    """

    def __init__(
        self,
        title: str,
        *,
        steps: int,
        figures: Mapping[str, str],
        done: int = 0,
        live: bool = True,
        console: Console | None = None,
    ) -> None:
        self._title = title
        self._steps = steps
        self._first = self._done = done
        self._figures = dict(figures)
        self._records: list[Mapping[str, Any]] = []
        self._notes: list[str] = []
        self._phase = ""
        self._started = time.perf_counter()
        self._console = console or Terminal()
        self._live: Live | None = None
        self._silent = not live
        self._every, self._said = (0.0 if verbose() else EVERY), -math.inf
        if live and self._console.is_terminal and not quiet():
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Shows the progress inside the current step."""
        self._phase = text

    def note(self, text: str) -> None:
        """Something worth keeping on the screen: an alert, a new best."""
        self._notes = [*self._notes[-4:], text]
        if self._live is None and not self._silent:
            self._console.print(text, highlight=False, soft_wrap=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is done."""
        self._done = int(record["step"])
        self._records.append(record)
        self._phase = ""
        if self._live is not None or self._silent or quiet():
            return
        now = time.perf_counter()
        if self._done < self._steps and now - self._said < self._every:
            return
        self._said = now
        self._console.print(self._line(record), highlight=False, soft_wrap=True)

    def _line(self, record: Mapping[str, Any]) -> str:
        line = f"step {self._done}/{self._steps}  left {clock_text(self._left())}"
        for label, key in self._figures.items():
            value = _get(record, key)
            if value is not None and (verbose() or len(line) + len(label) + len(_text(value)) + 3 <= WIDTH):
                line += f"  {label} {_text(value)}"
        return line

    def _left(self) -> float | None:
        taken = self._done - self._first
        if not taken:
            return None
        return (time.perf_counter() - self._started) / taken * (self._steps - self._done)

    def _render(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=self._steps, completed=self._done, width=30),
            Text(f"{self._done}/{self._steps}  left {clock_text(self._left())}  {self._phase}"),
        )
        table = Table(box=None, padding=(0, 2), show_header=False)
        for label, key in self._figures.items():
            values = [_get(record, key) for record in self._records]
            if any(value is not None for value in values):
                table.add_row(
                    label, Text(_text(values[-1]), justify="right"), Text(spark(values[-HISTORY:]), style="cyan")
                )
        notes = [Text(note, style="yellow") for note in self._notes]
        return Group(head, table, *notes)


def spark(values: Sequence[float | None]) -> str:
    """A line of blocks between the smallest and the largest value; a dot where there is none, or no finite one.

    >>> spark([0.0, 1.0, None, 0.5])
    '▁█·▅'
    """
    values = [value if value is not None and math.isfinite(value) else None for value in values]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join("·" if value is None else BARS[round((value - low) * scale)] for value in values)


def _get(record: Mapping[str, Any], key: str) -> float | None:
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else format_number(value)


def clock_text(seconds: float | None) -> str:
    """Seconds as 0:40 or 1:02:40; a dash for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
