"""Reads what OpenAI's clients send: requests, and messages of chat completions; errors in OpenAI's form."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic import Json as JsonText

from gradus.core import Asked, Message, ToolCall
from gradus.core.printing import beginning, quiet
from gradus.core.values import Json, JsonDict

R = TypeVar("R")
T = TypeVar("T", bound="RequestBody")

# These tell the server about the asker and not about the answer.
_IGNORED = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "priority", "request_id"]
)
# A parameter that is not supported is taken at a value that changes nothing: an empty one, or one of these.
_NEUTRAL: JsonDict = {
    "repetition_penalty": 1,
    "best_of": 1,
    "function_call": "none",
    "modalities": ["text"],
    "add_generation_prompt": True,
    "parallel_tool_calls": True,
}
_MOST_TOKENS = 2**20  # of one answer
_MOST_MESSAGES = 4096
_MOST_TOOLS = 128
MOST_CHOICES = 64
_LONGEST = 1000  # characters of an error
Stop = Annotated[str, Field(max_length=256)]


class ApiError(Exception):
    """An error as OpenAI's clients understand it."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> JsonDict:
        """The JSON that goes over the wire."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        # A client's own words come back in it, however many they were.
        message = beginning(self.message, _LONGEST)
        param = self.param and beginning(self.param, _LONGEST)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


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

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in texts if text]


class _Function(BaseModel):
    name: str = Field(min_length=1)
    arguments: JsonText[JsonDict] | JsonDict = {}


class _FunctionTool(BaseModel):
    """A tool that is offered, or that must be called."""

    type: Literal["function"]
    function: _Function


class _FormSchema(BaseModel):
    schema_: JsonDict = Field(default={}, alias="schema")


class ResponseFormat(BaseModel):
    """The form that an answer should have: ``text``, ``json_object``, or ``json_schema`` with the schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _FormSchema = _FormSchema()

    @property
    def instruction(self) -> str:
        """What the prompt says about it."""
        if self.type == "json_object":
            return "Answer with one JSON object and nothing else."
        schema = json.dumps(self.json_schema.schema_, ensure_ascii=False)
        return f"Answer with JSON that fits this schema, and with nothing else:\n{schema}"


