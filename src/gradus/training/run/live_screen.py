"""Shows a training run: lines of figures, and a bar on a terminal. The first Ctrl-C leaves a run that can go on."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gradus.core.printing import quiet, verbose
from gradus.core.terminal import Terminal
from gradus.core.values import Json
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
    ) -> None:
        self._steps, self._figures = steps, figures
        # The first step also allocates the optimizer's state and checks laws, so the time left is counted from its end on.
        self._counted_from: tuple[int, float] | None = None
        self._printed = -math.inf  # when the last line was
        self._console = Terminal(quiet=not live)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn())
        phase = TextColumn("{task.fields[phase]}", markup=False)
        hidden = not live or quiet() or not self._console.is_terminal
        self._bar = Progress(
            *columns,
            phase,
            console=self._console,
            transient=True,
            disable=hidden,
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

    def ends_at(self, steps: int) -> None:
        """Shows another last step from now on."""
        self._steps = steps
        self._bar.update(self._task, total=steps)

    def note(self, text: str) -> None:
        """Something worth keeping on the screen: an alert, a new best."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def step(self, record: Json) -> None:
        """A step is done."""
        step, now = int(record["step"]), time.perf_counter()
        self._bar.update(self._task, completed=step, phase="")
        time_left = self._time_left(step, now)
        too_soon = step < self._steps and now - self._printed < EVERY
        if quiet() or (too_soon and not verbose()):
            return
        self._printed = now
        line = f"step {step}/{self._steps}{time_left}"
        for label, key in self._figures.items():
            figure = _figure(record, key)
            if figure and (verbose() or len(line) + len(label) + len(figure) + 3 <= WIDTH):
                line += f"  {label} {figure}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def _time_left(self, step: int, now: float) -> str:
        """The time left by the pace since the first step; empty at that one."""
        if self._counted_from is None:
            self._counted_from = step, now
            return ""
        first, began = self._counted_from
        return f"  left {clock_text((now - began) / (step - first) * (self._steps - step))}"


def _figure(record: Json, key: str) -> str:
    """The figure as text; empty if the record has none."""
    value: Any = record
    for part in key.split("."):
        value = cast(Json, value).get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else ""


def clock_text(seconds: float) -> str:
    """Seconds as 0:40 or 1:02:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Interrupt:
    """Inside this context the first Ctrl-C only asks to stop; ``requested`` is then true and the loop stops after the current step.

    The second Ctrl-C is an ordinary KeyboardInterrupt; the run is then resumed from its last checkpoint. Outside the main
    thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self, stop: Callable[[], bool] | None = None) -> None:
        self._stop, self._asked = stop, False
        self._before: Any = None

    @property
    def requested(self) -> bool:
        """True after Ctrl-C, or if ``stop`` says so."""
        return self._asked or (self._stop is not None and self._stop())

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        # In the last step nobody asks again, and what follows would go on as if Ctrl-C had not come.
        if kind is None and self.requested:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
