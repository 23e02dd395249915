"""What a hostile client, page or prompt can do to `gradus serve`: get an error, and nothing else."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tiny_qwen2 import make_tiny_qwen2

from gradus.core import ConfigError
from gradus.interop import servers
from gradus.interop.servers import Guard, hosts_for, listen
from gradus.interop.serving.app import Access, make_app
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig

TOKEN = "a-token-of-the-test"
RELOAD = {"method": "reload_weights"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_tiny_qwen2(tmp_path_factory.mktemp("models") / "tiny", context=4096))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder)


@pytest.fixture(scope="module")
def url(loaded: LoadedModel, serve: Callable[..., Any]) -> Iterator[str]:
    app = make_app(loaded, name="tiny", sampling=SamplingConfig(max_new_tokens=4), rows=4)
    with serve(uvicorn.Config(app, log_level="warning")) as address:
        yield f"http://{address}"


@pytest.fixture(scope="module")
def guarded(loaded: LoadedModel, folder: Path, serve: Callable[..., Any]) -> Iterator[str]:
    app = make_app(loaded, name="tiny", rows=4, access=Access(token=TOKEN, weights=folder))
    with serve(uvicorn.Config(app, log_level="warning")) as address:
        yield f"http://{address}"


def ask(url: str, **changes: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, **changes}
    return httpx.post(f"{url}/v1/completions", content=json.dumps(body), timeout=60)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_split_into_tokens(
    url: str, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 3 MB held up all others for 8.6 seconds."""
    monkeypatch.setattr(type(loaded.tokenizer), "encode", pytest.fail)
    monkeypatch.setattr(type(loaded.tokenizer), "__call__", pytest.fail)
    long = "word " * 600_000
    said = [{"role": "user", "content": long}]
    chat = {"model": "tiny", "messages": said, "max_tokens": 2}
    tools = [{"type": "function", "function": {"name": "f", "description": long}}]
    told = {**chat, "messages": [{"role": "user", "content": "a"}], "tools": tools}
    chats = (httpx.post(f"{url}/v1/chat/completions", json=each, timeout=60) for each in (chat, told))
    for answer in (ask(url, prompt=long), *chats):
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "characters; a context of 4096 tokens takes at most 32768" in answer.json()["error"]["message"]


def test_weights_are_loaded_only_if_asked_for_with_the_token_and_from_below_the_folder(
    url: str, guarded: str, folder: Path, tmp_path: Path
) -> None:
    assert httpx.post(f"{url}/collective_rpc", json=RELOAD).status_code == 404
    key = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.post(f"{guarded}/collective_rpc", json=RELOAD).status_code == 401
    assert (
        httpx.post(f"{guarded}/collective_rpc", json=RELOAD, headers={"Authorization": "Bearer x"}).status_code == 401
    )
    assert httpx.post(f"{guarded}/collective_rpc", json=RELOAD, headers=key, timeout=60).status_code == 200
    (folder / "out").symlink_to(tmp_path)
    for outside in (tmp_path, folder.parent, folder / "..", folder / "out", "/etc"):
        body = {**RELOAD, "kwargs": {"weights_path": str(outside)}}
        assert httpx.post(f"{guarded}/collective_rpc", json=body, headers=key).status_code == 403
    with pytest.raises(ConfigError, match="need a token"):
        Access(weights=folder)


def test_a_page_that_points_its_own_name_here_is_refused(url: str) -> None:
    assert httpx.get(f"{url}/v1/models", headers={"Host": "evil.example:8000"}).status_code == 403
    assert httpx.get(f"{url}/v1/models", headers={"Origin": "https://evil.example"}).status_code == 403
    assert httpx.get(f"{url}/v1/models", headers={"Host": "", "Origin": "null"}).status_code in (400, 403)
    port = url.rpartition(":")[2]
    assert httpx.get(f"{url}/v1/models", headers={"Host": f"localhost:{port}"}).status_code == 200
    assert httpx.get(f"{url}/v1/models", headers={"Origin": f"http://localhost:{port}"}).status_code == 200