class ChatRequest(RequestBody):
    """``POST /v1/chat/completions``."""

    messages: list[JsonDict] = Field(min_length=1, max_length=_MOST_MESSAGES)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES, strict=True)
    stream: bool | None = None
    stream_options: JsonDict | None = None
    tools: list[JsonDict] | None = Field(default=None, max_length=_MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | _FunctionTool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=0)
    # What the client asked for and the server decides.
    ignored: JsonDict = {}

    @property
    def forced(self) -> str:
        """The tool that must be called, ``required`` for any, or an empty text."""
        if isinstance(self.tool_choice, _FunctionTool):
            return self.tool_choice.function.name
        return "required" if self.tool_choice == "required" else ""

    @property
    def offered(self) -> list[JsonDict]:
        """The tools that the model may call. Raises ApiError for what cannot be one, and if one must be called that is not among them."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        names = [tool.function.name for tool in validated(list[_FunctionTool], tools, "tools")]
        # One of any tools can be called if there are some.
        callable_names = [*names, "required"] if tools else []
        if self.forced and self.forced not in callable_names:
            raise ApiError(f"tool_choice: there is no tool {self.forced!r} among {names}", param="tool_choice")
        return tools

    def read(self) -> tuple[tuple[Message, ...], Asked]:
        """Returns the messages, and what is asked of the answer to them. Raises ApiError for what cannot be a message or a tool."""
        tools = self.offered
        messages, prefill = read_messages(self.messages)
        form = self.response_format
        schema = None
        if form is not None and form.type != "text":
            schema = form.json_schema.schema_
            # The system message says which form the answer should have.
            instruction = form.instruction
            if messages[0].role == "system":
                instruction = f"{messages.pop(0).content}\n\n{instruction}"
            messages.insert(0, Message(role="system", content=instruction))
        asked = Asked(
            tools=tuple(tools),
            choice=self.forced,
            stop=tuple(self.stops),
            max_tokens=self.budget,
            seed=self.seed,
            prefill=prefill,
            schema=schema,
            spelled=bool(self.logprobs),
        )
        return tuple(messages), asked


class CompletionRequest(RequestBody):
    """``POST /v1/completions``."""

    stop_token_ids: list[int] | None = Field(default=None, max_length=256)  # vLLM's
    # A text or a list of token ids; a list of prompts has an answer for each.
    prompt: str | list[int] | list[str] | list[list[int]]
    budget: int | None = Field(
        default=None, ge=0, le=_MOST_TOKENS, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    n: int | None = Field(default=None, ge=1, le=1, strict=True)
    # The prompt is part of the answer, its log-probs too; max_tokens may then be 0.
    echo: bool | None = None
    # Log-probs of the tokens are given and, from 1 on, the likeliest token at each place.
    logprobs: int | None = Field(default=None, ge=0, le=1)
    return_token_ids: bool | None = None  # vLLM's


def parse_chat(body: Json, overruled: Collection[str]) -> ChatRequest:
    """The request for a chat. ``overruled``: parameters that the server decides whatever a client says, which it is told once."""
    fields = dict(body)
    ignored: JsonDict = {}
    for name, value in body.items():
        if name in overruled and value is not None:
            ignored[name] = fields.pop(name)
            _tell_overruled(name)
    return parse_body(ChatRequest, {**fields, "ignored": ignored})


@cache
def _tell_overruled(name: str) -> None:
    if not quiet():
        print(f"the agent asks for a {name} of its own; the run's setting holds", file=sys.stderr)


def parse_body(kind: type[T], body: Json) -> T:
    """The request, or an ApiError that names the parameter."""
    request = validated(kind, body)
    for name, value in (request.model_extra or {}).items():
        # Refused by name: a parameter that is dropped in silence gives answers that nobody asked for.
        if value and name not in _IGNORED and value != _NEUTRAL.get(name):
            raise ApiError(
                f"the parameter {name} is not supported by this server; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    return request


def shared_fields(request: BaseModel, without_effect: Collection[str]) -> JsonDict:
    """Returns what another dialect has by the name that a chat has it by; it is checked there.

    Raises ApiError if several answers are asked for, which chats alone can have.
    """
    fields = request.model_extra or {}
    if fields.get("n") not in (None, 1):
        raise ApiError("this route gives one answer; leave n out", param="n", code="invalid_value")
    return {name: value for name, value in fields.items() if name not in without_effect}


def validated(kind: type[R], value: Any, param: str | None = None) -> R:
    """Returns a value, or JSON in bytes, as pydantic reads it. Raises ApiError. ``param``: what is read; None for the field that is wrong."""
    adapter = _adapter(kind)
    try:
        return adapter.validate_json(value) if isinstance(value, bytes) else adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"]
        place = ".".join(map(str, first["loc"]))
        message = f"{place or 'the body'}: {reason}" if param is None else f"{param}: {reason}, at {place}"
        raise ApiError(message, param=param or place.partition(".")[0], code="invalid_value") from error


@cache
def _adapter(kind: type[R]) -> TypeAdapter[R]:
    return TypeAdapter(kind)


class _CallOfTool(BaseModel):
    id: str = ""
    function: _Function


class _TextPart(BaseModel):
    type: Literal["text", "input_text", "output_text"]  # the same by three names
    text: str


class _ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_CallOfTool] | None = None
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of an answer."""
        return tuple(
            ToolCall(name=call.function.name, arguments=call.function.arguments, id=call.id)
            for call in self.tool_calls or ()
        )


def read_messages(messages: Sequence[Json]) -> tuple[list[Message], str]:
    """Returns the messages of the protocol as ours, and the beginning of the answer, if the last one is that.

    Calls get ids by their places, for a client may write any. Raises ApiError for what cannot be a message.
    """
    chat = validated(list[_ChatMessage], messages, "messages")
    prefill = ""
    if chat[-1].role == "assistant" and not chat[-1].calls and len(chat) > 1:
        prefill = chat.pop().text
    if chat[-1].role not in ("user", "tool"):
        raise ApiError("messages: expected one of the user or of a tool before the answer", param="messages")
    # Results carry the id of their call alone, and templates want the name.
    calls: dict[str, ToolCall] = {}
    for number, message in enumerate(chat):
        for place, call in enumerate(message.calls):
            # Nine letters and digits, which is all that some templates take.
            calls[call.id] = replace(call, id=f"c{number:04d}{place:04d}")
    return [_message(message, calls) for message in chat], prefill


def _message(message: _ChatMessage, calls: Mapping[str, ToolCall]) -> Message:
    """A message of the protocol. ``calls``: by the ids that the client wrote, with the ids that they get."""
    if message.role == "tool":
        call_id = message.tool_call_id
        if call_id not in calls:
            raise ApiError(f"messages: no call has the id {call_id!r} that a tool's message answers", param="messages")
        call = calls[call_id]
        return Message(role="tool", content=message.text, call_id=call.id, name=call.name)
    # Clients send null content beside calls, and nowhere else.
    if message.content is None and not message.tool_calls:
        raise ApiError(f"messages: a message of the {message.role} has no content", param="messages")
    # OpenAI's newer name for the same.
    role = "system" if message.role == "developer" else message.role
    renamed = [calls[call.id] for call in message.calls]
    return Message(role=role, content=message.text, calls=tuple(renamed))
