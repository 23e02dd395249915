"""Results that print well: as text in a terminal, as HTML in a notebook, from the same tables."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

_FRAME = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.3\">{code}</pre>"


class Shown(ABC):
    """A result that lists rich renderables in :meth:`tables`."""

    @abstractmethod
    def tables(self) -> Sequence[Any]:
        """What is shown, one under another."""

    def show(self) -> None:
        """Print it with colors, as the command line does."""
        from gradus.core.terminal import Terminal

        console = Terminal()
        for each in self.tables():
            console.print(each, highlight=False)

    def __repr__(self) -> str:
        return self._recorded().export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._recorded().export_html(inline_styles=True, code_format=_FRAME)

    def _recorded(self) -> Any:
        from gradus.core.terminal import Terminal

        console = Terminal(file=io.StringIO(), record=True, width=120, force_jupyter=False)
        for each in self.tables():
            console.print(each, highlight=False)
        return console
