"""A chat model as the reader, against a real HTTP server that speaks the OpenAI protocol, well and badly."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gradus.core import EnvironmentFault, PolicyError
from gradus_worlds.memory import DurableMemory
from gradus_worlds.memory.learning import ask_memory, learn_text
from gradus_worlds.memory.tools.writing import NOOP, write_insert

QUESTION = re.compile(r"What is (\w+)'s (\w+) now\?")


class Server(ThreadingHTTPServer):
    """Reads the memory it is sent like a model would, unless ``faults`` has something else: status and body, first come first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.faults: list[tuple[int, str]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        status, text = self.server.faults.pop(0) if self.server.faults else (200, completion(answer(body)))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output quiet."""


def answer(body: dict[str, Any]) -> str:
    notes, _, question = body["messages"][-1]["content"].partition("\n\nQuestion: ")
    asked = QUESTION.search(question)
    noted = re.search(rf"{asked[1]} {asked[2]} (\w+)", notes) if asked else None
    return f" {noted[1]}\n" if noted else "unknown"


def completion(text: str) -> str:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{started.server_port}/v1")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        yield started
        started.shutdown()
        thread.join()


def test_a_reader_that_fails_is_told_and_answers_nothing(server: Server, tmp_path: Path) -> None:
    with DurableMemory(tmp_path / "notes") as memory:
        memory.insert("values", "Ann cause rivers")
    server.faults = [(200, completion("ok")), (401, '{"error": {"message": "no money"}}')]
    with pytest.raises(PolicyError, match="no money"):
        ask_memory("teacher", "What is Ann's cause now?", memory=tmp_path / "notes", reader="remote:m")


def test_a_chat_model_learns_a_text_and_goes_on_after_a_fault(server: Server, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Ann: I care about rivers.\n\nAnn: it rains.\n", encoding="utf-8")
    kept = write_insert("values", "Ann cause rivers")
    server.faults = [(200, completion("ok")), (200, completion(kept)), (401, '{"error": {"message": "no money"}}')]
    with pytest.raises(EnvironmentFault, match="no money"):
        learn_text("remote:m", text, memory=tmp_path / "notes")
    server.faults = [(200, completion("ok")), (200, completion(NOOP))]
    whole = learn_text("remote:m", text, memory=tmp_path / "notes")
    assert (whole.before, whole.read, whole.entries) == (1, 2, 1)
    assert "Ann: it rains." in server.requests[-1]["messages"][-1]["content"]
    assert "Ann cause rivers" in server.requests[-1]["messages"][-1]["content"]
    assert ask_memory("remote:m", "What is Ann's cause now?", memory=tmp_path / "notes").answer == "rivers"
    assert server.requests[-1]["temperature"] == 0
