"""The memory itself: any sequence of calls keeps its invariants, and its log rebuilds it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.core import StorageError
from gradus_worlds.memory import NINE_BANKS, PAPER, DurableMemory, Memory, RefusedCall, run_calls
from gradus_worlds.memory.text import count_tokens, count_words

BANKS = [*NINE_BANKS.banks, "nowhere", ""]
TEXT = st.one_of(
    st.sampled_from(
        ["Ann city Rome", "Ann city Oslo , formerly Rome", "Bob fear dogs", " ", "word " * 49, "x" * 800, '{"a": "}"}']
    ),
    st.text(max_size=60),
)
NAMES = {"entry_id": st.integers(0, 8), "old_content": TEXT}
ARGUMENTS = {
    "memory_insert": st.fixed_dictionaries(
        {"category": st.sampled_from(BANKS), "content": TEXT},
        optional={"timestamp": st.text(max_size=80), "importance": st.floats(-1, 2)},
    ),
    "memory_update": st.fixed_dictionaries({"category": st.sampled_from(BANKS), "new_content": TEXT}, optional=NAMES),
    "memory_delete": st.fixed_dictionaries({"category": st.sampled_from(BANKS)}, optional=NAMES),
    "core_memory_update": st.fixed_dictionaries({"content": st.one_of(TEXT, st.just("a " * 600))}),
    "memory_noop": st.just({}),
}
CALL = st.sampled_from(sorted(ARGUMENTS)).flatmap(
    lambda name: ARGUMENTS[name].map(lambda arguments: json.dumps({"name": name, "arguments": arguments}))
)


def check_invariants(memory: Memory, ids_seen: set[int]) -> None:
    inserted = [operation.entry.id for operation in memory.operations if operation.kind == "insert" and operation.entry]
    assert inserted == sorted(set(inserted)), "an id was used twice"
    assert set(memory.entries) <= set(inserted)
    assert ids_seen <= set(inserted)
    assert count_tokens(memory.core) <= memory.schema.core_tokens
    keys = [(entry.bank, entry.content.casefold()) for entry in memory.entries.values()]
    assert len(keys) == len(set(keys)), "a duplicate is stored"
    for entry_id, entry in memory.entries.items():
        assert entry.id == entry_id
        assert entry.bank in memory.schema.banks
        assert 0 < count_words(entry.content) <= memory.schema.entry_words
        assert 0 <= entry.importance <= 1
    again = Memory.replay(memory.operations, memory.schema)
    assert again.state() == memory.state()
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))).state() == memory.state()


@settings(max_examples=60)
@given(st.lists(CALL, max_size=25))
def test_any_sequence_of_calls_keeps_the_invariants(calls: list[str]) -> None:
    memory = Memory()
    for call in calls:
        before, seen = memory.state(), set(memory.entries)
        (result,) = run_calls(memory, call)
        assert result.message
        if not result.ok or result.name == "memory_noop":
            assert memory.state() == before, "a refused call changed something"
        check_invariants(memory, seen)


@settings(max_examples=150)
@given(st.text(max_size=300))
def test_any_text_is_answered_and_keeps_the_invariants(text: str) -> None:
    memory = Memory()
    results = run_calls(memory, text)
    assert results
    assert all(result.message for result in results)
    check_invariants(memory, set())


def test_a_deleted_id_is_never_given_again() -> None:
    memory = Memory()
    first = memory.insert("values", "Ann cause rivers")
    memory.delete("values", first.id)
    assert memory.insert("values", "Ann cause rivers").id == first.id + 1
    with pytest.raises(RefusedCall, match=r"entry 1 was deleted"):
        memory.update("values", first.id, "x y")


def test_an_update_keeps_id_and_creation_and_moves_the_time() -> None:
    days = iter(["1 May 2030", "2 May 2030"])
    memory = Memory(clock=lambda: next(days))
    first = memory.insert("values", "Ann cause rivers")
    second = memory.update("values", first.id, "Ann cause bees")
    assert (second.id, second.created, second.updated, second.timestamp) == (
        1,
        "1 May 2030",
        "2 May 2030",
        "2 May 2030",
    )


def test_both_schemas_are_the_same_code() -> None:
    memory = Memory(PAPER)
    memory.insert("semantic", "Ann lives in Rome")
    memory.insert("episodic", "Ann moved on Monday")
    with pytest.raises(RefusedCall, match="unknown category values"):
        memory.insert("values", "Ann cause bees")
    assert [hit.entry.bank for hit in memory.search("Where does Ann live? lives")] == ["semantic", "episodic"]
    assert Memory.from_json(memory.to_json()).schema == PAPER


def test_a_saved_memory_that_was_edited_is_refused() -> None:
    memory = Memory()
    memory.insert("values", "Ann cause rivers")
    edited = memory.to_json()
    edited["entries"][0]["content"] = "Ann cause oil"
    with pytest.raises(StorageError, match="differ from what its log rebuilds"):
        Memory.from_json(edited)


def test_what_was_written_is_there_when_reopened(tmp_path: Path) -> None:
    with DurableMemory(tmp_path / "m") as memory:
        memory.insert("values", 'Ann says "{rivers}"', timestamp="1 May")
        memory.set_core("Ann and Bob")
        memory.insert("values", "Bob cause bees")
        memory.delete("values", 2)
        state = memory.state()
    with DurableMemory(tmp_path / "m") as memory:
        assert memory.state() == state
        assert memory.insert("values", "Bob cause bees").id == 3


@pytest.mark.parametrize(
    ("before", "after"), [('"Ann fact 2"', '"Ann fact 7"'), ('"id": 2', '"id": 5'), ("insert", "forget"), ("}\n", "\n")]
)
def test_a_file_that_was_damaged_is_refused_and_left_as_it_is(tmp_path: Path, before: str, after: str) -> None:
    with DurableMemory(tmp_path / "m") as memory:
        for i in range(3):
            memory.insert("values", f"Ann fact {i}")
    file = tmp_path / "m" / "memory.json"
    file.write_text(damaged := file.read_text().replace(before, after, 1))
    with pytest.raises(StorageError, match="is damaged"):
        DurableMemory(tmp_path / "m", create=False)
    assert file.read_text() == damaged


def test_a_change_that_cannot_be_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    with DurableMemory(tmp_path / "m") as memory:
        memory.insert("values", "Ann cause rivers")
        with monkeypatch.context() as patch:
            patch.setattr("gradus_worlds.memory.store.durable.write_text", full)
            with pytest.raises(StorageError, match="full"):
                memory.insert("values", "Bob cause bees")
        assert [entry.content for entry in memory.entries.values()] == ["Ann cause rivers"]
        assert memory.search("bees") == []


@settings(max_examples=25)
@given(st.lists(CALL, max_size=15), st.text(max_size=40))
def test_a_memory_on_disk_is_the_memory_in_the_process(calls: list[str], query: str) -> None:
    memory = Memory(clock=lambda: "1 May")
    with tempfile.TemporaryDirectory() as folder, DurableMemory(folder, clock=lambda: "1 May") as durable:
        for call in calls:
            assert run_calls(durable, call) == run_calls(memory, call)
        assert durable.to_json() == memory.to_json()
        for text in (query, "Ann city", "Bob fear dogs Rome"):
            assert durable.search(text) == memory.search(text)
            assert durable.related(text) == memory.related(text)


def test_a_memory_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with DurableMemory(tmp_path / "m"), pytest.raises(StorageError, match="in use by another process"):
        DurableMemory(tmp_path / "m")
    with pytest.raises(StorageError, match=r"expected a memory in .*, and none is there"):
        DurableMemory(tmp_path / "other", create=False)


WRITER = """
import sys
from gradus_worlds.memory import DurableMemory
memory = DurableMemory(sys.argv[1])
for i in range(len(memory.operations), 10**9):
    kind = i % 5
    live = list(memory.entries)
    if kind == 3 and live:
        memory.update("values", live[-1], f"changed {i}")
    elif kind == 4 and live:
        memory.delete("values", live[0])
    else:
        memory.insert("values", f"fact {i} " + "padding " * (i % 40))
    print(memory.operations[-1].sequence, flush=True)
