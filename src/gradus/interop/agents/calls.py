"""One episode of a foreign agent, between the endpoint that its calls reach and the rollout that answers them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gradus.core import Asked, EnvironmentFault, Message
from gradus.interop.serving.replies import Answer
from gradus.interop.serving.requests import ApiError

_MOST_WAITING = 64  # calls of one episode that wait for an answer


class AgentFault(EnvironmentFault):
    """The agent raised, made no call, or took too long. Its episode fails, and no other."""


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """The limits of an agent's episode, and how many episodes run at once.

    ``seconds``: of its own, without the time that answers take. ``calls`` and ``tokens`` (sampled): what goes beyond ends the episode
    as truncated.
    """

    seconds: float = 120.0
    calls: int = 32
    tokens: int | None = None
    episodes: int | None = None


@dataclass(eq=False, kw_only=True)
class Call:
    """One call that waits for its answer. ``overruled``: what it asked for and does not get, because the run decides it."""

    messages: tuple[Message, ...]
    asked: Asked
    overruled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: Future[Answer] = field(default_factory=Future)
    gone: bool = False  # the client has its answer, or has left

    async def parts(self) -> AsyncIterator[Answer]:
        """The answer in one piece."""
        yield await asyncio.wrap_future(self.answer)

    def leave(self) -> None:
        """Answer it no more."""
        self.gone = True

    def settle(self, answer: Answer) -> None:
        """Give the answer, unless the client has left."""
        with suppress(InvalidStateError):
            self.answer.set_result(answer)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error, unless there is an answer already."""
        with suppress(InvalidStateError):  # it was answered, or its client left
            self.answer.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of the agent: what it returned, or what went wrong."""

    result: Any = None
    fault: str | None = None


class Inbox:
    """Calls of one episode in the order in which they came, and the end of its agent. Any thread may put something in.

    ``key``: what the agent's client must carry; random, and worth nothing once the episode is over.
    """

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Call | Ended] = asyncio.Queue()
        self._waiting = 0
        self._closed: ApiError | None = None

    def put_call(self, call: Call) -> None:
        """Queue a call. Raises ApiError if the episode is over, or too many of its calls wait."""
        if self._closed is not None:
            raise self._closed
        if self._waiting >= _MOST_WAITING:
            raise ApiError(f"{_MOST_WAITING} calls of this episode wait for an answer; wait for them", status=429)
        self._waiting += 1
        self._loop.call_soon_threadsafe(self._events.put_nowait, call)

    def put_end(self, end: Ended) -> None:
        """Say that the agent is done."""
        with suppress(RuntimeError):  # the loop is gone when the process ends
            self._loop.call_soon_threadsafe(self._events.put_nowait, end)

    async def next(self) -> Call | Ended:
        """The next call whose client still waits, or the end."""
        while True:
            event = await self._events.get()
            if isinstance(event, Ended):
                return event
            self._waiting -= 1
            if not event.gone:
                return event

    async def end(self) -> Ended:
        """The end of the agent, when it was closed: calls are refused as they come."""
        while not isinstance(event := await self._events.get(), Ended):
            pass
        return event

    def close(self, why: ApiError) -> None:
        """Refuse all that waits and all that comes."""
        self._closed = why
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Call):
                event.refuse(why)


def message_key(message: Message) -> tuple[Any, ...]:
    """Returns what two equal messages share, however a client wrote them: role, text, calls and what they answer."""
    calls = [(call.name, json.dumps(dict(call.arguments), sort_keys=True), call.id) for call in message.calls]
    return message.role, message.content, tuple(calls), message.call_id


def tools_key(tools: Sequence[Any]) -> str:
    """Returns what two equal offers of tools share."""
    return json.dumps(list(tools), sort_keys=True)
