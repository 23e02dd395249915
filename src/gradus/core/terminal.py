"""The console that commands and runs print on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gradus.core.printing import printable


class Terminal(Console):
    """Prints names, answers and errors as they are.

    Brackets and colons in them are neither markup nor emoji, and control characters are shown, not obeyed. A character that the
    output does not have is replaced: it must not end a run. A word that is longer than its column is broken, not cut.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of rich, with text that can be printed."""
        if isinstance(renderable, Table):
            for column in renderable.columns:
                column.overflow = column.overflow if column.no_wrap else "fold"
        elif isinstance(renderable, str):
            renderable = self._text(renderable)
        elif isinstance(renderable, Text):
            renderable = renderable.copy()  # before its lines are made: a picture takes room, a control character none
            renderable.plain = self._text(renderable.plain)
        for segment in super().render(renderable, options):
            yield segment if segment.control is not None else segment._replace(text=self._text(segment.text))

    def _text(self, text: str) -> str:
        return printable(text).encode(self.encoding, "replace").decode(self.encoding)
