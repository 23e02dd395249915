"""Shows a training run: lines of figures, and a bar on a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

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

EVERY = 5.0  # seconds between two lines
WIDTH = 80  # columns of a line


class Screen:
    """Shows one run: lines, and on a terminal a bar below them with what goes on.

    ``figures`` maps a label to the metric it shows; a metric inside another is named with a dot (``metrics.belief_mae``). The first step,
    the last, and a line of at most 80 columns every few seconds between them, with the figures that fit; all steps and figures with
    ``--verbose``, and notes alone with ``--quiet``.
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
        self._steps, self._figures = steps, dict(figures)
        self._first = self._done = done
        self._started = time.perf_counter()
        self._console = console or Terminal()
        self._silent = not live
        self._every, self._said = (0.0 if verbose() else EVERY), -math.inf
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn())
        shown = live and self._console.is_terminal and not quiet()
        self._bar = Progress(
            *columns,
            TextColumn("{task.fields[phase]}", markup=False),
            console=self._console,
            transient=True,
            disable=not shown,
        )
        self._task = self._bar.add_task(title, total=steps, completed=done, phase="")

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def phase(self, text: str) -> None:
        """Shows the progress inside the current step."""
        self._bar.update(self._task, phase=text)

    def note(self, text: str) -> None:
        """Something worth keeping on the screen: an alert, a new best."""
        if not self._silent:
            self._console.print(text, highlight=False, soft_wrap=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is done."""
        self._done = int(record["step"])
        self._bar.update(self._task, completed=self._done, phase="")
        now = time.perf_counter()
        if self._silent or quiet() or (self._done < self._steps and now - self._said < self._every):
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


def _get(record: Mapping[str, Any], key: str) -> float | None:
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def _text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else format_number(value)


def clock_text(seconds: float | None) -> str:
    """Seconds as 0:40 or 1:02:40; a dash for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
