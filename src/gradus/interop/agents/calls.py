"""The calls of foreign agents, between the endpoint that they reach and the rollout that answers them.

One server at a free port of this machine's own address serves all agents of this process, answered by whatever policy rolls out their
episodes. Each episode has a key of its own; a request with any other is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any

import uvicorn

from gradus.core import Asked, EnvironmentFault, Message
from gradus.core.frozen_record import frozen_record
from gradus.core.servers import LOOPBACK
from gradus.core.values import Json, JsonDict
from gradus.interop.servers import listen, server_config, url
from gradus.interop.serving.answers import ChatAnswer
from gradus.interop.serving.endpoint import CLIENT_LEFT, endpoint_app
from gradus.interop.serving.requests import ApiError, ChatRequest

_MOST_CONNECTIONS = 512
_TOGETHER = 0.001  # seconds for calls that an agent makes at the same time to come in
_MOST_WAITING = 64  # calls of one episode that wait for an answer


ConversationKey = tuple[Any, ...]


class AgentFault(EnvironmentFault):
    """The agent raised before it had an answer, or the endpoint refused one of its calls. Its episode fails, and no other."""


@frozen_record
class AgentLimits:
    """The limits of an agent's episode, and how many episodes run at once."""

    # Seconds of its own, without the time that answers take.
    seconds: float = 120.0
    # What goes beyond so many calls, or sampled tokens, ends the episode as truncated.
    calls: int = 32
    tokens: int | None = None
    # Episodes at once; None for as many as are rolled out together.
    episodes: int | None = None
    # The policy answers so long behind the first call that waits, and not when all episodes wait. Numbers of a run then depend on time.
    wait_ms: float | None = None
    # Where the endpoint listens.
    endpoint_host: str = "127.0.0.1"
    # The names by which agents elsewhere call it, with commas between them. Agents are told the first.
    hosts: str = ""


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """One call that waits for its answer."""

    messages: tuple[Message, ...]
    asked: Asked
    answer: Future[ChatAnswer] = field(default_factory=Future[ChatAnswer])

    @cached_property
    def key(self) -> ConversationKey:
        """What two equal conversations with equal tools share, however their client wrote them."""
        return json.dumps(list(self.asked.tools), sort_keys=True), *map(message_key, self.messages)

    @property
    def content(self) -> tuple[ConversationKey, str]:
        """All that it asks, to be sorted by."""
        return self.key, repr(replace(self.asked, tools=()))

    async def parts(self) -> AsyncIterator[ChatAnswer]:
        """The answer in one piece."""
        yield await asyncio.wrap_future(self.answer)

    def leave(self) -> None:
        """Answer it no more: its client has left."""
        self.answer.cancel()

    def settle(self, answer: ChatAnswer | ApiError) -> bool:
        """Give the answer or an error. False if there is an answer already, or the client has left."""
        try:
            if isinstance(answer, ApiError):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)
        except InvalidStateError:
            return False
        return True


@frozen_record
class Ended:
    """The end of the agent: what it returned, or what went wrong."""

    result: Any = None
    # What went wrong, as a sentence, and the exception itself.
    fault: str | None = None
    error: BaseException | None = None


class Inbox:
    """Calls of one episode in the order in which they came, and the end of its agent. Any thread may put something in."""

    def __init__(self) -> None:
        # What the agent's client must carry; worth nothing once the episode is over.
        self.key = secrets.token_urlsafe(24)
        # What the endpoint could not take, a sentence each.
        self.refusals: list[str] = []
        # What a call asked for and the run decides.
        self.overruled: JsonDict = {}
        # Calls that came and were not answered yet.
        self.waiting: list[PendingCall] = []
        self._end: Ended | None = None
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._closed: ApiError | None = None

    def put_call(self, call: PendingCall) -> None:
        """Queue a call. Raises ApiError if the episode is over, or too many of its calls wait."""
        if self._closed is not None:
            raise self._closed
        # An agent that asks without end would fill the memory of the run.
        if len(self.waiting) >= _MOST_WAITING:
            raise ApiError(f"{_MOST_WAITING} calls of this episode wait for an answer; wait for them", status=429)
        # The server has a thread of its own.
        self._loop.call_soon_threadsafe(self._add, call)

    def put_end(self, end: Ended) -> None:
        """Say that the agent is done."""
        with suppress(RuntimeError):  # the loop is gone when the process ends
            self._loop.call_soon_threadsafe(self._add, end)

    async def next(self) -> PendingCall | Ended:
        """The next call whose client still waits, or the end."""
        while True:
            # A client that left has no use for an answer, and sampling it would cost a turn.
            self.waiting = [call for call in self.waiting if not call.answer.cancelled()]
            if self.waiting:
                # Calls that wait together are answered in an order that their content decides, not their arrival.
                self.waiting.sort(key=attrgetter("content"))
                return self.waiting.pop(0)
            if self._end is not None:
                return self._end
            self._arrived.clear()
            await self._arrived.wait()
            # In the agents' loop: calls that a coroutine makes at once have all come then, however busy the machine is.
            together, agents = asyncio.Event(), agents_loop()
            wake = partial(self._loop.call_soon_threadsafe, together.set)
            agents.call_soon_threadsafe(agents.call_later, _TOGETHER, wake)
            await together.wait()

    def _add(self, event: PendingCall | Ended) -> None:
        if isinstance(event, Ended):
            self._end = event
        else:
            self.waiting.append(event)
        self._arrived.set()

    def close(self, why: ApiError) -> None:
        """Refuse all that waits and all that comes."""
        self._closed = why
        for call in self.waiting:
            call.settle(why)
        self.waiting = []

    def refuse(self, error: ApiError) -> None:
        """Take down a refusal, unless the episode is over or the client has left."""
        if self._closed is None and error.status != CLIENT_LEFT:
            place = f"{error.param}: " if error.param else ""
            self.refusals.append(place + error.message)


