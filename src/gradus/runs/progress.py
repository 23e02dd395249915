"""One progress bar for everything that takes long: done, and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from gradus.core.printing import printable, quiet
from gradus.core.terminal import Terminal
from gradus.training.run.live_screen import clock_text

EVERY = 30.0  # seconds between two lines without a terminal


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Generator[Callable[..., None]]:
    """A bar on standard error; the function it gives takes (done, total), a new title, and a ``note`` behind it.

    Without a terminal a line now and then takes its place.
    """
    console = Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # on a narrow terminal the bar alone gets shorter
        TextColumn(unit),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    lines = None if quiet() or console.is_terminal else _Lines(unit)
    with Progress(*columns, console=console, transient=True, disable=quiet() or not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        current = title

        def advance(done: float, of: int, label: str | None = None, note: str = "") -> None:
            """Moves the bar, and gives it another title or note."""
            nonlocal current
            if label is not None and label != current:
                current = label
                progress.reset(task, total=of, description=label)
            description = f"{current} · {note}" if note else current
            progress.update(task, completed=done, total=of, description=description)
            if lines:
                lines.tell(current, description, done, of)

        yield advance


class _Lines:
    """Prints what a bar would show, every :data:`EVERY` seconds."""

    def __init__(self, unit: str) -> None:
        self._unit, self._title, self._first = unit, "", 0.0
        self._last = self._since = time.monotonic()

    def tell(self, title: str, description: str, done: float, total: int) -> None:
        """Prints a line if the last one is long ago."""
        now = time.monotonic()
        if title != self._title:
            self._title, self._since, self._first = title, now, done
        if now - self._last < EVERY:
            return
        self._last = now
        line = f"{description} {int(done)}/{total} {self._unit}"
        # The rate is of this title alone: stages differ in speed.
        rate = (done - self._first) / max(now - self._since, 1e-9)
        if rate > 0:
            line += f", {rate:.1f} a second, left {clock_text(max(0, total - done) / rate)}"
        print(printable(line), file=sys.stderr, flush=True)
