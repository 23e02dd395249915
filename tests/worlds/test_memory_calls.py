"""Reading tool calls: whatever wraps them, and every way in which they can be broken."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus_worlds.memory import Memory, RefusedCall, run_calls
from gradus_worlds.memory.tools.running import MAX_CALLS, parse_calls
from gradus_worlds.memory.tools.writing import write_core, write_delete, write_insert, write_update


def insert(content: str, category: str = "values", **more: object) -> str:
    return json.dumps({"name": "memory_insert", "arguments": {"category": category, "content": content, **more}})


WRAPPINGS = {
    "alone": "{a}\n{b}",
    "one line": "{a} {b}",
    "list": "[{a}, {b}]",
    "prose": "I will keep {{this}} [maybe].\n{a}\nand then\n{b}\nDone.",
    "fence": "```json\n{a}\n{b}\n```",
    "fenced list": "```\n[{a},\n{b}]\n```",
    "tags": "<tool_call>\n{a}\n</tool_call>\n<tool_call>{b}</tool_call>",
    "fenced tags": "```xml\n<tool_call>{a}</tool_call>\n```\n```\n<tool_call>{b}</tool_call>\n```",
    "tagged list": "<tool_call>[{a}, {b}]</tool_call>",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize(
    "content", ['she said "{no}" [twice]', "a </tool_call> b <tool_call> c", "``` fenced ```", "back\\slash é 漢字"]
)
def test_content_survives_every_wrapping(wrapping: str, content: str) -> None:
    memory = Memory()
    text = WRAPPINGS[wrapping].format(a=insert(content), b=insert("second note"))
    results = run_calls(memory, text)
    assert [result.ok for result in results] == [True, True], results
    assert [entry.content for entry in memory.entries.values()] == [content, "second note"]


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.split() and "\u2028" not in text))
def test_what_is_written_is_what_is_read(content: str) -> None:
    evened = " ".join(content.split())
    for text, key in (
        (write_insert("values", content), "content"),
        (write_update("values", "Ann city", content), "new_content"),
        (write_update("values", content, "Ann city Oslo"), "old_content"),
        (write_delete("values", content), "old_content"),
        (write_core(content), "content"),
    ):
        (call,) = parse_calls(text)
        assert not call.wrong
        assert " ".join(call.arguments[key].split()) == evened


@pytest.mark.parametrize("thought", ["<think>{}? no, that is wrong.</think>", "{}, no</think>"])
def test_a_call_inside_a_thought_does_not_count(thought: str) -> None:
    memory = Memory()
    text = thought.replace("{}", insert("in jest")) + insert("in earnest")
    (result,) = run_calls(memory, text)
    assert result.ok
    assert text[result.start : result.end] == insert("in earnest")
    assert [entry.content for entry in memory.entries.values()] == ["in earnest"]
    assert [each.message for each in run_calls(memory, f"<think>{insert('cut')}")] == ["the answer is empty"]


def delete(**arguments: object) -> str:
    return json.dumps({"name": "memory_delete", "arguments": {"category": "values"} | arguments})


GOOD = '{"name":"memory_insert","arguments":{"category":"values","content":"a good note"}}'
MALFORMED = [
    # text that is no call, or is cut
    ("  ", "the answer is empty"),
    ("I have nothing to add.", "holds no call"),
    ('["memory_noop"]', "holds no call"),
    ('{"name":"memory_noop","arguments":{}', "not closed with a brace"),
    ('{"name":"memory_insert","arguments":{"category":"values","content":"cut', "a string is not closed"),
    ('{"name" "memory_noop"}', "not valid JSON"),
    ("{'name':'memory_noop','arguments':{}}", "not valid JSON"),
    ('{"name":"memory_noop","arguments":{},}', "not valid JSON"),
    # JSON that is no call
    ('{"arguments":{}}', "needs a name"),
    ('{"name":"memory_noop"}', "needs arguments"),
    ('{"name":"memory_noop","arguments":"none"}', "needs arguments"),
    ('{"name":"memory_noop","arguments":{},"id":1}', "nothing else"),
    # calls that a tool refuses
    ('{"name":"memory_forget","arguments":{}}', "unknown tool memory_forget"),
    ('{"name":"memory_noop","arguments":{"why":"x"}}', "memory_noop takes no arguments , not why"),
    ('{"name":"memory_insert","arguments":{"category":"values"}}', "memory_insert needs content"),
    (delete(), "memory_delete needs entry_id or old_content , got neither"),
    (delete(entry_id=1, old_content="first"), "needs entry_id or old_content , not both"),
    (delete(old_content=1), "old_content must be a string"),
    (insert("x y", importance=1), "memory_insert takes category content timestamp , not importance"),
    (insert("x y", timestamp=2030), "timestamp must be a string"),
    *((delete(entry_id=number), "entry_id must be the number of an entry") for number in (True, 1.0, "9" * 4000)),
    (delete(old_content=" "), "name the entry by words of it"),
    (delete(old_content="irst note"), "no entry of values holds irst note"),
    (delete(old_content="NOTE"), "2 entries hold NOTE ; name more of one: 1 3"),
    (insert("x y", timestamp="t" * 65), "at most 64 characters, got 65"),
    (insert("x y", category="dreams"), "unknown category dreams"),
    (insert(" \n "), "content is empty"),
    (insert("w " * 49), "at most 48 words, got 49"),
    (insert("THE first  note"), "entry 1 says that already"),
    (write_update("values", "first note", "the first note"), "entry 1 says exactly that already"),
    (delete(entry_id=99), "there is no entry 99"),
    (delete(entry_id=2), "entry 2 was deleted"),
    (delete(category="cognition_work", entry_id=1), "entry 1 is in values , not in cognition_work"),
    (write_core("w " * 513), "at most 512 tokens, got 513"),
]


def started() -> Memory:
    memory = Memory()
    memory.insert("values", "the first note")
    memory.insert("values", "a note to be deleted")
    memory.delete("values", 2)
    memory.insert("values", "a third note")
    return memory


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_a_broken_call_is_told_what_is_wrong_and_changes_nothing(text: str, message: str) -> None:
    memory = started()
    before = memory.state()
    results = run_calls(memory, text)
    assert [result.ok for result in results] == [False], results
    assert message in results[0].message
    assert memory.state() == before


@pytest.mark.parametrize(
    ("words", "entry_id"),
    [
        ("Ann city Rome", 1),
        ("ann  CITY", 1),
        ("formerly Oslo", 1),
        ("Bob city", 3),
        ("Bob", 3),
        ("Ann fear", 4),
        ("of", 5),
    ],
)
def test_an_entry_is_named_by_words_that_no_other_has(words: str, entry_id: int) -> None:
    memory = named_memory(Memory())
    assert memory.named("values", words).id == entry_id
    assert [(r.ok, r.entry_id) for r in run_calls(memory, write_update("values", words, "new words"))] == [
        (True, entry_id)
    ]
    assert [(r.ok, r.entry_id) for r in run_calls(memory, write_delete("values", "new words"))] == [(True, entry_id)]


def named_memory(memory: Memory) -> Memory:
    memory.insert("values", "Ann city Rome , formerly Oslo")
    memory.insert("cognition_work", "Ann work baker")
    memory.insert("values", "Bob city Rome (the old one)")
    memory.insert("values", "Ann fear")
    memory.insert("values", "Ann fear of dogs")
    return memory


def test_a_whole_content_names_its_entry_though_another_holds_it_too() -> None:
    memory = named_memory(Memory())
    with pytest.raises(RefusedCall, match="2 entries hold fear ; name more of one: 4 5"):
        memory.named("values", "fear")
    with pytest.raises(RefusedCall, match="no entry of values holds Ann work ; entry 2 of cognition_work does"):
        memory.named("values", "Ann work")
    for words in ("Ann", "Rome", "city Rome"):
        with pytest.raises(RefusedCall, match="entries hold"):
            memory.named("values", words)
    for words in ("n city", "Ann cit", "city (Rome", "Rome Oslo"):
        with pytest.raises(RefusedCall, match="no entry of values holds"):
            memory.named("values", words)


@pytest.mark.parametrize("text", [text for text, _ in MALFORMED if "{" in text])
def test_a_broken_call_fails_alone(text: str) -> None:
    memory = started()
    last = '{"name":"memory_insert","arguments":{"category":"values","content":"one more note"}}'
    results = run_calls(memory, f"{GOOD}\n{text}\n{last}")
    assert [result.ok for result in results] == [True, False, True], results
    assert {"a good note", "one more note"} <= {entry.content for entry in memory.entries.values()}


def test_too_many_calls_are_told() -> None:
    text = "\n".join(insert(f"note number {i}") for i in range(MAX_CALLS + 5))
    memory = Memory()
    results = run_calls(memory, text)
    assert len(memory.entries) == MAX_CALLS
    assert "at most" in results[-1].message


def test_places_of_calls_are_where_they_stand() -> None:
    text = f"note: {GOOD}\n{{'name'}} {GOOD}"
    for call in parse_calls(text):
        piece = text[call.start : call.end]
        assert piece.startswith("{'name'}") if call.wrong else piece == GOOD
