"""A limit on the time of a call to somebody's function."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any


class OutOfTime(Exception):
    """A call took longer than it may."""


class _Clock(BaseException):
    """Ends a call from within; not an Exception, so that the function's own ``except`` does not swallow it."""


def limited(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """``function``, which raises OutOfTime if it takes more than ``seconds``.

    On the main thread a signal ends the call. Elsewhere nothing can end it: it is left behind in a thread of its own.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return _on_main(functools.partial(function, *args, **kwargs), seconds)
        return _in_thread(functools.partial(function, *args, **kwargs), seconds)

    return call


def _on_main(call: Callable[[], Any], seconds: float) -> Any:
    def stop(signum: int, frame: Any) -> None:
        raise _Clock

    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left <= seconds:  # somebody else's timer ends this earlier
        return call()
    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    except _Clock:
        raise OutOfTime(f"took more than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 0.001))


def _in_thread(call: Callable[[], Any], seconds: float) -> Any:
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise OutOfTime(f"took more than {seconds:g} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
