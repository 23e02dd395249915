"""The OpenAI-compatible endpoint: chat completions, streaming or not, and responses.

What answers is a :class:`Backend`: the model of ``gradus serve``, or the episodes of agents.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.interop.guard import Guard
from gradus.interop.serving.messages import chat_body
from gradus.interop.serving.replies import Choice, chat_events, chat_reply, error_of, event, response_reply, whole
from gradus.interop.serving.requests import ApiError, ChatRequest, parse_chat

T = TypeVar("T")
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
    gets = {"/v1/models": chats.models, "/v1/models/{model:path}": chats.model}

    async def not_found(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        message = f"{request.method} {request.url.path} is not served here; there are /v1/models, {', '.join(posts)}"
        return JSONResponse(ApiError(message, status=status).body(), status_code=status)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/health", health),
            *(Route(path, guarded(backend, handle)) for path, handle in gets.items()),
            *(Route(path, guarded(backend, handle), methods=["POST"]) for path, handle in posts.items()),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={404: not_found, 405: not_found},
    )


class _Chats:
    """The routes that every backend has."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._numbers = backend, itertools.count()

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{**self._backend.card(), "object": "model"}]})

    async def model(self, request: Request) -> Response:
        card, name = self._backend.card(), request.path_params["model"]
        if name != card["id"]:
            raise ApiError(f"there is no model {name!r}", status=404, code="model_not_found")
        return JSONResponse({**card, "object": "model"})

    async def chat(self, request: Request) -> Response:
        asked, choices = self._asked(request, await read_json(request))
        head = {"id": f"chatcmpl-{next(self._numbers)}", "created": int(time.time()), "model": asked.model}
        if asked.stream:
            events = chat_events(head, asked, choices)
            first = await unless_gone(request, anext(events))  # what goes wrong before it has a status of its own
            return StreamingResponse(_told(first, events), media_type="text/event-stream")
        return JSONResponse(chat_reply(head, asked, await answered(request, choices)))

    async def respond(self, request: Request) -> Response:
        asked, choices = self._asked(request, chat_body(await read_json(request)))
        (answer,) = await answered(request, choices)
        return JSONResponse(response_reply(next(self._numbers), asked, answer))

    def _asked(self, request: Request, body: Any) -> tuple[ChatRequest, Sequence[Choice]]:
        asked, overruled = parse_chat(body, self._backend.overruled)
        choices = self._backend.ask(key_of(request), asked, overruled)
        return asked.model_copy(update={"model": asked.model or self._backend.card()["id"]}), choices


async def answered(request: Request, choices: Sequence[Choice]) -> Sequence[Any]:
    """Wait for all answers. Raises ClientDisconnect if the client leaves meanwhile."""
    try:
        return await unless_gone(request, asyncio.gather(*map(whole, choices)))
    finally:
        for choice in choices:
            choice.leave()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for the work and return what it gives. Raises ClientDisconnect if the client leaves meanwhile; the work is then let go."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    waiting, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    # It is looked at, also if the client has left.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        for task in (waiting, watching):
            task.cancel()


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
        raw = await request.body()
        value = json.loads(raw, parse_constant=_no_number)
        if b"\\u" in raw:  # JSON can spell half a character, which no tokenizer takes
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def key_of(request: Request) -> str:
    """The key that a client sent."""
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def guarded(backend: Backend, handle: Handler) -> Handler:
    """A route that asks for the key first, and whose errors come in OpenAI's form."""

    async def answer(request: Request) -> Response:
        try:
            backend.admit(key_of(request))
            return await handle(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            told = error_of(error)
            return JSONResponse(told.body(), status_code=told.status)

    return answer
