"""Ctrl-C that leaves a run which can go on."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Inside this context the first Ctrl-C only asks; ``asked`` is then true and the loop stops after the current step.

    The second Ctrl-C is an ordinary KeyboardInterrupt; the run is then resumed from its last checkpoint. Outside the main
    thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        # In the last step nobody asks again, and what follows would go on as if Ctrl-C had not come.
        if kind is None and self.asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
