"""The endpoint that agents of this process call: OpenAI's chat completions and responses, answered by whatever policy rolls out their episodes.

One server at a free port of this machine's own address. Each episode has a key of its own; a request with any other is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradus.core import Asked
from gradus.interop.agents.calls import Answered, Call, Inbox
from gradus.interop.agents.responses import chat_body, response_body
from gradus.interop.agents.running import Address
from gradus.interop.guard import Guard
from gradus.interop.serving.answers import call_records, token_counts
from gradus.interop.serving.conversation import check_tools, read_messages
from gradus.interop.serving.listening import listen, url
from gradus.interop.serving.openai_schema import ApiError, ChatRequest, parse_body
from gradus.interop.serving.transport import event, guarded, not_found, read_json, unless_gone

_HOST = "127.0.0.1"
_MOST_CHOICES = 64
# How tokens are drawn is the run's: the trainer computes log-probs of that distribution.
_OVERRULED = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
    "reasoning_effort", "verbosity",
)  # fmt: skip


class Endpoint:
    """The server, in a thread of its own."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        self._numbers = itertools.count()
        routes = [
            Route("/v1/models", guarded(self._models)),
            Route("/v1/chat/completions", guarded(self._chat), methods=["POST"]),
            Route("/v1/responses", guarded(self._respond), methods=["POST"]),
        ]
        app = Starlette(
            routes=routes, middleware=[Middleware(Guard)], exception_handlers={404: not_found, 405: not_found}
        )
        listener = listen(_HOST, 0)
        listener.listen(1024)
        self._base = url(listener, _HOST, path="/v1")
        config = uvicorn.Config(app, log_level="warning", ws="none", lifespan="off")
        run, named = uvicorn.Server(config).run, {"name": "gradus-endpoint", "daemon": True}
        threading.Thread(target=run, kwargs={"sockets": [listener]}, **named).start()

    def open(self, inbox: Inbox) -> Address:
        """Let an episode be reached by its key."""
        self._inboxes[inbox.key] = inbox
        return Address(base_url=self._base, api_key=inbox.key)

    def forget(self, inbox: Inbox) -> None:
        """Let its key be worth nothing."""
        self._inboxes.pop(inbox.key, None)

    def _inbox(self, request: Request) -> Inbox:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        inbox = self._inboxes.get(key)
        if inbox is None:
            raise ApiError("no episode has this key; an episode's key ends with it", status=401, code="invalid_api_key")
        return inbox

    async def _models(self, request: Request) -> Response:
        self._inbox(request)
        card = {"id": "policy", "object": "model", "created": 0, "owned_by": "gradus"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _answers(self, inbox: Inbox, request: Request, calls: list[Call]) -> list[Answered]:
        for call in calls:
            inbox.put_call(call)
        try:
            return await unless_gone(request, asyncio.gather(*(asyncio.wrap_future(call.answer) for call in calls)))
        finally:
            for call in calls:
                call.gone = True

    async def _respond(self, request: Request) -> Response:
        inbox = self._inbox(request)
        asked, calls = _read(chat_body(await read_json(request)))
        (answer,) = await self._answers(inbox, request, calls)
        return JSONResponse(response_body(asked.model, answer, _usage([answer])))

    async def _chat(self, request: Request) -> Response:
        inbox = self._inbox(request)
        asked, calls = _read(await read_json(request))
        answers = await self._answers(inbox, request, calls)
        head = {"id": f"chatcmpl-{next(self._numbers)}", "created": int(time.time()), "model": asked.model}
        if asked.stream:
            return StreamingResponse(_events(head, asked, answers), media_type="text/event-stream")
        choices = [
            {"index": index, "finish_reason": each.finish, "logprobs": None, "message": _message(each)}
            for index, each in enumerate(answers)
        ]
        body = {**head, "object": "chat.completion", "choices": choices, "usage": _usage(answers)}
        return JSONResponse(body)


@cache
def _endpoint_of(process: int) -> Endpoint:
    return Endpoint()


def endpoint() -> Endpoint:
    """The endpoint of this process, which its first episode opens."""
    return _endpoint_of(os.getpid())


def _read(body: Any) -> tuple[ChatRequest, list[Call]]:
    """The request, and its calls: one for each choice. Raises ApiError for what nobody can answer."""
    overruled: dict[str, Any] = {}
    count: Any = 1
    if isinstance(body, dict):
        overruled = {name: body.pop(name) for name in _OVERRULED if body.get(name) is not None}
        if body.get("tool_choice") not in (None, "auto", "none"):  # what is said is the policy's own
            overruled["tool_choice"] = body.pop("tool_choice")
        body.setdefault("model", "policy")
        count = body.pop("n", None)
        count = 1 if count is None else count
    asked = parse_body(ChatRequest, body)
    if type(count) is not int or not 1 <= count <= _MOST_CHOICES:
        raise ApiError(
            f"n is a whole number from 1 to {_MOST_CHOICES}, got {count!r:.40}", param="n", code="invalid_value"
        )
    check_tools(asked.offered)
    messages = tuple(read_messages(asked.messages))
    wanted = Asked(tools=tuple(asked.offered), stop=tuple(asked.stops), max_tokens=asked.budget, seed=asked.seed)
    return asked, [Call(messages=messages, asked=wanted, overruled=overruled) for _ in range(count)]


def _message(answered: Answered) -> dict[str, Any]:
    said = answered.message
    if not said.calls:
        return {"role": "assistant", "content": said.content, "refusal": None}
    calls = call_records(said.calls)
    return {"role": "assistant", "content": said.content or None, "refusal": None, "tool_calls": calls}


def _usage(answers: list[Answered]) -> dict[str, int]:
    used = [each.action.usage for each in answers if each.action.usage is not None]
    read, sampled = max((each.prompt_tokens for each in used), default=0), sum(each.completion_tokens for each in used)
    return token_counts(read, sampled)


async def _events(head: dict[str, Any], asked: ChatRequest, answers: list[Answered]) -> AsyncIterator[str]:
    """The answers in pieces: a line each of the text, then the calls, the end, and the usage if it was asked for."""
    head = {**head, "object": "chat.completion.chunk"}
    for index, each in enumerate(answers):
        whole = _message(each)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in (whole["content"] or "").splitlines(keepends=True)]
        deltas += [{"tool_calls": whole["tool_calls"]}] if "tool_calls" in whole else []
        for delta in deltas:
            yield event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        yield event({**head, "choices": [{"index": index, "delta": {}, "finish_reason": each.finish}]})
    if asked.stream_options and asked.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": _usage(answers)})
    yield "data: [DONE]\n\n"
