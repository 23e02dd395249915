"""Clients that hold a connection and send nothing more."""

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from gradus.interop import servers
from gradus.interop.agents.calls import Endpoint


def test_a_client_that_does_not_end_its_request_is_let_go(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,100 of them kept `gradus serve` at 503."""

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

    monkeypatch.setattr(servers, "_COMING", 0.5)
    config = servers.server_config(app, ws="auto", lifespan="off")
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
    monkeypatch.setattr(servers, "_COMING", 0.5)
    host, port = urlsplit(Endpoint("127.0.0.1", ())._base).netloc.split(":")
    half = [socket.create_connection((host, int(port)), 20) for _ in range(64)]
    for each in half:
        each.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    assert {each.recv(100) for each in half} == {b""}
