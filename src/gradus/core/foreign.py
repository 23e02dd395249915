"""Calls of somebody's code (an environment, a tool, a grader, a reward function): a limit on their time, and where they went wrong.

On the main thread a signal ends the call where it is. Elsewhere nothing can end it: it is left behind in a thread of its own.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from math import ceil
from traceback import walk_tb
from types import FrameType
from typing import Any, NoReturn, TypeVar

from gradus.core.errors import OutOfTime
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict

T = TypeVar("T")
STEP_SECONDS = 300.0  # of one call of an environment, unless its stepping says otherwise
_AGAIN = 1.0  # seconds after which a call that swallowed its end is ended again
# Where no code of a user is: Gradus, the standard library, and what was compiled from a text.
_LIBRARIES = (os.path.dirname(os.path.dirname(__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep, "<")


@frozen_record
class GraderSeconds:
    """Seconds that one call of a grader or of a reward function may take. Training, evaluation and audit read them here."""

    batch: float = 600.0  # for every 256 answers or part of them: a file is one call, and so is a step of training
    answer: float = 6.0  # for one answer of an audit; Math-Verify ends by itself after 5 s
    program: float = 30.0  # the same if it runs the answer; graders often end a program after ten seconds
    remote: float = 60.0  # the same if it asks a server


GRADER_SECONDS = GraderSeconds()
_BATCH = 256  # answers


def batch_seconds(answers: int, limit: float = GRADER_SECONDS.batch) -> float:
    """Return the seconds that one call about ``answers`` may take; ``limit``: for every 256 of them.

    >>> batch_seconds(256), batch_seconds(257)
    (600.0, 1200.0)
    """
    return limit * max(1, ceil(answers / _BATCH))


def arguments_for(function: Callable[..., Any], offered: Json) -> JsonDict:
    """Return those of the offered arguments that a function names, all of them if it takes ``**more``.

    >>> arguments_for(lambda seed: seed, {"seed": 7, "size": 3})
    {'seed': 7}
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(offered)
    return {name: value for name, value in offered.items() if name in parameters}


class _TimeIsUp(BaseException):
    """Ends a call from within; not an Exception, so that the code's own ``except`` does not swallow it."""


class _Foreign(threading.local):
    """Whether this thread is in somebody's code."""

    process = 0


_FOREIGN = _Foreign()
_end_process = os._exit


def _refuse_end(status: int) -> NoReturn:
    """Takes the place of ``os._exit``: somebody's code would end the run without a word, and with the status of a success."""
    if _FOREIGN.process == os.getpid():  # a process that it forked ends itself
        raise SystemExit(f"os._exit({status}): it may not end the process that called it")
    _end_process(status)


@contextlib.contextmanager
def going_on() -> Generator[None]:
    """Calls of ``os._exit`` in this thread and process raise SystemExit, which every caller of ``within`` takes as an error."""
    os._exit = _refuse_end
    before, _FOREIGN.process = _FOREIGN.process, os.getpid()
    try:
        yield
    finally:
        _FOREIGN.process = before


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Make a call. Raises OutOfTime, which names ``what`` was called and where it was, if it takes more than ``seconds``."""
    if threading.current_thread() is not threading.main_thread():
        return _in_thread(seconds, what, going_on()(call))
    with going_on():
        return _on_main_thread(seconds, what, call)


def _on_main_thread(seconds: float, what: str, call: Callable[[], T]) -> T:
    if 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        return call()  # the timer of a call around this one ends it earlier
    # From here on the timer of a call around this one is stopped, and goes on with what is left of it behind this one.
    before = signal.signal(signal.SIGALRM, _ring)
    outer, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)  # of a call around this one, 0 without one
    began = time.monotonic()
    try:
        return call()
    except _TimeIsUp as ended:
        raise out_of_time(what, seconds, str(ended)) from None
    finally:
        remaining = outer - (time.monotonic() - began)
        # Not 0, which would switch that timer off: its time is up, and it should ring at once.
        signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001) if outer else 0.0, interval)
        signal.signal(signal.SIGALRM, before)


def _ring(signum: int, frame: FrameType | None) -> None:
    raise _TimeIsUp(_place(frame))


def out_of_time(what: str, seconds: float, place: str = "") -> OutOfTime:
    """Return the error of a call that took too long. ``place``: where in its code it was."""
    return OutOfTime(f"{what} took more than {seconds:g} s{place and f', at {place}'}")


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


def _in_thread(seconds: float, what: str, call: Callable[[], T]) -> T:
    outcome: JsonDict = {}
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome["value"] = context.run(call)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise out_of_time(what, seconds, _place(sys._current_frames().get(thread.ident or 0)))  # pyright: ignore[reportPrivateUsage]
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
