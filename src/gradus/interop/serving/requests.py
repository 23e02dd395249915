"""Reads what OpenAI's clients send: requests, messages of chat completions, and items of the Responses API; errors in OpenAI's form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, Json, TypeAdapter, ValidationError

from gradus.core import Message, ToolCall
from gradus.core.printing import quiet

R = TypeVar("R")
T = TypeVar("T", bound="RequestBody")

# These tell the server about the asker and not about the answer.
_IGNORED = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "priority", "request_id"]
)
# A parameter that is not supported is taken at a value that changes nothing: an empty one, or one of these.
_NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1,
    "n": 1,
    "best_of": 1,
    "function_call": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "add_generation_prompt": True,
    "parallel_tool_calls": True,
}
_MOST_TOKENS = 2**20  # of one answer
_MOST_MESSAGES = 4096
_MOST_TOOLS = 128
_MOST_CHOICES = 64
Stop = Annotated[str, Field(max_length=256)]


class ApiError(Exception):
    """An error as OpenAI's clients understand it."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, Any]:
        """The JSON that goes over the wire."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class RequestBody(BaseModel):
    """Fields that chat and plain completions share. Fields beyond these are checked by :func:`parse_body`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    model: str = ""
    budget: int | None = Field(
        default=None, ge=1, le=_MOST_TOKENS, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Stop | list[Stop] | None = Field(default=None, max_length=256)
    stop_token_ids: list[int] | None = Field(default=None, max_length=256)  # vLLM's

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in texts if text]


class ChatRequest(RequestBody):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=_MOST_MESSAGES)
    n: int | None = Field(default=None, ge=1, le=_MOST_CHOICES, strict=True)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=_MOST_TOOLS)
    tool_choice: Literal["none", "auto"] | None = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []


class CompletionRequest(RequestBody):
    """``POST /v1/completions``. A prompt is a text or a list of token ids. ``logprobs`` 0 asks for those of the sampled tokens."""

    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0, le=0)
    return_token_ids: bool | None = None  # vLLM's


def parse_chat(body: Any, overruled: Collection[str]) -> ChatRequest:
    """The request for a chat. ``overruled``: parameters that the server decides whatever a client says, which it is told once."""
    if isinstance(body, dict):
        free = {"tool_choice": ("auto", "none")}
        asked = {name: body.get(name) for name in overruled if body.get(name) not in (None, *free.get(name, ()))}
        for name, value in asked.items():
            _tell_overruled(name, str(value)[:40])
        body = {name: value for name, value in body.items() if name not in asked}
    return parse_body(ChatRequest, body)


@cache
def _tell_overruled(name: str, value: str) -> None:
    if not quiet():
        print(f"the agent asks for {name} = {value}; the run's own setting holds", file=sys.stderr)


def parse_body(kind: type[T], body: Any) -> T:
    """The request, or an ApiError that names the parameter."""
    if not isinstance(body, Mapping):
        raise ApiError(f"the body must be a JSON object, got {type(body).__name__}")
    request = checked(None, lambda: kind.model_validate(body))
    for name, value in (request.model_extra or {}).items():
        if value and name not in _IGNORED and value != _NEUTRAL.get(name):
            raise ApiError(
                f"the parameter {name} is not supported by this server; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    return request


def checked(param: str | None, read: Callable[[], R]) -> R:
    """Returns what ``read`` gives; an ApiError in place of a ValidationError. ``param``: what was read, None for the field that is wrong."""
    try:
        return read()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        name = param or str(first["loc"][0])
        raise ApiError(
            f"{name}: {first['msg']}, at {where}" if param else f"{where}: {first['msg']}",
            param=name,
            code="invalid_value",
        ) from error


_WITHOUT_EFFECT = ("include", "truncation", "reasoning")  # they shape a response of OpenAI's own models


class _Function(BaseModel):
    name: str = Field(min_length=1)
    arguments: Json[dict[str, Any]] | dict[str, Any] = {}


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text"]  # the same by three names
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


_MESSAGES, _TOOLS = TypeAdapter(list[_Message]), TypeAdapter(list[_Tool])


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for what cannot be a tool."""
    checked("tools", lambda: _TOOLS.validate_python(list(tools)))


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of the protocol as ours. Raises ApiError for what cannot be one, and for a conversation that ends with the assistant."""
    said = checked("messages", lambda: _MESSAGES.validate_python(list(messages)))
    if said[-1].role not in ("user", "tool"):
        raise ApiError("messages: the last message must be the user's or a tool's", param="messages")
    names = {call.id: call.function.name for message in said for call in message.tool_calls or ()}
    return [_message(message, names) for message in said]


def _message(message: _Message, names: Mapping[str, str]) -> Message:
    """A message of the protocol. ``names``: of the tools, by the ids of calls."""
    if message.role == "tool":
        call_id = message.tool_call_id
        if call_id not in names:
            raise ApiError(f"messages: no call has the id {call_id!r} that a tool's message answers", param="messages")
        return Message(role="tool", content=message.text, call_id=call_id, name=names[call_id])
    if message.content is None and not message.tool_calls:
        raise ApiError(f"messages: a message of the {message.role} has no content", param="messages")
    calls = [
        ToolCall(name=call.function.name, arguments=call.function.arguments, id=call.id)
        for call in message.tool_calls or ()
    ]
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=message.text, calls=tuple(calls))


def chat_body(body: Any) -> Any:
    """Returns the body of the chat completion that a response asks for. Frameworks such as the OpenAI Agents SDK speak the Responses API unless
    they are told otherwise. What keeps a conversation on the server is refused. Raises ApiError for items that no message can hold."""
    try:
        return _chat_body(body)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ApiError(f"input, tools and text hold objects: {error}", param="input", code="invalid_value") from error


def _chat_body(body: Any) -> Any:
    chat = {name: value for name, value in body.items() if name not in _WITHOUT_EFFECT}
    if chat.pop("stream", None):
        raise ApiError("responses are not streamed here; leave stream out, or use chat completions", param="stream")
    instructions, given = chat.pop("instructions", None), chat.pop("input", None)
    chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        _add(chat["messages"], item)
    chat["tools"] = [
        {"type": each.get("type"), "function": {name: each[name] for name in each if name not in ("type", "strict")}}
        for each in chat.get("tools") or []
    ]
    chat["max_tokens"] = chat.pop("max_output_tokens", None)
    chat["response_format"] = (chat.pop("text", None) or {}).get("format")
    return chat


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the messages. Calls belong to the answer before them."""
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        messages.append(output)
    elif kind != "reasoning":
        raise ApiError(f"input: an item of the type {kind!r} has no place in a chat", param="input")
