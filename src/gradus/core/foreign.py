"""Calls of somebody's code (an environment, a tool, a grader, a reward function): a limit on their time, and where they went wrong.

On the main thread a signal ends the call where it is. Elsewhere nothing can end it: it is left behind in a thread of its own. Code in C
that never returns to Python cannot be ended on the main thread; ``stepping.processes`` holds environments that do so.
"""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

from gradus.core.errors import OutOfTime

T = TypeVar("T")
STEP_SECONDS = 300.0  # of one call of an environment, unless its stepping says otherwise
GRADE_SECONDS = 600.0  # of one call of a grader or of a reward function, for every 256 episodes or part of them
_TELL_AFTER = 15.0  # seconds after which a call is named, long before it is ended
_AGAIN = 1.0  # seconds after which a call that swallowed its end is ended again
_LIBRARIES = (os.path.dirname(os.path.dirname(__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep, "<")


@dataclass
class _Limit:
    what: str
    seconds: float
    began: float
    told: bool = False
    live: bool = True


class _Clock(BaseException):
    """Ends a call from within; not an Exception, so that the code's own ``except`` does not swallow it."""

    def __init__(self, limit: _Limit, place: str) -> None:
        self.limit, self.place = limit, place


_handler_of: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)  # without enumerations
_before: Any = None  # the handler that was set before; ours stays in its place, as setting one takes 7 microseconds
_running: list[_Limit] = []  # limits on calls of the main thread, the outermost first


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Make a call. Raises OutOfTime, which names ``what`` was called and where it was, if it takes more than ``seconds``."""
    if threading.current_thread() is not threading.main_thread():
        return _in_thread(seconds, what, call)
    if not _running and 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        return call()  # somebody else's timer ends it earlier
    limit = _Limit(what, seconds, time.monotonic())
    left = _enter(limit)
    try:
        try:
            return call()
        finally:
            limit.live = False
    except _Clock as ended:
        if ended.limit is not limit:
            raise
        raise out_of_time(what, seconds, ended.place) from None
    finally:
        _leave(limit, left)


def out_of_time(what: str, seconds: float, place: str = "") -> OutOfTime:
    """Return the error of a call that took too long. ``place``: where in its code it was."""
    return OutOfTime(f"{what} took more than {seconds:g} s{place and f', at {place}'}")


def _enter(limit: _Limit) -> float:
    """Start the clock. Return the seconds that were left to somebody else's."""
    global _before
    _running.append(limit)
    if len(_running) > 1:
        _set_timer()
        return 0.0
    if _handler_of(signal.SIGALRM) is not _ring:
        _before = signal.signal(signal.SIGALRM, _ring)
    return signal.setitimer(signal.ITIMER_REAL, min(limit.seconds, _TELL_AFTER))[0]


def _leave(limit: _Limit, left: float) -> None:
    del _running[_running.index(limit) :]
    if _running:
        _set_timer()
    else:
        signal.setitimer(signal.ITIMER_REAL, left and max(left - (time.monotonic() - limit.began), 0.001))


def _set_timer() -> None:
    """Let the clock ring at the next moment that a limit has."""
    now = time.monotonic()
    moments = [each.began + (each.seconds if each.told else min(_TELL_AFTER, each.seconds)) for each in _running]
    signal.setitimer(signal.ITIMER_REAL, max(min(moments) - now, 0.001))


def _ring(signum: int, frame: FrameType | None) -> None:
    if not _running:
        if callable(_before):
            _before(signum, frame)
        return
    now = time.monotonic()
    for limit in [each for each in _running if each.live]:
        if now - limit.began >= limit.seconds:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            raise _Clock(limit, _place(frame))
        if now - limit.began >= _TELL_AFTER and not limit.told:
            limit.told = True
            _tell(limit.what, limit.seconds, _place(frame))
    _set_timer()


def _tell(what: str, seconds: float, place: str) -> None:
    said = f"{what} has taken {_TELL_AFTER:g} s{place and f', it is at {place}'}; it is ended after {seconds:g} s\n"
    os.write(2, said.encode(errors="backslashreplace"))  # print could meet itself in the middle of a line


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of somebody's own file, as ``FILE:LINE in NAME``; empty without one."""
    while frame is not None and not _is_own(frame):
        frame = frame.f_back
    return _written(frame, frame.f_lineno) if frame is not None else ""


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(_LIBRARIES) and "-packages" not in file


def _written(frame: FrameType, line: int) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def raised_at(error: BaseException) -> str:
    """Return the line of somebody's own file that raised an error, in brackets; empty without one."""
    places = [_written(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_own(frame)]
    return f" ({places[-1]})" if places else ""


def place_of(thread: threading.Thread) -> str:
    """Return the line of somebody's own file where a thread is; empty without one."""
    return _place(sys._current_frames().get(thread.ident or 0))  # pyright: ignore[reportPrivateUsage]


def _in_thread(seconds: float, what: str, call: Callable[[], T]) -> T:
    outcome: dict[str, Any] = {}
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome["value"] = context.run(call)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(min(seconds, _TELL_AFTER))
    if thread.is_alive() and seconds > _TELL_AFTER:
        _tell(what, seconds, place_of(thread))
        thread.join(seconds - _TELL_AFTER)
    if thread.is_alive():
        raise out_of_time(what, seconds, place_of(thread))
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
