"""Running resets and steps of many environments at once: in this thread, in threads, or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Stepping, TemporaryFault
from gradus.core.waiting import begin

Call = Callable[[], Any]
Done = tuple[int, Any, "Exception | None"]  # a row, and what its call returned or raised
_FIRST_PAUSE = 0.1  # seconds before a temporary fault is tried again; doubled each time


class Stepper:
    """Takes calls of rows and gives back what came of them, several at once if they take time.

    A plain call is done at once, one after another, unless ``stepping.threads``. What returns an awaitable is awaited beside the
    others. Nothing here depends on which comes first: :meth:`collect` gives rows in their order.
    """

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._out = 0  # calls that were begun and not collected
        self._spent: dict[int, float] = {}

    @property
    def busy(self) -> bool:
        """Say whether a call is still out."""
        return self._out > 0

    def begin(self, row: int, call: Call) -> None:
        """Begin the call of a row, which has no other one out."""
        self._out += 1
        if self._stepping.threads:
            begin(self._run(row, partial(_in_thread, call)))
            return
        try:
            value = again_after_faults(call, self._stepping.retries)
        except (Exception, SystemExit) as error:
            self._done.put((row, None, _as_fault(error)))
            return
        if inspect.isawaitable(value):
            begin(self._run(row, call, value))
        elif self._stepping.limited:
            self._out -= 1
            raise ConfigError(
                "step_seconds and episode_seconds need coroutines or threads; a plain call cannot be ended. Set stepping.threads = true"
            )
        else:
            self._done.put((row, value, None))

    def collect(self) -> list[Done]:
        """Wait for at least one call (with ``stepping.rounds`` for all), and return those that are done, in the order of rows."""
        done: list[Done] = []
        while self._out and (not done or self._stepping.rounds or not self._done.empty()):
            done.append(self._done.get())
            self._out -= 1
        return sorted(done, key=lambda each: each[0])

    def all(self, calls: Sequence[Call]) -> list[Done]:
        """Begin all calls, number by number, and wait for the last."""
        for row, call in enumerate(calls):
            self.begin(row, call)
        done: list[Done] = []
        while self.busy:
            done += self.collect()
        return sorted(done, key=lambda each: each[0])

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
        allowed = self._stepping.episode_seconds
        left = None if allowed is None else max(allowed - self._spent.get(row, 0.0), 0.0)
        seconds = _least(self._stepping.step_seconds, left)
        attempt = 0
        while True:
            limit = asyncio.timeout(seconds)
            try:
                async with limit:
                    value, first = (first if first is not None else call()), None
                    while inspect.isawaitable(value):
                        value = await value
                    return value
            except TemporaryFault:
                if attempt == self._stepping.retries:
                    raise
            except TimeoutError as error:
                if limit.expired():
                    raise OutOfTime(f"took more than the {seconds:g} s that were left to it") from error
                raise
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
            attempt += 1


def again_after_faults(call: Call, retries: int) -> Any:
    """Make a plain call, again after a temporary fault."""
    for attempt in range(retries):
        try:
            return call()
        except TemporaryFault:
            time.sleep(_FIRST_PAUSE * 2**attempt)
    return call()


class OutOfTime(EnvironmentFault):
    """A reset or a step took longer than it may."""


def _as_fault(error: BaseException) -> Exception:
    """Return the error of an episode, also if it would end a process."""
    return error if isinstance(error, Exception) else EnvironmentFault(f"{type(error).__name__}: {error}")


def _least(*numbers: float | None) -> float | None:
    known = [number for number in numbers if number is not None]
    return min(known) if known else None


async def _in_thread(call: Call) -> Any:
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
