"""What all servers have in common."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from gradus.core import ConfigError
from gradus.interop.agents.calls import Endpoint
from gradus.interop.serving import listening
from gradus.interop.serving.listening import listen, serve_until_stopped


def test_a_server_collects_the_cycles_that_requests_leave() -> None:
    """The command line looks for cycles at every 100,000th object."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        before = gc.get_stats()[1]["collections"]
        for _ in range(200_000):
            cycle: list[Any] = []
            cycle.append(cycle)
        seen.append(gc.get_stats()[1]["collections"] - before)
        await send({"type": "lifespan.startup.failed"})

    config = listening.server_config(app)
    config.log_level = "critical"
    thresholds, handler = gc.get_threshold(), signal.getsignal(signal.SIGTERM)
    gc.set_threshold(100_000, 50, 50)
    try:
        with listen("127.0.0.1", 0) as listener, pytest.raises(SystemExit):
            serve_until_stopped(config, listener)
    finally:
        gc.set_threshold(*thresholds)
        signal.signal(signal.SIGTERM, handler)
    assert seen[0] >= 1


def test_a_client_that_does_not_end_its_request_is_let_go(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,100 of them kept `gradus serve` at 503. Agents' endpoint had no limit at all."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(listening, "COMING", 0.5)
    config = listening.server_config(app, lifespan="off")
    with serve(config) as address, connect(f"ws://{address}", proxy=None) as websocket:
        host, _, port = address.partition(":")
        half, kept, slow = (socket.create_connection((host, int(port)), 20) for _ in range(3))
        half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(100).startswith(b"HTTP/1.1 204")
        kept.sendall(b"GET /")
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
        assert (half.recv(100), kept.recv(100), slow.recv(100)) == (b"", b"", b"")
        websocket.ping().wait(10)


def test_the_endpoint_of_agents_lets_such_clients_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "COMING", 0.5)
    host, port = urlsplit(Endpoint()._base).netloc.split(":")
    half = [socket.create_connection((host, int(port)), 20) for _ in range(64)]
    for each in half:
        each.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    assert {each.recv(100) for each in half} == {b""}


@pytest.mark.parametrize(("host", "port"), [("a..b", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_is_refused_in_a_sentence(host, port):
    with pytest.raises(ConfigError, match=rf"cannot listen at {host}:{port} \(.+\); choose another"):
        listen(host, port)


ENDING = """
import asyncio, os, signal, socket, sys, threading, time
import anyio.to_thread, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
from gradus.interop.serving import listening

async def stream(request):
    async def pieces():
        yield "begun"
        await (anyio.to_thread.run_sync(time.sleep, 60) if how == "thread" else asyncio.sleep(60))
    return StreamingResponse(pieces())

def ask():
    client = socket.create_connection(listener.getsockname())
    client.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    while b"begun" not in client.recv(1000):
        pass
    for sign in map(int, signs):
        os.kill(os.getpid(), sign)
        time.sleep(0.2)
    time.sleep(60)

how, *signs = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
listening.GRACE = listening.LAST = 0.5
try:
    with listening.listen("127.0.0.1", 0) as listener:
        threading.Thread(target=ask, daemon=True).start()
        listening.serve_until_stopped(uvicorn.Config(Starlette(routes=[Route("/", stream)]), log_level="warning"), listener)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("how", "signs", "code"),
    [("loop", [signal.SIGTERM], 0), ("thread", [signal.SIGTERM], 0), ("loop", [signal.SIGINT, signal.SIGINT], 130)],
    ids=["SIGTERM", "SIGTERM in a call that cannot be cancelled", "Ctrl-C twice"],
)
def test_a_server_ends_cleanly_if_an_answer_takes_longer_than_it_may(
    how: str, signs: list[signal.Signals], code: int
) -> None:
    words = [sys.executable, "-c", ENDING, how, *(str(int(sign)) for sign in signs)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=40)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Cancelled" not in ended.stderr