"""


def test_kill_9_loses_no_acknowledged_operation(tmp_path: Path) -> None:
    acknowledged = 0
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "m")], stdout=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert child.stdout is not None
        assert child.stdout.readline(), "the writer did not start"
        heard = [child.stdout.readline() for _ in range(3)]  # however slow the machine, something is acknowledged
        time.sleep(0.15 + 0.1 * round_)
        child.send_signal(signal.SIGKILL)
        told = ("".join(heard) + child.stdout.read()).split("\n")
        child.stdout.close()
        child.wait()
        numbers = [int(line) for line in told[:-1] if line]
        acknowledged = max([acknowledged, *numbers])
        assert numbers, "nothing was written before the kill"
        with DurableMemory(tmp_path / "m") as memory:
            assert len(memory.operations) >= acknowledged
            assert Memory.replay(memory.operations).state() == memory.state()


def test_a_batch_is_written_as_a_whole(tmp_path: Path) -> None:
    with DurableMemory(tmp_path / "m") as memory:
        with memory.batch():
            for i in range(50):
                memory.insert("values", f"fact {i}")
        state = memory.state()
        with suppress(KeyboardInterrupt), memory.batch():
            memory.insert("values", "half a batch")
            raise KeyboardInterrupt
    with DurableMemory(tmp_path / "m") as memory:
        assert memory.state() == state


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann's dog doesn't bark", 4),
        ("a well-known author", 3),
        ("at 10:30 on 2024-01-05 he ran 3.5 km for 1,000 euros", 11),
        ("-- **bold** , `x` !", 5),
        ("", 0),
    ],
)
def test_ordinary_text_has_a_word_for_each_stretch(text: str, words: int) -> None:
    assert count_words(text) == len(text.split()) == words
