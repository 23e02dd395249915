"""Coroutines from code that is not one: an event loop in a thread of its own, so that it also works inside a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from functools import cache
from typing import TypeVar

T = TypeVar("T")
_NAME = "gradus-waiting"


def begin(work: Awaitable[T]) -> Future[T]:
    """Run a coroutine in the process's own loop; its result can be waited for."""

    async def waited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(waited(), _loop())


def wait_for(work: Awaitable[T]) -> T:
    """Run a coroutine to its end in the process's own loop, and return what it returns. Not for code that runs in that loop."""
    if threading.current_thread().name == _NAME:
        raise RuntimeError("expected an await: this code runs in the loop that it would wait for")
    return begin(work).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_NAME, daemon=True).start()
    return loop
