"""One queue to one engine: jobs run one at a time, a model's in the order of its sequence numbers, and clients ask for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gradus.core import GradusError
from gradus.core.errors import first_line
from gradus.interop.serving.requests import ApiError

_MOST_WAITING = 4096  # jobs that are not done; more are refused until some are
_MOST_KEPT = 8192  # results; the oldest are forgotten, whether their client came for them or not
_FURTHEST = 4096  # sequence numbers ahead of the next one


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineJob:
    """A client's job."""

    owner: str
    work: Callable[[], Any]
    # What the work gave, once it ran.
    result: Future[Any] = field(default_factory=Future[Any])


@dataclass
class _Line:
    """The order of one model's jobs. A client sends several at once, and they may overtake each other."""

    # The number whose turn it is.
    following: int
    # Jobs that came before their turn, by number; None for a request that was refused.
    early: dict[int, EngineJob | None] = field(default_factory=dict[int, EngineJob | None])


class JobQueue:
    """Jobs of all clients. Its methods are called from the server's event loop; the work runs in one thread."""

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1, thread_name_prefix="gradus-tinker")
        self._jobs: dict[str, EngineJob] = {}
        self._lines: dict[str, _Line] = {}

    def submit(self, request_id: str, job: EngineJob) -> None:
        """Takes a job that waits for nothing but the engine. The same ``request_id`` again is the same job."""
        if self._is_new(request_id, job):
            self._start(job)

    def open_line(self, line: str) -> None:
        """Begins the jobs of a model, the first of which has the number 1."""
        self._lines[line] = _Line(1)

    def submit_in_line(self, line: str, number: int | None, job: EngineJob) -> str:
        """Takes a job of a model, to run in its turn; returns the id of the request. The same number again is the same job.

        Raises ApiError for a number that lies too far ahead, or whose result is forgotten.
        """
        numbers = self._lines[line]
        number = numbers.following if number is None else number
        request_id = f"{line}:{number}"
        ahead = number - numbers.following
        if request_id not in self._jobs and not 0 <= ahead <= _FURTHEST:
            raise ApiError(f"request {number} of {line} is forgotten, or too far from {numbers.following}", status=410)
        if self._is_new(request_id, job):
            self._take_turn(numbers, number, job)
        return request_id

    def skip(self, line: str, number: int | None) -> None:
        """Lets the turn of a refused request pass, so that what follows does not wait for it."""
        numbers = self._lines[line]
        if number is not None and numbers.following <= number <= numbers.following + _FURTHEST:
            self._take_turn(numbers, number, None)

    def close_line(self, line: str) -> None:
        """Ends a model's jobs that wait for their turn."""
        numbers = self._lines.pop(line, _Line(0))
        for job in numbers.early.values():
            if job is not None:
                job.result.set_exception(ApiError(f"{line} was unloaded", status=404))

    async def result(self, request_id: str, owner: str, seconds: float) -> Any:
        """Waits for the result of a client's request; None if it is not there after ``seconds``.

        Raises what the work raised, and ApiError, 404, if this client has no such request.
        """
        job = self._jobs.get(request_id)
        if job is None or job.owner != owner:
            raise ApiError(f"you have no request {request_id[:80]!r}, or its result is forgotten", status=404)
        await asyncio.wait([asyncio.wrap_future(job.result)], timeout=seconds)
        return job.result.result() if job.result.done() else None

    def close(self) -> None:
        """Drops what has not begun, and waits for what has."""
        self._engine.shutdown(cancel_futures=True)

    def _is_new(self, request_id: str, job: EngineJob) -> bool:
        if request_id in self._jobs:
            return False
        if sum(not other.result.done() for other in self._jobs.values()) >= _MOST_WAITING:
            raise ApiError(f"{_MOST_WAITING} requests wait already; ask again later", status=429)
        self._jobs[request_id] = job
        if len(self._jobs) > _MOST_KEPT:
            # There is one: fewer may wait than are kept.
            oldest = next(key for key, other in self._jobs.items() if other.result.done())
            del self._jobs[oldest]
        return True

    def _take_turn(self, numbers: _Line, number: int, job: EngineJob | None) -> None:
        numbers.early[number] = job
        while numbers.following in numbers.early:
            ready = numbers.early.pop(numbers.following)
            numbers.following += 1
            if ready is not None:
                self._start(ready)

    def _start(self, job: EngineJob) -> None:
        self._engine.submit(_run, job)


def _run(job: EngineJob) -> None:
    try:
        job.result.set_result(job.work())
    except Exception as error:  # whatever breaks costs this request, not the server
        job.result.set_exception(error)


def failure(error: Exception) -> dict[str, str]:
    """A failed job as the protocol says it: one sentence, and whose fault it was."""
    if isinstance(error, GradusError | ApiError | ValueError):
        return {"error": first_line(error), "category": "user"}
    return {"error": f"{type(error).__name__}: {first_line(error)}", "category": "server"}
