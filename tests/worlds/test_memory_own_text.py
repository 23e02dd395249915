"""One's own text, read by a policy into a memory on disk, and questions to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradus.core import ConfigError
from gradus.environments import load
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus_worlds.memory import DurableMemory, Memory, RemoteReader
from gradus_worlds.memory.commands import app
from gradus_worlds.memory.commands import ask_memory as ask
from gradus_worlds.memory.commands import learn_text as learn
from gradus_worlds.memory.learning import read_chunks
from gradus_worlds.memory.readers.asking import answer
from gradus_worlds.memory.readers.reading import READERS

TEXT = """Date: 3 May 2030
Lina: my city is Toda.
Remo: the weather was awful all week.
Lina: I work for Kibo.

Date: 9 June 2030
Remo: the dish I love most is sabo.
Lina: big news, my city has changed to Miro.
Remo: Lina's car is a Nuka, haha.
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def state(folder: Path) -> Any:
    with DurableMemory(folder, create=False) as memory:
        return memory.state()


def test_chunks_are_lines_that_belong_together(text: Path, tmp_path: Path) -> None:
    chunks = read_chunks(text)
    assert [(chunk.timestamp, chunk.text.count("\n") + 1) for chunk in chunks] == [
        ("3 May 2030", 3),
        ("9 June 2030", 3),
    ]
    assert [len(chunk.text.splitlines()) for chunk in read_chunks(text, 10)] == [1, 1, 1, 1, 1, 1]
    lines = tmp_path / "own.jsonl"
    lines.write_text('{"text": "a b", "timestamp": "1 May 2030"}\n{"text": "c"}\n')
    assert [(chunk.text, chunk.timestamp) for chunk in read_chunks(lines)] == [("a b", "1 May 2030"), ("c", None)]
    for broken in ('{"words": 1}', '{"text": ""}', '{"text": "a", "timestamp": 3}'):
        lines.write_text(broken + "\n")
        with pytest.raises(ConfigError, match="line 1"):
            read_chunks(lines)
    lines.write_text("\n")
    with pytest.raises(ConfigError, match="holds none"):
        read_chunks(lines)


def test_what_was_read_answers_questions(text: Path, tmp_path: Path) -> None:
    learned = learn("teacher", text, memory=tmp_path / "notes")
    assert (learned.read, learned.chunks, learned.refused, learned.problem) == (2, 2, 0, None)
    asked = ask("teacher", "What is Lina's city?", memory=tmp_path / "notes")
    assert asked.answer == "Lina city Miro , formerly Toda"
    assert [note.text for note in asked.notes] == ["Lina city Miro , formerly Toda", "Lina employer Kibo"]
    assert asked.notes[0].timestamp == "9 June 2030"
    assert ask("teacher", "What does Ann drive?", memory=tmp_path / "notes").answer == "unknown"


def test_what_was_read_is_not_read_again_and_a_longer_text_goes_on(text: Path, tmp_path: Path) -> None:
    whole = learn("append-only", text, memory=tmp_path / "whole")
    text.write_text(TEXT.split("\n\n")[0] + "\n", encoding="utf-8")
    assert learn("append-only", text, memory=tmp_path / "notes").chunks == 1
    text.write_text(TEXT, encoding="utf-8")
    rest = learn("append-only", text, memory=tmp_path / "notes")
    assert (rest.before, rest.read) == (1, 2)
    assert state(tmp_path / "notes") == state(tmp_path / "whole")
    again = learn("append-only", text, memory=tmp_path / "notes")
    assert (again.before, again.calls, again.entries) == (2, 0, whole.entries)


KILLED = """
import os, signal, sys
from gradus_worlds.memory.commands import learn_text as learn
learn("append-only", sys.argv[1], memory=sys.argv[2], tell=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_the_core_answers_if_no_entry_fits() -> None:
    memory = Memory()
    memory.set_core("Ann and Bob are friends")
    memory.insert("values", "Ann cause rivers")
    assert answer(memory, "Who is Ann?").answer == "Ann cause rivers"
    assert answer(memory, "Who is Bob?").answer == "Ann and Bob are friends"
    assert answer(memory, "Who is Eve?").notes == ()


def test_kill_9_loses_no_chunk_and_repeats_none(text: Path, tmp_path: Path) -> None:
    learn("append-only", text, memory=tmp_path / "whole")
    subprocess.run([sys.executable, "-c", KILLED, text, tmp_path / "notes"], check=False, timeout=120)
    rest = learn("append-only", text, memory=tmp_path / "notes")
    assert (rest.before, rest.read) == (1, 2)
    assert state(tmp_path / "notes") == state(tmp_path / "whole")


def test_a_nano_model_reads_into_its_own_folder(text: Path, tmp_path: Path) -> None:
    vocabulary = load("memory").language.vocabulary
    assert vocabulary is not None
    shape = NanoConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64, context=1024)
    folder = make_nano(tmp_path / "model", vocabulary(), shape, seed=1)
    learned = learn(str(folder), text)
    assert (learned.memory, learned.read) == (folder / "memory", 2)


def test_the_command_line_learns_and_answers(text: Path, tmp_path: Path) -> None:
    runner, notes = CliRunner(), str(tmp_path / "notes")
    said = runner.invoke(app, ["learn", "teacher", str(text), "--memory", notes])
    assert said.exit_code == 0, said.output
    assert "chunk 2 of 2: update Lina city Miro , formerly Toda" in said.output
    assert "2 of 2 chunks read (0 before)" in said.output
    answered = runner.invoke(app, ["ask", "teacher", "What is Remo's dish?", "--memory", notes])
    assert answered.stdout.splitlines()[0] == "Remo dish sabo"


def _reads(messages: Any) -> str:
    """A reader that knows where Oslo is."""
    memory, _, question = messages[-1]["content"].partition("Question: ")
    return "Norway" if "Oslo" in memory and "country" in question else "unknown"


def test_r1_can_be_paid_by_a_reader_that_understands(tmp_path: Path) -> None:
    world = {
        "chunks": [{"text": "Ann: I moved to Oslo."}],
        "questions": [{"question": "In which country does Ann live?", "answers": ["Norway"]}],
    }
    (tmp_path / "own.jsonl").write_text(json.dumps(world) + "\n")
    spec = _with_reader(f"jsonl:{tmp_path / 'own.jsonl'}")
    task = spec.tasks("main" if "main" in spec.conditions else next(iter(spec.conditions)))[0]
    (episode,) = roll_out(spec, spec.policy("dump"), [task]).episodes
    for name, expected in (("v2", 0.0), ("v2-remote", 1.0), ("mem-alpha-remote", 1.0)):
        (reward,) = spec.graders[name].rewards([episode])
        assert reward.components["answered"] == expected, name
        assert reward.value == pytest.approx(sum(reward.turn_rewards))


def _with_reader(world: str) -> Any:
    from gradus_worlds.memory import load as load_memory

    return load_memory(world, readers={**READERS, "remote": RemoteReader(chat=_reads)})
