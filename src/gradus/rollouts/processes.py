"""Environments in processes of their own: for steps that compute, which threads would not run beside each other."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from typing import Any

from gradus.core import ConfigError, Environment, EnvironmentFault, Observation, TemporaryFault
from gradus.core.waiting import blocking
from gradus.sandbox.processes import new_pool

_ENDED = "the process of this environment ended; a step in it ended it or ran out of time"
_CLOSING = 1.0  # seconds that are waited for an environment to close
_SEEN = ("system_prompt", "state", "tools")
_environments: dict[int, Environment] = {}  # of a process that holds them, by number


def in_processes(make: Callable[[], Environment], workers: int) -> Callable[[], Environment]:
    """Return what makes the environments of ``make`` in one of ``workers`` processes; for a spec with ``Stepping(threads=True)``.

    ``make`` is a class or a function of a module, which another process can import. Policies that look into the environment
    (a clairvoyant) cannot be rolled out there; an ``expert`` of the environment's own can. A process answers one environment at a time; the wait for it counts as time of the
    step. If it ends, or a step in it runs out of time, the episodes of all environments in it fail.
    """
    if workers < 1:
        raise ConfigError(f"in_processes needs at least 1 worker, got {workers}")
    _check_importable(make)
    houses = [_House(make) for _ in range(workers)]
    turn = itertools.count()
    return lambda: _Elsewhere(houses[next(turn) % workers])


def _check_importable(make: Callable[[], Environment]) -> None:
    """Raise ConfigError for what another process would not find: a lambda, or what a cell of a notebook defines."""
    way_out = (
        "expected a class or a function of a module, which another process can import; put it into a file and import it"
    )
    try:
        named = pickle.dumps(make)
    except Exception as error:
        raise ConfigError(f"in_processes cannot pass {make!r} on ({error}); {way_out}") from error
    if b"__main__" in named and not hasattr(sys.modules["__main__"], "__file__"):
        raise ConfigError(f"in_processes got {make!r}, which this session alone knows; {way_out}")


class _House:
    """A process that holds environments by number. It starts with the first reset."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._pid: Future[int] | None = None
        self._owner = 0  # the process that started it: a fork starts its own
        self.numbers = itertools.count()

    def ask(self, number: int, method: str, *arguments: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return what a method of an environment returns, and what can be seen of it afterwards. Raises what it raised."""
        with self._lock:
            pool = self._started() if method == "reset" else self._pool
        if pool is None:
            raise EnvironmentFault(_ENDED)
        try:
            return pool.submit(_answer, self._make, number, method, arguments, options).result()
        except RuntimeError as lost:  # of which BrokenProcessPool is one
            with self._lock:
                self._pool = None if self._pool is pool else self._pool
            raise EnvironmentFault(_ENDED) from lost

    def leave(self, number: int) -> None:
        """Close an environment; later, if the process is busy with another. Raises what it raised."""
        if self._pool is not None and self._owner == os.getpid():
            with suppress(RuntimeError, TimeoutError):  # it ended, or is busy
                self._pool.submit(_answer, self._make, number, "close", (), {}).result(_CLOSING)

    def end(self) -> None:
        """End the process: a wait for its answer ends in a fault, and the next reset starts another."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid.result(), signal.SIGKILL)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._pool = new_pool(1)
            self._pid = self._pool.submit(os.getpid)
        return self._pool


class _Elsewhere:
    """An environment in another process."""

    def __init__(self, house: _House) -> None:
        self._house, self._number = house, next(house.numbers)
        self._seen: Mapping[str, Any] = {"system_prompt": "", "state": {}, "tools": ()}
        self._opened = False
        self._asking = False  # a call is out; at the end of an episode it is one that ran out of time

    @property
    def system_prompt(self) -> str:
        return self._seen["system_prompt"]

    @property
    def state(self) -> Mapping[str, Any]:
        return self._seen["state"]

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._seen["tools"]

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        self._opened = True
        return self._ask("reset", seed=seed, episode_id=episode_id, **options)

    def step(self, action: Any) -> Observation:
        return self._ask("step", action)

    def outcome(self) -> Mapping[str, Any]:
        return self._ask("outcome")

    def expert(self) -> str:
        """Return what the environment itself would answer now."""
        return self._ask("expert")

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self._house.end() if self._asking else self._house.leave(self._number)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._asking = True
        try:
            value, seen = self._house.ask(self._number, method, *arguments, **options)
        finally:
            self._asking = False
        self._seen = seen or self._seen
        return value


def _answer(
    make: Callable[[], Environment], number: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """In the process: call a method of an environment. Raises errors that any process can read, as their class may be known here alone."""
    try:
        if method == "close":
            closed = _environments.pop(number, None)
            return (closed.close() if closed is not None else None), {}
        if method == "reset" and number not in _environments:
            _environments[number] = blocking(make())
        if number not in _environments:
            raise EnvironmentFault(_ENDED)
        environment = _environments[number]
        value = getattr(environment, method)(*arguments, **options)
        return value, {name: getattr(environment, name, ()) for name in _SEEN}
    except TemporaryFault as error:
        raise TemporaryFault(str(error)) from None
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f"{type(error).__name__}: {error}") from None
