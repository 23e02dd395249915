"""Tools over the OpenAI protocol: what goes in is what a policy was trained on, and calls come out as calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradus.core import Action, Message, ToolCall, Usage
from gradus.core.calls import write_calls
from gradus.interop.serving.answers import ChatAnswer, answer_of, chat_events, chat_reply
from gradus.interop.serving.app import make_app
from gradus.interop.serving.requests import ApiError, ChatRequest
from gradus.interop.serving.text import begin_chat
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.renderers import answer_message
from gradus.policies.local.sampling import SamplingConfig

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = write_calls([ToolCall(name="look", arguments={"at": "figs"})])


def conversation_ids(loaded: LoadedModel, messages: Any, tools: Any) -> list[int]:
    """The prompt of a request with these messages and tools."""
    return list(begin_chat(loaded, *ChatRequest(messages=messages, tools=tools).read())[1].prompt)


def history(**changes: Any) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "figs"}'}}
    return [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seven figs", **changes},
    ]


def test_a_conversation_is_made_of_the_pieces_that_a_policy_reads(calling: LoadedModel) -> None:
    renderer = calling.renderer.for_tools(TOOLS)
    result = Message(role="tool", content="seven figs", call_id="call_1", name="look")
    expected = [
        *renderer.first("be brief", [Message(role="user", content="what is there?")]),
        *renderer.encode_answer(CALL),
        *renderer.following([result]),
    ]
    assert conversation_ids(calling, history(), TOOLS) == expected
    asked = {"model": "tiny", "messages": history(), "tools": TOOLS, "max_tokens": 4}
    app = make_app(calling, name="tiny", sampling=SamplingConfig(max_new_tokens=4))
    with TestClient(app, base_url="http://localhost") as client:
        body = client.post("/v1/chat/completions", json=asked).json()
    assert body["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize(
    ("messages", "tools", "said"),
    [
        (history(tool_call_id="other"), TOOLS, "no call has the id 'other'"),
        (history()[:3], TOOLS, "before the answer"),
        (history(), [{"type": "function"}], "Field required"),
    ],
)
def test_what_cannot_be_is_named(calling: LoadedModel, messages: Any, tools: Any, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        conversation_ids(calling, messages, tools)


class Said:
    """A choice whose answer is this text, read by the model's own renderer."""

    def __init__(self, loaded: LoadedModel, text: str) -> None:
        message = answer_message(loaded.renderer, TOOLS, text)
        self.whole = answer_of(Action(text=text, usage=Usage()), message, lambda place: f"c0000000{place}")

    async def parts(self) -> AsyncIterator[str | ChatAnswer]:
        yield self.whole

    def leave(self) -> None: ...


def joined(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The message that the deltas of a stream make together, and why it ended."""
    message: dict[str, Any] = {"role": chunks[0]["delta"]["role"], "content": ""}
    for delta in (each["delta"] for each in chunks):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                message.setdefault("tool_calls", []).append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message, chunks[-1]["finish_reason"]


def replied(loaded: LoadedModel, text: str, *, streamed: bool = False, **options: Any) -> tuple[dict[str, Any], str]:
    """The message that a client gets, and why it ended."""
    asked, said = ChatRequest(model="tiny", messages=history(), tools=TOOLS, **options), Said(loaded, text)

    async def collect() -> list[str]:
        return [each async for each in chat_events(0, asked, [said])]

    if streamed:
        *chunks, done = asyncio.run(collect())
        assert done == "data: [DONE]\n\n"
        return joined([json.loads(each.removeprefix("data: "))["choices"][0] for each in chunks])
    (choice,) = chat_reply(0, asked, [said.whole])["choices"]
    return choice["message"], choice["finish_reason"]


@pytest.mark.parametrize("streamed", [True, False])
def test_calls_come_out_as_calls_whole_and_streamed(calling: LoadedModel, streamed: bool) -> None:
    message, finish = replied(calling, "wait\n" + CALL, streamed=streamed)
    assert (finish, message["role"], message["content"]) == ("tool_calls", "assistant", "wait")
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": "figs"})
    for text in ("seven", '{"name": "look", "arguments"'):
        message, finish = replied(calling, text, streamed=streamed)
        assert (message["content"], "tool_calls" in message, finish) == (text, False, "stop")