class Endpoint:
    """The server, in a thread of its own. Its backend is this: the episodes by their keys."""

    # How tokens are drawn is the run's: the trainer computes log-probs of that distribution. What is said is the policy's own.
    overruled: Collection[str] = (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
        "reasoning_effort", "verbosity", "parallel_tool_calls",
    )  # fmt: skip

    def __init__(self, host: str, names: Sequence[str]) -> None:
        self._inboxes: dict[str, Inbox] = {}
        listener = listen(host, 0)
        self._base = url(listener, names[0] if names else host, path="/v1")
        self.app = endpoint_app(self, hosts=LOOPBACK | {host, *names})
        # A quarter of what this process may open: idle clients must not keep the run from its files.
        most = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        server = uvicorn.Server(server_config(self.app, lifespan="off", limit_concurrency=most))
        # A daemon: agents of a run that has ended must not keep its process.
        threading.Thread(target=server.run, args=([listener],), name="gradus-endpoint", daemon=True).start()

    def open(self, inbox: Inbox) -> str:
        """Let an episode be reached by its key. Returns the address."""
        self._inboxes[inbox.key] = inbox
        return self._base

    def forget(self, inbox: Inbox) -> None:
        """Let its key be worth nothing."""
        self._inboxes.pop(inbox.key, None)

    def admit(self, key: str) -> None:
        """Raise ApiError for a key that belongs to none of the episodes."""
        if key not in self._inboxes:
            message = "no episode has this key; an episode's key ends with it"
            raise ApiError(message, status=401, code="invalid_api_key")

    def card(self) -> Json:
        """The policy as a model; any other name is right too."""
        return {"id": "policy", "created": 0, "owned_by": "gradus"}

    def refused(self, key: str, error: ApiError) -> None:
        """Let the episode know what was refused."""
        if key in self._inboxes:
            self._inboxes[key].refuse(error)

    async def ask(self, key: str, request: ChatRequest) -> Sequence[PendingCall]:
        """Put a call for each choice into the episode's inbox."""
        self.admit(key)  # the episode may have ended while the request was read
        self._inboxes[key].overruled |= request.ignored
        # What cannot be read is refused here, before it is a turn of the episode.
        messages, asked = request.read()
        calls = [PendingCall(messages=messages, asked=asked) for _ in range(request.n or 1)]
        for call in calls:
            self._inboxes[key].put_call(call)
        return calls


@cache
def agents_loop() -> asyncio.AbstractEventLoop:
    """The loop in which the coroutines of this process's agents run."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gradus-agents", daemon=True).start()
    return loop


@cache
def _endpoint_of(process: int, host: str, names: tuple[str, ...]) -> Endpoint:
    # By process: a child that was forked has its parent's cache, but not the thread that serves.
    return Endpoint(host, names)


def endpoint(limits: AgentLimits) -> Endpoint:
    """The endpoint of this process at a host, which its first episode opens."""
    names = tuple(name for name in limits.hosts.split(",") if name)
    return _endpoint_of(os.getpid(), limits.endpoint_host, names)


def message_key(message: Message) -> tuple[Any, ...]:
    """Returns what two equal messages share: role, text and calls.

    Ids of calls say nothing, for clients rewrite them: a call and its result are known by their places.
    """
    # Clients write the same arguments with other spaces and in another order.
    arguments = [json.dumps(dict(call.arguments), sort_keys=True) for call in message.calls]
    names = [call.name for call in message.calls]
    return message.role, message.content.strip(), tuple(zip(names, arguments, strict=True))
