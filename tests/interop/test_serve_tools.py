"""Tools over the OpenAI protocol: what goes in is what a policy was trained on, and calls come out as calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import Message, ToolCall
from gradus.core.calls import write_calls
from gradus.interop.serving.answers import Piece, Reply, chat_choice, chunk_choice
from gradus.interop.serving.app import make_app
from gradus.interop.serving.conversation import conversation_ids, tool_renderer
from gradus.interop.serving.generation import Generation
from gradus.interop.serving.openai_schema import ApiError, ChatRequest
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = write_calls([ToolCall(name="look", arguments={"at": "figs"})])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(make_tiny_qwen2(tmp_path_factory.mktemp("models") / "tiny", context=4096), tool_calls="json")


def history(**changes: Any) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "figs"}'}}
    return [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seven figs", **changes},
    ]


def test_a_conversation_is_made_of_the_pieces_that_a_policy_reads(loaded: LoadedModel) -> None:
    renderer = loaded.renderer.for_tools(TOOLS)
    result = Message(role="tool", content="seven figs", call_id="call_1", name="look")
    expected = [
        *renderer.first("be brief", [Message(role="user", content="what is there?")]),
        *renderer.encode_answer(CALL),
        *renderer.following([result]),
    ]
    assert conversation_ids(loaded, history(), TOOLS) == expected
    asked = {"model": "tiny", "messages": history(), "tools": TOOLS, "max_tokens": 4}
    with TestClient(
        make_app(loaded, name="tiny", sampling=SamplingConfig(max_new_tokens=4)), base_url="http://localhost"
    ) as client:
        body = client.post("/v1/chat/completions", json=asked).json()
    assert body["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize(
    ("messages", "tools", "said"),
    [
        (history(), [], "tools is empty"),
        (history(tool_call_id="other"), TOOLS, "no call has the id 'other'"),
        (history()[:3], TOOLS, "the last message"),
        (history(), [{"type": "function"}], "expected"),
        (history(), [{"type": "function", "function": {"name": 5}}], "expected"),
    ],
)
def test_what_cannot_be_is_named(loaded: LoadedModel, messages: Any, tools: Any, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        conversation_ids(loaded, messages, tools)


def test_calls_come_out_as_calls_whole_and_streamed(loaded: LoadedModel) -> None:
    asked = ChatRequest(model="tiny", messages=history(), tools=TOOLS)
    generation = Generation(prompt=[1], sampling=SamplingConfig(max_new_tokens=4), seed=3, tell=lambda _: None)

    def reply(text: str) -> Reply:
        made = Reply(
            generation=generation,
            arrived=asyncio.Queue(),
            tokenizer=loaded.tokenizer,
            read=tool_renderer(loaded, TOOLS).read,
        )
        made.text, made.finish_reason = text, "stop"
        return made

    choice = chat_choice(asked, reply("wait\n" + CALL))
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "wait")
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": "figs"})
    for text in ("seven", '{"name": "look", "arguments"'):
        choice = chat_choice(asked, reply(text))
        assert choice["message"] == {"role": "assistant", "refusal": None, "content": text}
        assert choice["finish_reason"] == "stop"
    half = chunk_choice(asked, reply(CALL), Piece(text="{", tokens=[]), first=True)
    last = chunk_choice(asked, reply(CALL), Piece(text="}", tokens=[], finish="stop"), first=False)
    assert (half["delta"]["content"], half["finish_reason"]) == ("", None)
    assert (last["delta"]["tool_calls"][0]["id"], last["finish_reason"]) == (call["id"], "tool_calls")


@pytest.mark.parametrize("streamed", [True, False])
def test_parallel_tool_calls_false_leaves_the_first_call_alone(streamed: bool, loaded: LoadedModel) -> None:
    """It was accepted and had no effect."""
    two = write_calls([ToolCall(name="look", arguments={"at": at}) for at in ("figs", "dates")])
    generation = Generation(prompt=[1], sampling=SamplingConfig(max_new_tokens=4), seed=3, tell=lambda _: None)

    def calls(parallel: bool | None) -> list[Any]:
        asked = ChatRequest(model="tiny", messages=history(), tools=TOOLS, parallel_tool_calls=parallel)
        read = tool_renderer(loaded, TOOLS).read
        reply = Reply(generation=generation, arrived=asyncio.Queue(), tokenizer=loaded.tokenizer, read=read)
        reply.text, reply.finish_reason = two, "stop"
        if streamed:
            last = Piece(text="}", tokens=[], finish="stop")
            return chunk_choice(asked, reply, last, first=False)["delta"]["tool_calls"]
        return chat_choice(asked, reply)["message"]["tool_calls"]

    assert [json.loads(each["function"]["arguments"])["at"] for each in calls(parallel=None)] == ["figs", "dates"]
    assert [json.loads(each["function"]["arguments"])["at"] for each in calls(parallel=False)] == ["figs"]
