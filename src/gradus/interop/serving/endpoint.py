"""The OpenAI-compatible endpoint: chat completions, streaming or not, and responses.

What answers is a :class:`Backend`: the model of ``gradus serve``, or the episodes of agents.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.interop.servers import Guard
from gradus.interop.serving.messages import chat_body
from gradus.interop.serving.replies import (
    Answer,
    Choice,
    chat_events,
    chat_reply,
    error_of,
    event,
    response_reply,
    whole,
)
from gradus.interop.serving.requests import ApiError, ChatRequest, parse_chat

Handler = Callable[[Request], Awaitable[Response]]


class Backend(Protocol):
    """Answers chats. ``overruled``: the parameters that it decides, whatever a client asks for."""

    overruled: Collection[str]

    def admit(self, key: str) -> None:
        """Raise ApiError if nobody has this key."""
        ...

    def card(self) -> Mapping[str, Any]:
        """The one model, as /v1/models shows it."""
        ...

    def ask(self, key: str, asked: ChatRequest, overruled: Mapping[str, Any]) -> Sequence[Choice]:
        """Begin ``asked.n`` answers. Raises ApiError for what it cannot answer."""
        ...


def endpoint_app(
    backend: Backend,
    *,
    hosts: Collection[str] | None,
    more: Mapping[str, Handler] | None = None,
    lifespan: Callable[[Any], Any] | None = None,
) -> Starlette:
    """The application. ``hosts``: names that Host and Origin may have, None for any. ``more``: further POST routes, which ask for the
    key as all do but ``/health``."""
    chats = _Chats(backend)
    posts = {"/v1/chat/completions": chats.chat, "/v1/responses": chats.respond, **(more or {})}

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", guarded(backend, chats.models)),
            *(Route(path, guarded(backend, handle), methods=["POST"]) for path, handle in posts.items()),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=hosts)],
    )


class _Chats:
    """The routes that every backend has."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._numbers = backend, itertools.count()

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{**self._backend.card(), "object": "model"}]})

    async def chat(self, request: Request) -> Response:
        asked, choices = self._asked(request, await read_json(request))
        head = {"id": f"chatcmpl-{next(self._numbers)}", "created": int(time.time()), "model": asked.model}
        if asked.stream:
            events = chat_events(head, asked, choices)
            first = await anext(events)  # what goes wrong before it has a status of its own
            return StreamingResponse(_told(first, events), media_type="text/event-stream")
        return JSONResponse(chat_reply(head, await answered(choices)))

    async def respond(self, request: Request) -> Response:
        asked, choices = self._asked(request, chat_body(await read_json(request)))
        (answer,) = await answered(choices)
        return JSONResponse(response_reply(next(self._numbers), asked, answer))

    def _asked(self, request: Request, body: Any) -> tuple[ChatRequest, Sequence[Choice]]:
        asked, overruled = parse_chat(body, self._backend.overruled)
        choices = self._backend.ask(key_of(request), asked, overruled)
        return asked.model_copy(update={"model": asked.model or self._backend.card()["id"]}), choices


async def answered(choices: Sequence[Choice]) -> Sequence[Answer]:
    """Wait for all answers."""
    try:
        return await asyncio.gather(*map(whole, choices))
    finally:
        for choice in choices:
            choice.leave()


async def _told(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events; an error among them is the last."""
    yield first
    try:
        async for each in events:
            yield each
    except Exception as error:
        yield event(error_of(error).body())


async def read_json(request: Request) -> Any:
    """Returns the body of a request. Raises ApiError if it is not JSON."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from error


def key_of(request: Request) -> str:
    """The key that a client sent."""
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def guarded(backend: Backend, handle: Handler) -> Handler:
    """A route that asks for the key first, and whose errors come in OpenAI's form."""

    async def answer(request: Request) -> Response:
        try:
            backend.admit(key_of(request))
            return await handle(request)
        except Exception as error:
            told = error_of(error)
            return JSONResponse(told.body(), status_code=told.status)

    return answer
