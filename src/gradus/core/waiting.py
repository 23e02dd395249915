"""Coroutines from code that is not one: an event loop in a thread of its own, so that it also works inside a running loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar, cast

from gradus.core.foreign import STEP_SECONDS, within

T = TypeVar("T")
_NAME = "gradus-waiting"
METHODS = ("reset", "step", "outcome", "close")  # of an environment that may be coroutines


def begin(work: Awaitable[T]) -> Future[T]:
    """Run a coroutine in the process's own loop; its result can be waited for."""

    async def waited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(waited(), _loop())


def wait_for(work: Awaitable[T]) -> T:
    """Run a coroutine to its end in the process's own loop, and return what it returns. Not for code that runs in that loop."""
    if threading.current_thread().name == _NAME:
        raise RuntimeError("expected an await: this code runs in the loop that it would wait for")
    future = begin(work)
    try:
        return future.result()
    except BaseException:  # Ctrl-C, or the end of the caller's time: the coroutine would go on without anybody
        future.cancel()
        raise


def settled(value: Any) -> Any:
    """Return the value, waited for if it is a coroutine."""
    return wait_for(value) if inspect.isawaitable(value) else value


def blocking(environment: T) -> T:
    """Return the environment with calls that wait, if they are coroutines, and end after 300 s; for code that takes one step at a time."""
    return cast(T, _Blocking(environment))


class _Blocking:
    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inside, name)
        if name not in METHODS:
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            what = f"{name} of {type(self._inside).__name__}"
            return within(STEP_SECONDS, what, lambda: settled(value(*arguments, **options)))

        return call


@cache  # one for all: clients and locks of a coroutine belong to the loop that they were made in
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_NAME, daemon=True).start()
    return loop