def test_a_small_request_cannot_ask_for_a_hundred_thousand_answers(url: str) -> None:
    assert ask(url, prompt=["a"] * 1000).status_code == 400
    assert ask(url, n=128).status_code == 400
    assert ask(url, max_tokens=10**9).status_code == 400
    assert ask(url, stop=["x"] * 1000).status_code == 400
    assert ask(url, seed=10**40).status_code == 400


def test_an_overlong_body_is_refused_before_it_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999999\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 413")

    def chunks() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 2**20

    with suppress(httpx.WriteError, httpx.ReadError):  # the server closes in the middle
        assert httpx.post(f"{url}/v1/completions", content=chunks(), timeout=60).status_code == 413
    assert ask(url).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 100_000,
        b'{"prompt": "a", "temperature": NaN}',
        b"\xff\xfe",
        b'{"prompt": "a \\ud83d b"}',
        b'{"prompt": "a", "n": 0}',
        b'{"prompt": "a", "n": true}',
        b'{"prompt": "a", "n": []}',
    ],
)
def test_hostile_json_is_a_bad_request(url: str, body: bytes) -> None:
    assert httpx.post(f"{url}/v1/completions", content=body, timeout=60).status_code == 400


@pytest.mark.parametrize("text", ["a \ud83d b", "\udc00"])
def test_half_of_a_character_is_a_bad_request_of_a_chat(url: str, text: str) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": text}]})
    for path, body in (("chat/completions", chat), ("responses", json.dumps({"input": text}))):
        answer = httpx.post(f"{url}/v1/{path}", content=body, timeout=60)
        assert (answer.status_code, "half of a character" in answer.text) == (400, True)


def test_a_response_is_one_answer(url: str) -> None:
    answer = httpx.post(f"{url}/v1/responses", json={"input": "a", "n": 2}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def test_an_error_does_not_send_back_all_that_came(url: str) -> None:
    for changes in ({"model": "x" * 10**5}, {"x" * 10**5: 1}):
        assert len(ask(url, **changes).text) < 5000


def test_bodies_have_four_mebibytes_at_most(url: str) -> None:
    assert ask(url, prompt="a", user="x" * (5 * 2**20)).status_code == 413


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "LOCALHOST"])
def test_a_server_of_this_machine_answers_at_its_own_address_and_at_no_other_name(host: str) -> None:
    """The spelling of the host decided: 127.0.0.2 was refused everything, LOCALHOST was open to every page's name."""
    with listen(host, 0) as listener:
        hosts = hosts_for(host, listener.getsockname()[0])
    assert hosts_for("0.0.0.0", "0.0.0.0") is None  # a server of all addresses answers at any name
    client = TestClient(Guard(PlainTextResponse("ok"), hosts=hosts))
    assert client.get("/", headers={"Host": f"{host}:8000"}).status_code == 200
    assert client.get("/", headers={"Host": "localhost:8000"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example.org"}).status_code == 403


def test_bodies_under_way_are_bounded_together_and_a_client_that_does_not_read_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred clients that did not read cost 3 GB."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10**4):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})

    statuses: list[int] = []

    async def unread(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        else:
            await asyncio.sleep(600)

    async def scenario() -> float:
        guard = Guard(app, hosts=None, largest_body=100)

        async def body() -> Any:
            return {"type": "http.request", "body": b"x" * 100}

        scope = {"type": "http", "headers": []}
        requests = [asyncio.create_task(guard(scope, body, unread)) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert guard.load.size <= 20 * 100
        results = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 5)
        assert all(isinstance(each, TimeoutError) for each in results)
        return guard.load.size

    monkeypatch.setattr(servers, "_READING", 0.3)
    assert asyncio.run(scenario()) == 0
    assert sorted(statuses) == [200] * 16 + [503] * 4
