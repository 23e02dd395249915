"""The server against the official openai client, over a real socket."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import torch
import uvicorn

from gradus.interop.serving.app import make_app
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.interop.serving.requests import ChatRequest
from gradus.interop.serving.text import begin_chat, chat_loop
from gradus.policies.local.decoding import Decoder
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig, sampling_logprobs

HELLO = [{"role": "user", "content": "What is 7 + 8?"}]


@pytest.fixture(scope="module")
def app(loaded: LoadedModel):
    return make_app(loaded, name="tiny", sampling=SamplingConfig(max_new_tokens=24), rows=32)


@pytest.fixture(scope="module")
def url(app, serve) -> Iterator[str]:
    with serve(uvicorn.Config(app, log_level="critical", ws="none")) as address:
        yield f"http://{address}"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_chat_answer_and_the_same_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HELLO, seed=5, max_tokens=20)
    assert whole.usage.completion_tokens <= 20
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HELLO, seed=5, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 3


def test_completions_take_text_and_token_ids_alike(client: openai.OpenAI, loaded: LoadedModel) -> None:
    ids = loaded.tokenizer.encode("7 + 8 =")
    by_text = client.completions.create(model="tiny", prompt="7 + 8 =", seed=1, max_tokens=8)
    by_ids = client.completions.create(model="tiny", prompt=ids, seed=1, max_tokens=8)
    assert by_text.choices[0].text == by_ids.choices[0].text


def test_token_ids_and_logprobs_are_those_of_the_model(client: openai.OpenAI, loaded: LoadedModel) -> None:
    zero = client.completions.create(model="tiny", prompt="7", temperature=0, max_tokens=2, logprobs=0)
    assert set(zero.choices[0].logprobs.token_logprobs) == {0.0}  # type: ignore[union-attr,arg-type]
    prompt = list(loaded.renderer.first("", HELLO[0]["content"]))
    asked = {"model": "tiny", "prompt": prompt, "temperature": 0.7, "max_tokens": 12, "seed": 1, "logprobs": 0}
    reply = client.completions.create(**asked, extra_body={"return_token_ids": True})
    action = reply.choices[0].token_ids  # type: ignore[attr-defined]
    assert reply.choices[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([[*prompt, *action]])).logits[0, len(prompt) - 1 : -1]
    expected = sampling_logprobs(logits, SamplingConfig(temperature=0.7))
    got = torch.tensor(reply.choices[0].logprobs.token_logprobs)  # type: ignore[union-attr]
    assert torch.allclose(got, expected.gather(-1, torch.tensor(action)[:, None]).squeeze(-1), atol=1e-4)


def test_n_answers_differ_and_come_with_one_prompt(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "seed": 5, "max_tokens": 8}
    three = client.chat.completions.create(**asked, n=3)
    one = client.chat.completions.create(**asked)
    assert [each.index for each in three.choices] == [0, 1, 2]
    assert len({each.message.content for each in three.choices}) == 3
    assert three.choices[0].message == one.choices[0].message
    assert three.usage.prompt_tokens == one.usage.prompt_tokens  # type: ignore[union-attr]
    chunks = list(client.chat.completions.create(**asked, n=3, stream=True))
    texts = [
        "".join(each.choices[0].delta.content or "" for each in chunks if each.choices[0].index == n) for n in range(3)
    ]
    assert texts == [each.message.content for each in three.choices]


def test_the_responses_api_is_served_as_agents_have_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 0, "model": "tiny"}
    said = client.responses.create(**asked, input="What is 7 + 8?", max_output_tokens=8)
    same = client.chat.completions.create(**asked, messages=HELLO, max_tokens=8)
    assert said.output_text == same.choices[0].message.content


def test_thirty_two_at_once_are_answered_together_and_as_if_alone(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(number: int) -> str | None:
        messages = [{"role": "user", "content": f"What is {number} + {number * 7}?"}]
        reply = client.chat.completions.create(model="tiny", messages=messages, seed=number, max_tokens=24)
        return reply.choices[0].message.content

    alone = [ask(number) for number in range(32)]
    sizes: list[int] = []
    answer = Decoder.answer
    monkeypatch.setattr(Decoder, "answer", lambda self, asked: sizes.append(len(asked)) or answer(self, asked))
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert together == alone
    assert max(sizes) > 1


@pytest.mark.parametrize(
    ("extra", "param", "code"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
        ({"n": 65}, "n", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"max_tokens": 5000}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, "messages", "context_length_exceeded"),
    ],
)
def test_what_is_not_supported_is_named(client: openai.OpenAI, extra: dict, param: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **extra})
    assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")


def test_unknown_models_and_paths(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'") as refused:
        client.chat.completions.create(model="gpt", messages=HELLO)
    assert refused.value.code == "model_not_found"
    reply = httpx.post(f"{url}/v1/embeddings", json={})
    assert reply.status_code == 404


def test_a_vanished_client_stops_its_rows_and_nothing_else(url: str, app) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4000, "stream": True, "temperature": 0}
    path, batch = f"{url}/v1/chat/completions", app.state.batch
    short = httpx.post(path, json={**body, "stream": False, "max_tokens": 100}).json()
    assert {choice["finish_reason"] for choice in short["choices"]} == {"length"}  # this prompt would go on and on

    async def leave() -> None:
        async with httpx.AsyncClient(timeout=20) as client, client.stream("POST", path, json=body) as answer:
            async for _ in answer.aiter_lines():
                break  # the first token has come: leave

    asyncio.run(leave())
    deadline = time.monotonic() + 5
    while batch._active and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not batch._active  # long before they would have been finished
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_a_fault_of_the_model_costs_the_requests_under_way(loaded: LoadedModel) -> None:
    batch = ContinuousBatch(loaded, rows=4)
    batch.start()
    told: list[Sampled | Exception] = []
    ended = threading.Event()

    def tell(token: Sampled | Exception) -> None:
        told.append(token)
        if isinstance(token, Exception) or token.finish:
            ended.set()

    try:
        asked: dict[str, Any] = {"sampling": SamplingConfig(), "budget": 4, "seed": 0, "tell": tell}
        batch.submit(Generation(prompt=[10**9], **asked))  # no such token
        assert ended.wait(10)
        assert isinstance(told[-1], IndexError)
        ended.clear()
        batch.submit(Generation(prompt=[5], **asked))
        assert ended.wait(10)
        assert isinstance(told[-1], Sampled)
    finally:
        batch.close()


def test_conversations_extend_what_was_sampled(client: openai.OpenAI, loaded: LoadedModel) -> None:
    turns = [*HELLO, {"role": "assistant", "content": "15"}, {"role": "user", "content": "And 8 + 8?"}]
    rendered = loaded.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    _, turn = begin_chat(loaded, *ChatRequest(messages=turns).read())
    assert list(turn.prompt) == rendered
    odd = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert client.chat.completions.create(model="tiny", messages=odd, max_tokens=1).choices


def test_a_chat_in_the_terminal_remembers(loaded: LoadedModel) -> None:
    said = iter(["What is 7 + 8?", "And 8 + 8?", "/new", "Again?", None])
    shown: list[str] = []
    messages = chat_loop(
        loaded, ask=lambda: next(said), show=shown.append, system_prompt="s", sampling=SamplingConfig(max_new_tokens=6)
    )
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert "".join(shown).count("\n") >= 3
    assert messages[-1]["content"] in "".join(shown)


def test_scores_of_given_tokens_are_the_models_own(client: openai.OpenAI, loaded: LoadedModel) -> None:
    """What an evaluation by log-likelihood asks: the prompt comes back with its log-probs, and whether it was the likeliest."""
    prompts = [[5, 9, 7, 40], [8, 6, 30]]
    reply = client.completions.create(model="tiny", prompt=prompts, echo=True, logprobs=1, max_tokens=0, temperature=0)
    texts = client.completions.create(model="tiny", prompt=["ab", "c"], echo=True, max_tokens=2)
    assert [each.text[:1] for each in texts.choices] == ["a", "c"]
    for prompt, choice in zip(prompts, reply.choices, strict=True):
        with torch.no_grad():
            logits = loaded.model(input_ids=torch.tensor([prompt])).logits[0, :-1]
        expected = logits.log_softmax(-1)
        own = expected.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert choice.logprobs.token_logprobs[0] is None  # pyright: ignore[reportUnnecessaryComparison]
        assert torch.allclose(torch.tensor(choice.logprobs.token_logprobs[1:]), own, atol=1e-5)
        best = [max(each.values()) for each in choice.logprobs.top_logprobs[1:]]
        assert torch.allclose(torch.tensor(best), expected.max(-1).values, atol=1e-5)
        assert loaded.tokenizer.decode(prompt) == choice.text
    with pytest.raises(openai.BadRequestError, match="at most 64 prompts"):
        client.completions.create(model="tiny", prompt=["a"] * 65)
