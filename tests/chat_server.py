"""A real HTTP server that speaks the OpenAI protocol, and answers by a function of the test."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ChatServer", "completion", "serving"]


def completion(text: str | None, *, reason: str = "stop", tokens: tuple[int, int] | None = None) -> str:
    """A chat completion that says ``text``; ``tokens``: of the prompt and of the answer, if the server counts them."""
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}
    body: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    if tokens:
        body["usage"] = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return json.dumps(body)


class ChatServer(ThreadingHTTPServer):
    """Keeps the bodies that it was asked with, and answers each by a status and a body."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        status, text = self.server.answer(body)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the test's output quiet."""


@contextmanager
def serving(answer: Callable[[dict[str, Any]], tuple[int, str]]) -> Iterator[ChatServer]:
    """The server while it runs."""
    with ChatServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
