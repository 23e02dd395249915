"""Running resets and steps of many environments at once: in this thread, in threads, or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from gradus.core import EnvironmentFault, Stepping, TemporaryFault
from gradus.core.errors import OutOfTime
from gradus.core.foreign import out_of_time, within
from gradus.core.waiting import begin, blocked

Done = tuple[int, Any, "Exception | None"]  # a row, and what its call returned or raised
_FIRST_PAUSE = 0.1  # seconds before a temporary fault is tried again; doubled each time
_GRACE = 5.0  # seconds in which a loop that is not blocked answers


@dataclass(frozen=True)
class Call:
    """A call of an environment, and what it is called in messages."""

    what: str
    make: Callable[[], Any]


class Stepper:
    """Takes calls of rows and gives back what came of them, several at once if they take time.

    A plain call is done at once, one after another, unless ``stepping.threads``. What returns an awaitable is awaited beside the
    others. A call that takes too long ends its episode, and the rollout if no other one returns. Nothing here depends on
    which comes first: :meth:`collect` gives rows in their order.
    """

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._out: dict[int, Call] = {}  # calls that were begun and not collected, by row
        self._spent: dict[int, float] = {}
        self._lost: set[str] = set()  # plain calls that took too long
        self._returned: set[str] = set()  # methods of which a plain call returned

    @property
    def busy(self) -> bool:
        """Say whether a call is still out."""
        return bool(self._out)

    def begin(self, row: int, call: Call) -> None:
        """Begin the call of a row, which has no other one out."""
        self._out[row] = call
        if self._stepping.threads:
            begin(self._run(row, replace(call, make=partial(_in_thread, call.make))))
            return
        started = time.monotonic()
        try:
            value = within(self._left(row), call.what, partial(again_after_faults, call.make, self._stepping.retries))
        except (Exception, SystemExit) as error:
            if isinstance(error, OutOfTime):
                self._check_that_others_return(call.what, error)
            self._done.put((row, None, _as_fault(error)))
            return
        self._returned.add(_method(call.what))
        self._spent[row] = self._spent.get(row, 0.0) + time.monotonic() - started
        if inspect.isawaitable(value):
            begin(self._run(row, call, value))
        else:
            self._done.put((row, value, None))

    def _check_that_others_return(self, what: str, error: OutOfTime) -> None:
        """Raise EnvironmentFault if calls for two tasks took too long and none returned: the others would, one after another."""
        self._lost.add(what)
        if len(self._lost) > 1 and _method(what) not in self._returned:
            raise EnvironmentFault(
                f"{error}, and no {_method(what)} before it returned; mend what it waits for, or allow more with stepping.step_seconds"
            ) from error

    def collect(self) -> list[Done]:
        """Wait for at least one call (with ``stepping.rounds`` for all), and return those that are done, in the order of rows."""
        done: list[Done] = []
        while self._out and (not done or self._stepping.rounds or not self._done.empty()):
            try:
                came = self._done.get(timeout=self._stepping.call_seconds + _GRACE)
            except queue.Empty:
                self._fail_if_blocked()
                continue
            if self._out.pop(came[0], None):  # else it was given up
                done.append(came)
        return sorted(done, key=lambda each: each[0])

    def _fail_if_blocked(self) -> None:
        """End the calls that are out if one of them blocks the event loop of all: no limit of a coroutine can end that."""
        if (place := blocked(_GRACE)) is not None:
            for row, call in self._out.items():
                error = out_of_time(call.what, self._stepping.call_seconds, place)
                self._done.put(
                    (row, None, OutOfTime(f"{error}: a call there blocks the event loop; await it, or use threads"))
                )

    def all(self, calls: Sequence[Call]) -> list[Done]:
        """Begin all calls, number by number, and wait for the last."""
        for row, call in enumerate(calls):
            self.begin(row, call)
        done: list[Done] = []
        while self.busy:
            done += self.collect()
        return sorted(done, key=lambda each: each[0])

    def _left(self, row: int) -> float:
        """Return the seconds that the next call of a row may take."""
        allowed = self._stepping.episode_seconds
        left = inf if allowed is None else max(allowed - self._spent.get(row, 0.0), 0.001)
        return min(left, self._stepping.call_seconds)

    async def _run(self, row: int, call: Call, first: Awaitable[Any] | None = None) -> None:
        """Await a call within the limits, again after a temporary fault."""
        started = time.monotonic()
        value, raised = None, None
        try:
            value = await self._within(row, call, first)
        except BaseException as error:  # an environment that exits or is canceled ends its own episode, not this loop
            raised = _as_fault(error)
        self._spent[row] = self._spent.get(row, 0.0) + time.monotonic() - started
        self._done.put((row, value, raised))

    async def _within(self, row: int, call: Call, first: Awaitable[Any] | None) -> Any:
        seconds = self._left(row)
        attempt = 0
        while True:
            limit = asyncio.timeout(seconds)
            try:
                async with limit:
                    value, first = (first if first is not None else call.make()), None
                    while inspect.isawaitable(value):
                        value = await value
                    return value
            except TemporaryFault:
                if attempt == self._stepping.retries:
                    raise
            except TimeoutError as error:
                if limit.expired():
                    raise out_of_time(call.what, seconds) from error
                raise
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
            attempt += 1


def again_after_faults(call: Callable[[], Any], retries: int) -> Any:
    """Make a plain call, again after a temporary fault."""
    for attempt in range(retries):
        try:
            return call()
        except TemporaryFault:
            time.sleep(_FIRST_PAUSE * 2**attempt)
    return call()


def _method(what: str) -> str:
    return what.partition(" ")[0]


def _as_fault(error: BaseException) -> Exception:
    """Return the error of an episode, also if it would end a process."""
    return error if isinstance(error, Exception) else EnvironmentFault(f"{type(error).__name__}: {error}")


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Make a plain call in a thread of its own, which may outlive its limit without holding up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if future.cancelled():
            return
        future.set_result(value) if error is None else future.set_exception(error)

    def work() -> None:
        try:
            outcome = call(), None
        except BaseException as error:
            outcome = None, _as_fault(error)
        loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return await future
