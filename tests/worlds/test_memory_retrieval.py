"""Retrieval scores as the published library does, and the readers keep their rules."""

from collections import Counter

import bm25s
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus_worlds.memory import NINE_BANKS, Memory, read_generous, read_strict
from gradus_worlds.memory.readers.claims import claim_of
from gradus_worlds.memory.store.index import BANK_B, ENTRY_B, K1, bm25
from gradus_worlds.memory.text import exact_match, substring_match, token_f1
from gradus_worlds.memory.worlds.records import Hop, Question, Slot

WORDS = [f"w{i}" for i in range(12)]
DOCUMENTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=20)


@settings(max_examples=40)
@given(texts=DOCUMENTS, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
@pytest.mark.parametrize("b", [ENTRY_B, BANK_B])
def test_scores_are_those_of_bm25s(texts: list[list[str]], query: list[str], b: float) -> None:
    reference = bm25s.BM25(method="lucene", k1=K1, b=b)
    reference.index(texts, show_progress=False)
    scores = reference.get_scores(sorted(set(query)))
    expected = {number: float(score) for number, score in enumerate(scores) if score > 0}
    assert bm25(dict(enumerate(map(Counter, texts))), query, b) == pytest.approx(expected, abs=2e-5)


def test_what_shares_no_word_is_never_returned() -> None:
    memory = Memory()
    memory.insert("values", "Ann cause rivers")
    assert memory.search("Bob's dish") == []
    assert memory.search("the of and") == []
    assert [hit.entry.id for hit in memory.search("Who gives to rivers?")] == [1]


def test_only_the_best_banks_are_looked_into() -> None:
    memory = Memory()
    for bank in NINE_BANKS.banks:
        for _ in range(2):
            memory.insert(bank, f"Ann note {bank} {len(memory.entries)}")
    hits = memory.search("Ann note", banks=3, entries=50)
    assert len({hit.entry.bank for hit in hits}) == 3
    assert len(memory.search("Ann note", banks=9, entries=5)) == 5
    assert len(memory.related("Ann note", entries=50)) == 18


CITY = Slot(entity="Ann", cues=("city", "lives"), values=("Rome", "Oslo", "New York"))


@pytest.mark.parametrize(
    ("content", "now", "former"),
    [
        ("Ann city Rome", ("Rome",), ()),
        ("Ann city Oslo , formerly Rome", ("Oslo",), ("Rome",)),
        ("Ann lives in New York", ("New York",), ()),
        ("Ann's city was Rome, and Oslo", ("Oslo",), ("Rome",)),
        ("Ann's city is not Rome but Oslo", ("Oslo",), ()),
        ("Ann city unknown", (), ()),
    ],
)
def test_claims(content: str, now: tuple[str, ...], former: tuple[str, ...]) -> None:
    claim = claim_of(content, CITY)
    assert (claim.now, claim.former) == (now, former)


def test_a_claim_needs_entity_and_attribute() -> None:
    assert claim_of("Bob city Rome", CITY) is None
    assert claim_of("Ann likes Rome", CITY) is None
    friends = Slot(entity="Ann", cues=("friend",), values=("Ann", "Bob"), directed=True)
    claim = claim_of("Bob friend Ann", friends)
    assert claim.now == ()


def asked(aspect: str = "value", answers: tuple[str, ...] = ("Oslo",), of: str | None = None) -> Question:
    hop = Hop(slot=CITY, query="{} city")
    return Question(text="What is Ann's city now?", answers=answers, aspect=aspect, hops=(hop,), of=of)


def memory_of(*contents: str) -> Memory:
    memory = Memory()
    memory.today = "3 May 2030"
    for content in contents:
        memory.insert("spatiotemporal_context", content)
    return memory


def test_the_strict_reader_reads_one_value() -> None:
    assert read_strict(memory_of("Ann city Oslo"), asked()).correct
    assert read_strict(memory_of("Ann city Oslo , formerly Rome"), asked()).correct
    former = read_strict(memory_of("Ann city Oslo , formerly Rome"), asked("former", ("Rome",), "Oslo"))
    assert former.prediction == "Rome"
    date = read_strict(memory_of("Ann city Oslo"), asked("date", ("3 May 2030",), "Oslo"))
    assert date.correct
    assert not read_strict(memory_of("Ann city Oslo"), asked("date", ("4 May 2030",), "Oslo")).correct


def test_two_values_are_wrong_and_nothing_is_unknown() -> None:
    both = read_strict(memory_of("Ann city Oslo", "Ann city Rome"), asked())
    assert not both.correct
    assert "two values" in both.why
    nothing = read_strict(memory_of("Bob city Oslo"), asked())
    assert (nothing.prediction, nothing.correct) == ("unknown", False)
    assert read_strict(memory_of(), asked(answers=())).correct
    assert not read_strict(memory_of("Ann city Oslo"), asked(answers=())).correct


def test_the_strict_reader_sees_four_entries_and_forty_eight_words() -> None:
    many = read_strict(memory_of(*(f"Ann city Oslo {i}" for i in range(9))), asked())
    assert len(many.notes) == 4
    long = read_strict(memory_of("Ann city " + "so " * 30 + "Oslo", "Ann city " + "very " * 30 + "Rome"), asked())
    assert len(long.notes) == 1
    core = memory_of("Ann city Oslo")
    core.set_core("talk " * 46)
    assert [note.id for note in read_strict(core, asked()).notes] == [1], "the core counts towards the words"
    core.set_core("Ann city Rome")
    assert not read_strict(core, asked()).correct


def test_two_hops_are_followed() -> None:
    friend = Slot(entity="Bob", cues=("friend",), values=("Ann", "Cem"), directed=True)
    then = Hop(slot=CITY, query="{} city")
    question = Question(
        text="What is the city of Bob's friend?",
        answers=("Oslo",),
        hops=(Hop(slot=friend, query="{} friend", then=then),),
    )
    memory = memory_of("Ann city Oslo", "Cem city Rome")
    assert read_strict(memory, question).prediction == "unknown"
    memory.insert("social_interpersonal", "Bob friend Ann")
    assert read_strict(memory, question).correct


def test_the_generous_reader_takes_the_answer_from_anywhere() -> None:
    memory = memory_of("somebody told Ann that it may be Oslo or Rome", "Ann likes tea")
    assert read_generous(memory, asked()).correct
    assert not read_generous(memory, asked(answers=("Paris",))).correct
    assert read_generous(memory, asked(answers=())).correct


@pytest.mark.parametrize(
    ("question", "answer", "content", "right"),
    [
        ("Where did Ann move?", "Oslo", "Ann: I moved to Oslo last week.", True),
        ("Where does Ann live?", "Oslo", "Bob lives in Oslo", True),
        ("Where does Ann live?", "Oslo", "Bob was in Oslo", False),
        ("Where does Ann live?", "Oslo", "Ann lives in Rome", False),
        ("When did Ann leave?", "3 May 2030", "Ann wants to leave", True),  # since when the entry holds
        ("What is Ann's temperature?", "5", "Ann temperature -5", False),
        ("How much is Ann's salary?", "1000", "Ann salary 1,000", True),
    ],
)
def test_free_text_holds_the_answer_in_an_entry_that_shares_a_word(
    question: str, answer: str, content: str, right: bool
) -> None:
    assert read_strict(memory_of(content), Question(text=question, answers=(answer,))).correct is right


def test_of_free_text_nothing_is_known_if_no_entry_shares_a_word() -> None:
    asked = Question(text="Where does Ann live?", answers=())
    assert read_strict(memory_of("Bob was in Oslo"), asked).correct
    assert not read_strict(memory_of("Ann was in Oslo"), asked).correct
    core = memory_of()
    core.set_core("Bob was in Oslo")
    assert read_strict(core, asked).correct


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "inside"),
    [
        ("The red house.", "red house", True, True),
        ("it is the red house", "red house", False, True),
        ("", "red house", False, False),
        ("", "", False, False),
        ("a", "a", True, True),
        ("x", "x", True, True),
        ("x", "y", False, False),
        ("A house", "A", False, False),
        ("1,000", "1000", True, True),
        ("1,5", "15", False, False),
        ("-5", "5", False, False),
        ("5", "-5", False, False),
        ("it is -5 now", "-5", False, True),
        ("3-5", "5", False, True),
        ("7", "7", True, True),
        ("redhouse", "red", False, False),
    ],
)
def test_answer_metrics(prediction: str, gold: str, exact: bool, inside: bool) -> None:
    assert exact_match(prediction, gold) is exact
    assert substring_match(prediction, gold) is inside
    assert (token_f1(prediction, gold) == 1.0) is exact
