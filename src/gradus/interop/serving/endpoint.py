"""The endpoint in three dialects, streaming or not: OpenAI's chat completions and responses, and Anthropic's messages.

What answers is a :class:`Backend`: the model of ``gradus serve``, or the episodes of agents.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.core.values import Json, JsonDict, check_unicode
from gradus.interop.servers import Guard
from gradus.interop.serving import messages, responses
from gradus.interop.serving.answers import ChatAnswer, Choice, chat_events, chat_reply, event, whole_answers
from gradus.interop.serving.requests import ApiError, ChatRequest, parse_chat

T = TypeVar("T")
_LITTLE = 2**16  # bytes that are read in a millisecond
CLIENT_LEFT = 499  # a status that nobody sees, as other servers have it
Handler = Callable[[Request], Awaitable[Response]]
# How a dialect asks for a chat, and how it says the answers to it: as events, or whole.
_Dialect = tuple[
    Callable[[Json], Json],
    Callable[[int, ChatRequest, Sequence[Choice]], AsyncIterator[str]],
    Callable[[int, ChatRequest, Sequence[ChatAnswer]], JsonDict],
]
_DIALECTS: Mapping[str, _Dialect] = {
    "/v1/chat/completions": (dict, chat_events, chat_reply),
    "/v1/responses": (responses.chat_body, responses.response_events, responses.response_reply),
    "/v1/messages": (messages.chat_body, messages.message_events, messages.message_reply),
}


class Backend(Protocol):
    """Answers chats."""

    # The parameters that it decides, whatever a client asks for.
    overruled: Collection[str]

    def admit(self, key: str) -> None:
        """Raise ApiError if nobody has this key."""
        ...

    def card(self) -> Json:
        """The one model, as /v1/models shows it."""
        ...

    def refused(self, key: str, error: ApiError) -> None:
        """Take note that a request with this key was refused."""
        ...

    async def ask(self, key: str, request: ChatRequest) -> Sequence[Choice]:
        """Begin ``request.n`` answers. Raises ApiError for what it cannot answer."""
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
    numbers = itertools.count()
    posts = {path: _chat_route(backend, dialect, numbers) for path, dialect in _DIALECTS.items()}

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{**backend.card(), "object": "model"}]})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", _guarded(backend, models)),
            *(
                Route(path, _guarded(backend, handle), methods=["POST"])
                for path, handle in {**posts, **(more or {})}.items()
            ),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=hosts)],
    )


def _chat_route(backend: Backend, dialect: _Dialect, numbers: Iterator[int]) -> Handler:
    """Answers chats in a dialect."""
    chat_body, events, reply = dialect

    async def handle(http: Request) -> Response:
        request = parse_chat(chat_body(await read_json(http)), backend.overruled)
        choices = await backend.ask(_key_of(http), request)
        request = request.model_copy(update={"model": request.model or backend.card()["id"]})
        number = next(numbers)
        if request.stream:
            stream = events(number, request, choices)
            first = await anext(stream)  # what goes wrong before it has a status of its own
            return StreamingResponse(_with_errors(first, stream), media_type="text/event-stream")
        answers = await while_client_waits(http, whole_answers(choices))
        return JSONResponse(reply(number, request, answers))

    return handle


async def while_client_waits(http: Request, work: Awaitable[T]) -> T:
    """Return what comes of the work. Raises ApiError, and ends it, if the client leaves before."""
    patience = asyncio.timeout(None)

    def give_up(_: object) -> None:
        with suppress(RuntimeError):  # the work has ended in the same moment
            patience.reschedule(0)

    leaving = asyncio.ensure_future(http.receive())  # behind the body comes nothing but the end of the connection
    try:
        async with patience:
            leaving.add_done_callback(give_up)
            return await work
    except TimeoutError as error:
        if not patience.expired():
            raise
        raise ApiError("the client has left", status=CLIENT_LEFT) from error
    finally:
        leaving.cancel()


async def _with_errors(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events; an error among them is the last."""
    yield first
    try:
        async for data in events:
            yield data
    except Exception as error:
        yield event(_api_error(error).body())


async def read_json(http: Request) -> Json:
    """Returns the JSON object in the body of a request. Raises ApiError if there is none."""
    raw = await http.body()
    # While much is read others are answered; a thread for little would take longer than to read it.
    return _json_object(raw) if len(raw) < _LITTLE else await asyncio.to_thread(_json_object, raw)


def _json_object(raw: bytes) -> Json:
    try:
        body: Any = json.loads(raw)
        check_unicode(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON of Unicode: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(f"the body must be a JSON object, got {type(body).__name__}")
    return cast(Json, body)


def _key_of(http: Request) -> str:
    """The key that a client sent, in OpenAI's or in Anthropic's header."""
    bearer = http.headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or http.headers.get("x-api-key", "")


def _guarded(backend: Backend, handle: Handler) -> Handler:
    """A route that asks for the key first, and whose errors come in OpenAI's form."""

    async def answer(http: Request) -> Response:
        try:
            backend.admit(_key_of(http))
            return await handle(http)
        except Exception as error:
            refusal = _api_error(error)
            backend.refused(_key_of(http), refusal)
            is_anthropic = http.url.path.endswith("/messages")
            body = messages.error_body(refusal) if is_anthropic else refusal.body()
            return JSONResponse(body, status_code=refusal.status)

    return answer


def _api_error(error: Exception) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError(f"{type(error).__name__}: {error}", status=500)
