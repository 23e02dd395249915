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
Work = Callable[[], Any]


@dataclass(frozen=True, eq=False)
class _EngineJob:
    work: Work
    # What the work gave, once it ran, or what the protocol says of its failure.
    result: Future[Any] = field(default_factory=Future[Any])


@dataclass
class _Line:
    """The order of one model's jobs. A client sends several at once, and they may overtake each other."""

    # The number whose turn it is.
    following: int = 1
    # Jobs that came before their turn, by number.
    early: dict[int, _EngineJob] = field(default_factory=dict[int, _EngineJob])


class JobQueue:
    """Jobs of all clients. Its methods are called from the server's event loop; the work runs in one thread."""

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1, thread_name_prefix="gradus-tinker")
        self._jobs: dict[str, _EngineJob] = {}
        self._lines: dict[str, _Line] = {}

    def submit(self, request_id: str, work: Work) -> None:
        """Takes work that waits for nothing but the engine. The same ``request_id`` again is the same job."""
        if request_id not in self._jobs:
            self._engine.submit(_run, self._new_job(request_id, work))

    def submit_in_line(self, line: str, number: int | None, work: Work) -> str:
        """Takes work of a model, to run in its turn; returns the id of the request. The same number again is the same job.

        Raises ApiError for a number that lies too far ahead, or whose result is forgotten.
        """
        order = self._lines.setdefault(line, _Line())
        number = order.following if number is None else number
        request_id = f"{line}:{number}"
        if request_id in self._jobs:
            return request_id
        if not 0 <= number - order.following <= _FURTHEST:
            raise ApiError(f"request {number} of {line} is forgotten, or too far from {order.following}", status=410)
        order.early[number] = self._new_job(request_id, work)
        while order.following in order.early:
            self._engine.submit(_run, order.early.pop(order.following))
            order.following += 1
        return request_id

    def close_line(self, line: str) -> None:
        """Ends a model's jobs that wait for their turn."""
        for job in self._lines.pop(line, _Line()).early.values():
            job.result.set_result(failure(ApiError(f"the session of {line} has ended")))

    async def result(self, request_id: str, seconds: float) -> Any:
        """Waits for the result of a request, or what the protocol says of its failure; None if neither is there after ``seconds``.

        Raises ApiError, 404, if there is no such request.
        """
        job = self._jobs.get(request_id)
        if job is None:
            raise ApiError(f"you have no request {request_id[:80]!r}, or its result is forgotten", status=404)
        await asyncio.wait([asyncio.wrap_future(job.result)], timeout=seconds)
        return job.result.result() if job.result.done() else None

    def close(self) -> None:
        """Drops what has not begun, and waits for what has."""
        self._engine.shutdown(cancel_futures=True)

    def _new_job(self, request_id: str, work: Work) -> _EngineJob:
        if sum(not other.result.done() for other in self._jobs.values()) >= _MOST_WAITING:
            raise ApiError(f"{_MOST_WAITING} requests wait already; ask again later", status=429)
        job = self._jobs[request_id] = _EngineJob(work)
        if len(self._jobs) > _MOST_KEPT:
            # There is one: fewer may wait than are kept.
            oldest = next(key for key, other in self._jobs.items() if other.result.done())
            del self._jobs[oldest]
        return job


def _run(job: _EngineJob) -> None:
    try:
        result = job.work()
    except Exception as error:  # whatever breaks costs this request, not the server
        result = failure(error)
    job.result.set_result(result)


def failure(error: Exception) -> dict[str, str]:
    """A failed job as the protocol says it: one sentence, and whose fault it was."""
    if isinstance(error, GradusError | ApiError | ValueError):
        return {"error": first_line(error), "category": "user"}
    return {"error": f"{type(error).__name__}: {first_line(error)}", "category": "server"}
