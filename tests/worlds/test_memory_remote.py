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

from gradus.core import EnvironmentFault, StopReason
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus_worlds.memory import Memory, RemoteReader
from gradus_worlds.memory.commands import ask_memory as ask
from gradus_worlds.memory.commands import learn_text as learn
from gradus_worlds.memory.readers.remote import remote_chat
from gradus_worlds.memory.tools.writing import NOOP, write_insert
from gradus_worlds.memory.worlds.records import Question

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


def reader(**settings: Any) -> RemoteReader:
    return RemoteReader(chat=remote_chat("m", timeout=5.0, **settings))


def memory() -> Memory:
    filled = Memory()
    filled.insert("values", "Ann cause rivers")
    return filled


ASKED = Question(text="What is Ann's cause now?", answers=("rivers",))


def test_the_environment_asks_the_model_at_temperature_zero(server: Server) -> None:
    spec = load("memory:reader=remote:org/m:3b,synthetic:chunks=4,questions=6")
    task = spec.tasks("in-distribution")[0]
    taught, silent = (roll_out(spec, spec.policy(name), [task]).episodes[0] for name in ("teacher", "noop"))
    assert taught.metrics["remote_accuracy"] > silent.metrics["remote_accuracy"]
    assert {body["model"] for body in server.requests} == {"org/m:3b"}
    assert {body["temperature"] for body in server.requests} == {0}
    assert spec.presentation.view is not None
    assert spec.presentation.view(taught).panels[-1].columns[3:6] == ("strict", "generous", "remote")
    plain = load("memory:synthetic:chunks=4,questions=6")
    (same,) = roll_out(plain, plain.policy("teacher"), [task]).episodes
    assert taught.metrics["strict_accuracy"] == same.metrics["strict_accuracy"]


def test_what_was_asked_is_not_asked_again(server: Server) -> None:
    read = reader()
    assert read(memory(), ASKED).correct
    assert read(memory(), ASKED).correct
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, '{"error": {"message": "wrong key"}}', "wrong key"),
        (500, "oops", "no answer"),
        (200, '{"id": "c"}', "expected a chat completion"),
        (200, completion("x").replace('"x"', "null"), "expected a chat completion"),
        (200, "<html>", "from the reader 'm'|no answer"),
    ],
)
def test_a_broken_server_is_told_and_not_counted_as_a_wrong_answer(
    server: Server, status: int, body: str, said: str
) -> None:
    server.faults = [(status, body)] * 3
    with pytest.raises(EnvironmentFault, match=said):
        reader(retries=0)(memory(), ASKED)


def test_an_episode_whose_reader_fails_has_no_grade(server: Server) -> None:
    server.faults = [(401, "{}")] * 50
    spec = load("memory:reader=remote:m,synthetic:chunks=2")
    grader = spec.grader("v2")
    (episode,) = roll_out(spec, spec.policy("noop"), [spec.train_task(0)], grader=grader).episodes
    assert episode.stop is StopReason.FAILED
    assert episode.failure is not None
    assert episode.reward is None or episode.reward.value is None


def test_a_chat_model_learns_a_text_and_goes_on_after_a_fault(server: Server, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Ann: I care about rivers.\n\nAnn: it rains.\n", encoding="utf-8")
    kept = write_insert("values", "Ann cause rivers")
    server.faults = [(200, completion("ok")), (200, completion(kept)), (401, '{"error": {"message": "no money"}}')]
    broken = learn("remote:m", text, memory=tmp_path / "notes")
    assert (broken.read, broken.entries) == (1, 1)
    assert "no money" in (broken.problem or "")
    server.faults = [(200, completion("ok")), (200, completion(NOOP))]
    whole = learn("remote:m", text, memory=tmp_path / "notes")
    assert (whole.before, whole.read, whole.entries, whole.problem) == (1, 2, 1, None)
    assert "Ann: it rains." in server.requests[-1]["messages"][-1]["content"]
    assert "Ann cause rivers" in server.requests[-1]["messages"][-1]["content"]
    assert ask("remote:m", "What is Ann's cause now?", memory=tmp_path / "notes").answer == "rivers"
