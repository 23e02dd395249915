"""Coroutines from code that is not one: an event loop in a thread of its own, so that it also works inside a running loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")
_NAME = "gradus-waiting"
_METHODS = ("reset", "step", "outcome", "close")  # of an environment that may be coroutines


def begin(work: Awaitable[T]) -> Future[T]:
    """Run a coroutine in the process's own loop; its result can be waited for."""

    async def waited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(waited(), _loop())


def wait_for(work: Awaitable[T]) -> T:
    """Run a coroutine to its end in the process's own loop, and return what it returns. Not for code that runs in that loop."""
    if threading.current_thread().name == _NAME:
        raise RuntimeError("expected an await: this code runs in the loop that it would wait for")
    value, exits = begin(_caught(work)).result()
    if exits is not None:
        raise exits
    return cast(T, value)


async def _caught(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """Return the result, or the request to exit: raised in the loop it would end the loop, and the caller would wait for ever."""
    try:
        return await work, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def settled(value: Any) -> Any:
    """Return the value, waited for if it is a coroutine."""
    return wait_for(value) if inspect.isawaitable(value) else value


def blocking(environment: T) -> T:
    """Return the environment, or something like it whose calls wait if its methods are coroutines; for code that takes one step at a time."""
    methods = (getattr(environment, name, None) for name in _METHODS)
    return cast(T, _Blocking(environment)) if any(map(inspect.iscoroutinefunction, methods)) else environment


class _Blocking:
    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inside, name)
        if name not in _METHODS:
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            return settled(value(*arguments, **options))

        return call


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_NAME, daemon=True).start()
    return loop
