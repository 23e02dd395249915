"""The memory itself: any sequence of calls keeps its invariants, and its log rebuilds it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.core import StorageError
from gradus_worlds.memory import NINE_BANKS, PAPER, Memory, RefusedCall, run_calls
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
        {"category": st.sampled_from(BANKS), "content": TEXT}, optional={"timestamp": st.text(max_size=80)}
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
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))).state() == memory.state()


@settings(max_examples=60)
@given(st.lists(st.one_of(CALL, st.text(max_size=300)), max_size=25))
def test_any_sequence_of_calls_keeps_the_invariants(calls: list[str]) -> None:
    memory = Memory()
    for call in calls:
        before, seen = memory.state(), set(memory.entries)
        results = run_calls(memory, call)
        assert results
        assert all(result.message for result in results)
        if not any(result.ok and result.name != "memory_noop" for result in results):
            assert memory.state() == before, "a refused call changed something"
        check_invariants(memory, seen)


def test_a_deleted_id_is_never_given_again() -> None:
    memory = Memory()
    first = memory.insert("values", "Ann cause rivers")
    memory.delete("values", first.id)
    assert memory.insert("values", "Ann cause rivers").id == first.id + 1
    with pytest.raises(RefusedCall, match=r"entry 1 was deleted"):
        memory.update("values", first.id, "x y")


def test_an_update_keeps_id_and_creation_and_moves_the_time() -> None:
    memory = Memory()
    memory.today = "1 May 2030"
    first = memory.insert("values", "Ann cause rivers")
    memory.today = "2 May 2030"
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
