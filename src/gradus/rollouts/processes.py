"""Environments in processes of their own: for steps that compute, which threads would not run beside each other."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from gradus.core import ConfigError, Environment, EnvironmentFault, Observation, TemporaryFault

_SEEN = ("system_prompt", "state", "tools")


def in_processes(make: Callable[[], Environment], workers: int) -> Callable[[], Environment]:
    """What makes the environments of ``make`` in one of ``workers`` processes; for a spec with ``Stepping(threads=True)``.

    ``make`` is a class or a function of a module, which another process can import. Policies that look into the environment
    (a clairvoyant) cannot be rolled out there.
    """
    if workers < 1:
        raise ConfigError(f"in_processes needs at least 1 worker, got {workers}")
    houses = [_House(make) for _ in range(workers)]
    turn = itertools.count()
    return lambda: _Elsewhere(houses[next(turn) % workers])


class _House:
    """A process that holds environments by number. It starts with the first call."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pipe: Connection[Any, Any] | None = None
        self._numbers = itertools.count()

    def number(self) -> int:
        return next(self._numbers)

    def ask(self, number: int, method: str, *arguments: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """What a method of an environment returns, and what can be seen of it afterwards. Raises what it raised."""
        with self._lock:
            pipe = self._started()
            try:
                pipe.send((number, method, arguments, options))
                value, error, seen = pipe.recv()
            except (EOFError, OSError) as lost:
                self._pipe = None
                raise EnvironmentFault("the process of this environment ended") from lost
        if error is not None:
            raise error
        return value, seen

    def _started(self) -> Connection[Any, Any]:
        if self._pipe is None:
            spawn = multiprocessing.get_context("spawn")
            self._pipe, theirs = spawn.Pipe()
            process = spawn.Process(target=_live, args=(theirs, self._make), daemon=True)
            process.start()
            theirs.close()
            atexit.register(self._pipe.close)
        return self._pipe


class _Elsewhere:
    """An environment in another process."""

    def __init__(self, house: _House) -> None:
        self._house, self._number = house, house.number()
        self._seen: Mapping[str, Any] = {"system_prompt": "", "state": {}, "tools": ()}
        self._opened = False

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

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self._ask("close")

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        value, seen = self._house.ask(self._number, method, *arguments, **options)
        self._seen = seen or self._seen
        return value


def _live(pipe: Connection[Any, Any], make: Callable[[], Environment]) -> None:
    """The other process: answer until the pipe is closed."""
    environments: dict[int, Environment] = {}
    while True:
        try:
            number, method, arguments, options = pipe.recv()
        except EOFError:
            return
        value, error = None, None
        if number not in environments:
            environments[number] = make()
        environment = environments[number]
        try:
            value = getattr(environment, method)(*arguments, **options)
        except Exception as raised:
            error = _portable(raised)
        seen = {} if method == "close" or error else {name: getattr(environment, name, ()) for name in _SEEN}
        if method == "close":
            del environments[number]
        pipe.send((value, error, seen))


def _portable(error: Exception) -> Exception:
    """An error that any process can read: its class may be known there alone."""
    if isinstance(error, TemporaryFault):
        return TemporaryFault(str(error))
    return EnvironmentFault(f"{type(error).__name__}: {error}")
