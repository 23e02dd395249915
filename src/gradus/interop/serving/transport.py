"""Reads a request and sends the replies, with errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gradus.interop.serving.answers import Reply, chunk_choice, usage
from gradus.interop.serving.openai_schema import ApiError, ChatRequest, CompletionRequest

T = TypeVar("T")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for the work and return what it gives. Raises ClientDisconnect if the client leaves meanwhile; the work is then let go."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    waiting, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    waiting.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # it is looked at, also if the client has left
    try:
        await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        for task in (waiting, watching):
            task.cancel()


async def events(
    head: dict[str, Any], asked: ChatRequest | CompletionRequest, reply: Reply, chat: bool
) -> AsyncIterator[str]:
    """Server-sent events: one for each piece of text, then the usage if asked for, then [DONE]."""
    head = {**head, "object": "chat.completion.chunk" if chat else "text_completion"}
    first = True
    try:
        async for piece in reply.pieces():
            body = {**head, "choices": [chunk_choice(asked, reply, piece, first=first)]}
            first = False
            yield event(body)
        if asked.stream_options and asked.stream_options.include_usage:
            yield event({**head, "choices": [], "usage": usage(reply)})
        yield "data: [DONE]\n\n"
    except Exception as error:
        yield event(ApiError(f"{type(error).__name__}: {error}", status=500).body())
    finally:
        reply.generation.cancelled = True


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def read_json(request: Request) -> Any:
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


def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose errors come in OpenAI's form."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            return JSONResponse(error.body(), status_code=error.status)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return JSONResponse(ApiError(f"{type(error).__name__}: {error}", status=500).body(), status_code=500)

    return answer


async def not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here; there are /v1/models, /v1/chat/completions, /v1/completions"
    return JSONResponse(ApiError(message, status=status).body(), status_code=status)
