"""One progress bar for everything that takes long: done, rate, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from gradus.core.verbosity import quiet


class _Rate(ProgressColumn):
    """Things per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """As text, or a dash before anything is known."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f} {self.unit}/s" if speed else f"– {self.unit}/s", style="dim")


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error; the function it gives takes (done, total), a new title, and a ``note`` behind it. Silent if nobody watches."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet() or not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        current = title

        def advance(done: int, of: int, label: str | None = None, note: str = "") -> None:
            nonlocal current
            if label is not None and label != current:
                current = label
                progress.reset(task, total=of, description=label)
            shown = f"{current} · {note}" if note else current
            progress.update(task, completed=done, total=of, description=shown)

        yield advance
