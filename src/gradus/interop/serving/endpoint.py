"""The OpenAI-compatible endpoint, and answers in the forms of its protocol: chat completions, streaming or not, and responses.

What answers is a :class:`Backend`: the model of ``gradus serve``, or the episodes of agents.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.core import Message, Usage
from gradus.interop.servers import Guard
from gradus.interop.serving.requests import ApiError, ChatRequest, chat_body, parse_chat


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer: the message as the client gets it, why it ended, and the tokens it took."""

    message: Message
    finish: str
    usage: Usage


class Choice(Protocol):
    """An answer on its way."""

    def parts(self) -> AsyncIterator[str | Answer]:
        """Texts as they come, then the whole answer. Raises what went wrong."""
        ...

    def leave(self) -> None:
        """Let it go: its client has its answer, or has left."""
        ...


async def whole(choice: Choice) -> Answer:
    """Wait for the end of an answer."""
    async for part in choice.parts():
        if isinstance(part, Answer):
            return part
    raise AssertionError("expected an answer at the end")


def answer_of(text: str, message: Message | None, *, cut: bool, usage: Usage, call_id: Callable[[int], str]) -> Answer:
    """The answer that a text is. ``message``: with the calls that were read in it; calls that cannot be read are text.

    ``cut``: the text has no end. ``call_id``: gives the id of a call at its place, if the model wrote none.
    """
    if message is None or not message.calls or any(call.fault for call in message.calls):
        said = Message(role="assistant", content=text)
        return Answer(message=said, finish="length" if cut else "stop", usage=usage)
    calls = [replace(call, id=call.id or call_id(place)) for place, call in enumerate(message.calls)]
    said = Message(role="assistant", content=message.content.strip(), calls=tuple(calls))
    return Answer(message=said, finish="length" if cut else "tool_calls", usage=usage)


def _chat_message(answer: Answer) -> dict[str, Any]:
    """The message of a chat."""
    said = answer.message
    if not said.calls:
        return {"role": "assistant", "content": said.content}
    calls = [
        {
            "index": place,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call.arguments)},
        }
        for place, call in enumerate(said.calls)
    ]
    return {"role": "assistant", "content": said.content or None, "tool_calls": calls}


def chat_reply(head: Mapping[str, Any], answers: Sequence[Answer]) -> dict[str, Any]:
    """A whole ``chat.completion``."""
    choices = [
        {
            "index": index,
            "finish_reason": each.finish,
            "logprobs": None,
            "message": {"refusal": None, **_chat_message(each)},
        }
        for index, each in enumerate(answers)
    ]
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage_of(answers)}


async def chat_events(head: Mapping[str, Any], asked: ChatRequest, choices: Sequence[Choice]) -> AsyncIterator[str]:
    """A ``chat.completion`` in server-sent events: texts as they come, what is left with the reason of the end, the usage if asked for."""
    head = {**head, "object": "chat.completion.chunk"}
    answers: list[Answer] = []
    try:
        for index, choice in enumerate(choices):
            opening, told = {"role": "assistant"}, ""
            async for part in choice.parts():
                delta: dict[str, Any] = {**opening, "content": part}
                finish = None
                if isinstance(part, Answer):
                    answers.append(part)
                    last, finish = _chat_message(part), part.finish
                    delta = {**last, "content": (last["content"] or "")[len(told) :], "role": "assistant"}
                    delta = delta if opening else {name: value for name, value in delta.items() if name != "role"}
                else:
                    told += part
                yield event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})
                opening = {}
        if (asked.stream_options or {}).get("include_usage"):
            yield event({**head, "choices": [], "usage": usage_of(answers)})
        yield "data: [DONE]\n\n"
    finally:
        for choice in choices:
            choice.leave()


def event(body: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_of(error: Exception) -> ApiError:
    """An error in OpenAI's form."""
    return error if isinstance(error, ApiError) else ApiError(f"{type(error).__name__}: {error}", status=500)


def response_reply(number: int, asked: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A whole response of the Responses API: its text, then its calls."""
    cut = answer.finish == "length"
    used = usage_of([answer])
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": asked.model,
        "output": [*_items(number, answer.message)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": used["prompt_tokens"],
            "output_tokens": used["completion_tokens"],
            "total_tokens": used["total_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _items(number: int, said: Message) -> Iterator[dict[str, Any]]:
    if said.content or not said.calls:
        content = [{"type": "output_text", "text": said.content, "annotations": []}]
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        yield {**head, "content": content}
    for place, call in enumerate(said.calls):
        head = {"id": f"fc_{number}_{place}", "type": "function_call", "status": "completed"}
        yield {**head, "call_id": call.id, "name": call.name, "arguments": _arguments(call.arguments)}


def _arguments(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), ensure_ascii=False)


def usage_of(answers: Sequence[Answer]) -> dict[str, int]:
    """The protocol's ``usage`` of the answers to one prompt."""
    read = max((each.usage.prompt_tokens for each in answers), default=0)
    sampled = sum(each.usage.completion_tokens for each in answers)
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


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

    def ask(self, key: str, asked: ChatRequest) -> Sequence[Choice]:
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
        asked = parse_chat(body, self._backend.overruled)
        choices = self._backend.ask(key_of(request), asked)
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
