"""Running resets and steps of many environments at once: in this thread, in threads, or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Any

from gradus.core import EnvironmentFault, Stepping
from gradus.core.errors import OutOfTime
from gradus.core.foreign import out_of_time, within
from gradus.core.waiting import begin

Done = tuple[int, Any, "Exception | None"]  # a row, and what its call returned or raised


@dataclass(frozen=True)
class Call:
    """A call of an environment, and what it is called in messages."""

    what: str
    make: Callable[[], Any]


class Stepper:
    """Takes calls of rows and gives back what came of them, several at once if they take time.

    A plain call is done at once, one after another, unless ``stepping.threads``. What returns an awaitable is awaited beside the
    others. A call beyond a limit of the environment ends its episode; a plain call that takes 300 s without any ends the rollout.
    Nothing here depends on which comes first: :meth:`collect` gives rows in their order.
    """

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._out = 0  # calls that were begun and not collected
        self._spent: defaultdict[int, float] = defaultdict(float)  # seconds of a row's calls

    @property
    def busy(self) -> bool:
        """Say whether a call is still out."""
        return self._out > 0

    def begin(self, row: int, call: Call) -> None:
        """Begin the call of a row, which has no other one out."""
        self._out += 1
        if self._stepping.threads:
            begin(self._run(row, call.what, lambda: _in_thread(call.make)))
            return
        started = time.monotonic()
        try:
            value = within(self._limit(row), call.what, call.make)
        except (Exception, SystemExit) as error:
            if isinstance(error, OutOfTime) and not self._stepping.limited:
                raise
            self._done.put((row, None, _as_fault(error)))
            return
        self._spent[row] += time.monotonic() - started
        if inspect.isawaitable(value):
            begin(self._run(row, call.what, lambda: value))
        else:
            self._done.put((row, value, None))

    def collect(self) -> list[Done]:
        """Wait for at least one call, and return those that are done, in the order of rows.

        With ``stepping.rounds`` wait for all, with ``stepping.wait_ms`` so long for more.
        """
        results: list[Done] = []
        ends = inf
        while self._out:
            seconds = None if self._stepping.rounds or not results else max(0.0, ends - time.monotonic())
            try:
                results.append(self._done.get(timeout=seconds))
            except queue.Empty:
                break
            self._out -= 1
            ends = min(ends, time.monotonic() + self._stepping.wait_ms / 1000)
        return sorted(results, key=itemgetter(0))

    def all(self, calls: Sequence[Call]) -> list[Done]:
        """Begin all calls, number by number, and wait for the last."""
        for row, call in enumerate(calls):
            self.begin(row, call)
        results: list[Done] = []
        while self.busy:
            results += self.collect()
        return sorted(results, key=itemgetter(0))

    def _limit(self, row: int) -> float:
        """Return the seconds that the next call of a row may take."""
        seconds = self._stepping.call_seconds
        if self._stepping.episode_seconds is not None:
            # The least positive limit, because 0 would mean none.
            rest = self._stepping.episode_seconds - self._spent[row]
            seconds = min(seconds, max(rest, 0.001))
        return seconds

    async def _run(self, row: int, what: str, make: Callable[[], Any]) -> None:
        """Await a call within the limits."""
        started, seconds = time.monotonic(), self._limit(row)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                value = make()
                # A call may return a coroutine that returns another one.
                while inspect.isawaitable(value):
                    value = await value
        except BaseException as error:  # an environment that exits or is canceled ends its own episode, not this loop
            result = (row, None, out_of_time(what, seconds) if limit.expired() else _as_fault(error))
        else:
            result = (row, value, None)
        self._spent[row] += time.monotonic() - started
        self._done.put(result)


def _as_fault(error: BaseException) -> Exception:
    """Return the error of an episode, also if it would end a process."""
    return error if isinstance(error, Exception) else EnvironmentFault(f"{type(error).__name__}: {error}")


def _in_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Make a plain call in a thread of its own, which may outlive its limit without holding up the end of the process."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(_as_fault(error))

    # A daemon thread: a call that hangs must not keep the process alive.
    threading.Thread(target=work, daemon=True).start()
    return asyncio.wrap_future(future)
