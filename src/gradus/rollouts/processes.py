"""Environments in processes of their own: for steps that compute, which threads would not run beside each other."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from gradus.core import ConfigError, Environment, EnvironmentFault, Observation, TemporaryFault
from gradus.core.waiting import blocking

_ENDED = "the process of this environment ended; a step in it ended it or ran out of time"
_SEEN = ("system_prompt", "state", "tools")


def in_processes(make: Callable[[], Environment], workers: int) -> Callable[[], Environment]:
    """What makes the environments of ``make`` in one of ``workers`` processes; for a spec with ``Stepping(threads=True)``.

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
        self._pipe: Connection[Any, Any] | None = None
        self._process: SpawnProcess | None = None
        self._left: list[int] = []  # environments to close before the next call
        self._numbers = itertools.count()

    def number(self) -> int:
        return next(self._numbers)

    def ask(self, number: int, method: str, *arguments: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """What a method of an environment returns, and what can be seen of it afterwards. Raises what it raised."""
        with self._lock:
            pipe = self._pipe if method != "reset" else self._started()
            if pipe is None:
                raise EnvironmentFault(_ENDED)
            try:
                while self._left:
                    self._exchange(pipe, (self._left.pop(), "close", (), {}))
                value, error, seen = self._exchange(pipe, (number, method, arguments, options))
            except (EOFError, OSError) as lost:
                self._pipe = None
                atexit.unregister(pipe.close)
                pipe.close()
                raise EnvironmentFault(_ENDED) from lost
        if error is not None:
            raise error
        return value, seen

    def leave(self, number: int) -> None:
        """Close an environment now, or before the next call if the process is busy with another."""
        if not self._lock.acquire(blocking=False):
            self._left.append(number)
            return
        self._lock.release()
        if self._pipe is not None:
            self.ask(number, "close")

    def end(self) -> None:
        """End the process: whoever waits for an answer of it gets a fault, and the next reset starts another."""
        if self._process is not None:
            self._process.kill()

    @staticmethod
    def _exchange(pipe: Connection[Any, Any], message: Any) -> Any:
        pipe.send(message)
        return pipe.recv()

    def _started(self) -> Connection[Any, Any]:
        if self._pipe is None:
            self._left.clear()
            spawn = multiprocessing.get_context("spawn")
            pipe, theirs = spawn.Pipe()
            self._process = spawn.Process(target=_live, args=(theirs, self._make), daemon=True)
            self._process.start()
            theirs.close()
            self._pipe = pipe
            atexit.register(self._pipe.close)
        return self._pipe


class _Elsewhere:
    """An environment in another process."""

    def __init__(self, house: _House) -> None:
        self._house, self._number = house, house.number()
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
        """What the environment itself would answer now, if it says so."""
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


def _live(pipe: Connection[Any, Any], make: Callable[[], Environment]) -> None:
    """The other process: answer until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's, which finishes what it began
    environments: dict[int, Environment] = {}
    while True:
        try:
            number, method, arguments, options = pipe.recv()
        except EOFError:
            return
        value, error = None, None
        seen: dict[str, Any] = {}
        try:
            if method == "close":
                closed = environments.pop(number, None)
                if closed is not None:
                    closed.close()
            elif number in environments or method == "reset":
                if number not in environments:
                    environments[number] = blocking(make())
                value = getattr(environments[number], method)(*arguments, **options)
                seen = {name: getattr(environments[number], name, ()) for name in _SEEN}
            else:
                error = EnvironmentFault(_ENDED)
        except (Exception, SystemExit) as raised:
            error = _portable(raised)
        try:
            pipe.send((value, error, seen))
        except (OSError, ValueError):
            return
        except Exception as raised:  # what cannot be pickled
            pipe.send((None, _portable(raised), {}))


def _portable(error: Exception | SystemExit) -> Exception:
    """An error that any process can read: its class may be known there alone."""
    if isinstance(error, TemporaryFault):
        return TemporaryFault(str(error))
    return EnvironmentFault(f"{type(error).__name__}: {error}")
