"""A chat model as the reader, against a real HTTP server that speaks the OpenAI protocol, well and badly."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import completion, serving

from gradus.core import EnvironmentFault, PolicyError
from gradus_worlds.memory.learning import ask_memory, learn_text
from gradus_worlds.memory.tools.writing import NOOP, write_insert

QUESTION = re.compile(r"What is (\w+)'s (\w+) now\?")


def answer(body: dict[str, Any]) -> str:
    notes, _, question = body["messages"][-1]["content"].partition("\n\nQuestion: ")
    asked = QUESTION.search(question)
    noted = re.search(rf"{asked[1]} {asked[2]} (\w+)", notes) if asked else None
    return f" {noted[1]}\n" if noted else "unknown"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Reads the memory it is sent like a model would, unless ``faults`` has something else: status and body, first come first."""
    faults: list[tuple[int, str]] = []

    def reply(body: dict[str, Any]) -> tuple[int, str]:
        return faults.pop(0) if faults else (200, completion(answer(body)))

    with serving(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        yield SimpleNamespace(requests=server.bodies, faults=faults)


def test_a_chat_model_learns_a_text_and_goes_on_after_a_fault(server: Any, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Ann: I care about rivers.\n\nAnn: it rains.\n", encoding="utf-8")
    kept = write_insert("values", "Ann cause rivers")
    server.faults[:] = [(200, completion("ok")), (200, completion(kept)), (401, '{"error": {"message": "no money"}}')]
    with pytest.raises(EnvironmentFault, match="no money"):
        learn_text("remote:m", text, memory=tmp_path / "notes")
    server.faults[:] = [(200, completion("ok")), (200, completion(NOOP))]
    whole = learn_text("remote:m", text, memory=tmp_path / "notes")
    assert (whole.before, whole.read, whole.entries) == (1, 2, 1)
    assert "Ann: it rains." in server.requests[-1]["messages"][-1]["content"]
    assert "Ann cause rivers" in server.requests[-1]["messages"][-1]["content"]
    assert ask_memory("remote:m", "What is Ann's cause now?", memory=tmp_path / "notes").answer == "rivers"
    assert server.requests[-1]["temperature"] == 0
    server.faults[:] = [(401, '{"error": {"message": "no money"}}')]
    with pytest.raises(PolicyError, match="no money"):
        ask_memory("append-only", "What is Ann's dish now?", memory=tmp_path / "notes", reader="remote:m")
    # What was asked before is not asked again, if the reader has a file for its answers.
    kept = tmp_path / "reader.toml"
    kept.write_text(f'model = "remote:m"\ncache = "{tmp_path / "answers.jsonl"}"\n', encoding="utf-8")
    answers: list[str] = []
    requests: list[int] = []
    for _ in range(2):
        asked = ask_memory("append-only", "What is Ann's cause now?", memory=tmp_path / "notes", reader=str(kept))
        answers.append(asked.answer)
        requests.append(len(server.requests))
    assert answers == ["rivers", "rivers"]
    assert requests[0] == requests[1]
