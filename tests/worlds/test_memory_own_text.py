"""One's own text, read by a policy into a memory on disk, and questions to it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import gradus

from gradus.core import ConfigError, StorageError
from gradus.environments import load
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus_worlds.memory import Memory
from gradus_worlds.memory.learning import ask_memory as ask
from gradus_worlds.memory.learning import learn_text as learn
from gradus_worlds.memory.learning import load_memory, read_chunks
from gradus_worlds.memory.readers.frozen import best_entries

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
    return load_memory(folder)[0].state()


def test_chunks_are_lines_that_belong_together(text: Path) -> None:
    chunks = read_chunks(text)
    assert [(chunk.timestamp, chunk.text.count("\n") + 1) for chunk in chunks] == [
        ("3 May 2030", 3),
        ("9 June 2030", 3),
    ]
    text.write_text("word " * 100)
    assert [len(chunk.text.split()) for chunk in read_chunks(text)] == [80, 20]
    text.write_text("\n")
    with pytest.raises(ConfigError, match="holds none"):
        read_chunks(text)


def test_what_was_read_answers_questions(text: Path, tmp_path: Path) -> None:
    learned = learn("teacher", text, memory=tmp_path / "notes")
    assert (learned.read, learned.refused) == (2, 0)
    asked = ask("teacher", "What is Lina's city?", memory=tmp_path / "notes")
    assert asked.answer == "Lina city Miro , formerly Toda"
    assert [note.text for note in asked.notes] == ["Lina city Miro , formerly Toda", "Lina employer Kibo"]
    assert asked.notes[0].timestamp == "9 June 2030"
    assert ask("teacher", "What does Ann drive?", memory=tmp_path / "notes").answer == "unknown"


def test_what_was_read_is_not_read_again_and_a_longer_text_goes_on(text: Path, tmp_path: Path) -> None:
    whole = learn("append-only", text, memory=tmp_path / "whole")
    text.write_text(TEXT.split("\n\n")[0] + "\n", encoding="utf-8")
    assert learn("append-only", text, memory=tmp_path / "notes").read == 1
    text.write_text(TEXT, encoding="utf-8")
    rest = learn("append-only", text, memory=tmp_path / "notes")
    assert (rest.before, rest.read) == (1, 2)
    assert state(tmp_path / "notes") == state(tmp_path / "whole")
    again = learn("append-only", text, memory=tmp_path / "notes")
    assert (again.before, again.calls, again.entries) == (2, 0, whole.entries)


def test_a_file_that_was_edited_is_refused_and_left_as_it_is(text: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="none is there; make one with gradus memory learn"):
        ask("teacher", "What?", memory=tmp_path)
    learn("append-only", text, memory=tmp_path)
    file = tmp_path / "memory.json"
    file.write_text(edited := file.read_text().replace("Toda", "Roda", 1))
    with pytest.raises(StorageError, match="is damaged: a saved memory's entries differ"):
        learn("append-only", text, memory=tmp_path)
    assert file.read_text() == edited


KILLED = """
import os, signal, sys
from gradus_worlds.memory.learning import learn_text as learn
learn("append-only", sys.argv[1], memory=sys.argv[2], tell=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_the_core_answers_if_no_entry_fits() -> None:
    memory = Memory()
    memory.set_core("Ann and Bob are friends")
    memory.insert("values", "Ann cause rivers")
    ann, bob, eve = best_entries(memory, ["Who is Ann?", "Who is Bob?", "Who is Eve?"])
    assert ann.answer == "Ann cause rivers"
    assert bob.answer == "Ann and Bob are friends"
    assert (eve.answer, eve.notes) == ("unknown", ())


def test_kill_9_loses_no_chunk_and_repeats_none(text: Path, tmp_path: Path) -> None:
    learn("append-only", text, memory=tmp_path / "whole")
    subprocess.run([sys.executable, "-c", KILLED, text, tmp_path / "notes"], check=False, timeout=120)
    rest = learn("append-only", text, memory=tmp_path / "notes")
    assert (rest.before, rest.read) == (1, 2)
    assert state(tmp_path / "notes") == state(tmp_path / "whole")


def test_a_nano_model_reads_into_its_own_folder(text: Path, tmp_path: Path) -> None:
    vocabulary = load("memory").language.vocabulary
    shape = NanoConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64, context=1024)
    folder = make_nano(tmp_path / "model", vocabulary(), shape, seed=1)
    learned = learn(str(folder), text)
    assert (learned.memory, learned.read) == (folder / "memory", 2)


def test_the_command_line_learns_and_answers(text: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    said = gradus("memory", "learn", "teacher", text, "--memory", notes)
    assert "chunk 2 of 2: update Lina city Miro , formerly Toda" in said.output
    assert "2 chunks read (0 before)" in said.output
    answered = gradus("memory", "ask", "teacher", "What is Remo's dish?", "--memory", notes)
    assert answered.stdout.splitlines()[0] == "Remo dish sabo"
