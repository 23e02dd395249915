"""The synthetic world as a source: its conditions, its vocabulary, and its teacher.

The teacher tracks slots by reading the dialogue's own grammar, and needs nothing that a model does not see. It inserts what is new, updates
what has changed and keeps the former value, sets mistakes right, deletes what was taken back, and lets rumours, jokes, repeats and small
talk pass. ``append_only`` reads as well, but only ever inserts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Condition, ConfigError, Vocabulary
from gradus_worlds.memory.tools.writing import entry_name, write_delete, write_insert, write_update
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, Statement, read_line, sayings
from gradus_worlds.memory.worlds.questions import MONTHS
from gradus_worlds.memory.worlds.records import Data, Source, World
from gradus_worlds.memory.worlds.synthetic import NO_FACT, SYLLABLES, synthetic_config, synthetic_world

# Training worlds that are lessons, without small talk: of one chunk to learn to copy from what is said, and of four, full of
# changes, to learn to copy from what the memory holds.
LESSONS: Mapping[range, Mapping[str, Any]] = {
    range(1_500, 4_000): {"chunks": 4, "chat": 0, "attributes": 2, "events": 1.3, "tell": 3.0, "change": 6.0},
    range(4_000, 8_000): {"chunks": 1, "chat": 0},
}
LONGEST = 16  # times as many chunks as in training


def synthetic_source(argument: str = "") -> Source:
    """Knobs, as ``chunks=12,people=4``, override :class:`SyntheticConfig` in every condition. People grow with the square root of the length.

    Training worlds have from none to all of the small talk, and 6,500 of them (1,500 to 7,999) are short lessons: copying is
    learnt where little distracts, ignoring where much does. A model that is warm-started on 8,000 worlds gets both.
    """
    base = synthetic_config(_knobs(argument))
    knobs = base.model_dump(exclude_unset=True)
    if base.chunks > 256 or base.people > 50:
        raise ConfigError(f"expected at most 256 chunks and 50 people, got {base.chunks} and {base.people}")

    def world(seed: int, **options: Any) -> World:
        return synthetic_world(seed, **{**knobs, **options})

    def train(index: int) -> tuple[int, dict[str, Any]]:
        shape: Mapping[str, Any] = {"chat": index % (base.chat + 1)}
        for indices, lesson in LESSONS.items():
            if index in indices:
                shape = lesson
        return index, {**knobs, "split": "train", **shape}

    def test_condition(name: str, seeds: range, summary: str, factor: int = 1) -> Condition:
        options = {**knobs, "split": "test"}
        if factor > 1:
            people = round(base.people * factor**0.5)
            options |= {"chunks": base.chunks * factor, "people": people, "questions": base.questions * 2}
        return Condition(name=name, seeds=seeds, summary=summary, options=options)

    as_trained = "worlds as long as in training, of words never seen"
    conditions = (
        test_condition("in-distribution", range(1_000_000, 1_000_128), as_trained),
        test_condition("longer-4x", range(2_000_000, 2_000_048), "four times as long, more people", 4),
        test_condition("longer-16x", range(3_000_000, 3_000_008), "sixteen times as long", LONGEST),
    )
    return Source(
        name="memory",
        summary="dialogues of invented people whose facts change, are taken back, rumoured and joked about",
        world=world,
        train=train,
        conditions={condition.name: condition for condition in conditions},
        max_chunks=base.chunks * LONGEST,
        responses={"append-only": append_only, "teacher": teach},
    )


def _knobs(argument: str) -> dict[str, str]:
    knobs: dict[str, str] = {}
    for part in filter(None, argument.split(",")):
        key, separator, value = part.partition("=")
        if not separator:
            raise ConfigError(f"a knob of the synthetic world is written key=value, got {part!r}")
        knobs[key.strip().replace("-", "_")] = value.strip()
    return knobs


def dialogue_vocabulary() -> Vocabulary:
    """The words of the synthetic world; other words are spelled."""
    texts = [*CHAT]
    for attribute in ATTRIBUTES.values():
        texts.append(attribute.noun)
        texts += [text for _, text in sayings(attribute)]
    words = {word for word in " ".join(texts).split() if "{" not in word}
    days = map(str, range(1, 32))
    years = map(str, range(2029, 2042))
    dates = [*MONTHS, *days, *years]
    # A syllable that begins a word is a token of its own, so that a name costs two tokens and not three.
    starts = [*SYLLABLES, *(syllable.capitalize() for syllable in SYLLABLES)]
    return Vocabulary(
        words=(*sorted(words), *dates, "Date:", ",", "formerly", *starts), pieces=(*SYLLABLES, "'s", ".", ",", ":", "?")
    )


def note_of(entity: str, cue: str, value: str, former: str | None = None) -> str:
    """Says how the teacher writes an entry.

    >>> note_of("Tavo", "city", "Reku", "Mila")
    'Tavo city Reku , formerly Mila'
    """
    note = f"{entity} {cue} {value}"
    return f"{note} , formerly {former}" if former else note


def read_chunk(text: str) -> list[Statement]:
    """Returns what the lines of a chunk say; rumours, jokes, repeats and small talk say nothing.

    >>> [statement.value for statement in read_chunk("Tavo: my city is now Reku.\\nMila: well, I have to think about that.")]
    ['Reku']
    """
    statements = map(read_line, text.splitlines())
    return [statement for statement in statements if statement and statement.kind not in NO_FACT]


def append_only(data: Data) -> list[str]:
    """An entry for every statement that gives a value."""
    statements = read_chunk(data["chunk"])
    return [_insert(data, statement, statement.value) for statement in statements if statement.value]


def teach(data: Data) -> list[str]:
    """The calls for one chunk, given the entries that are shown with it."""
    calls = [_call(data, statement) for statement in _last_statements(read_chunk(data["chunk"]))]
    return [call for call in calls if call]


def _last_statements(statements: Sequence[Statement]) -> list[Statement]:
    """One statement per slot: a correction in the same chunk takes the place of what it corrects."""
    slots: dict[tuple[str, str], Statement] = {}
    for statement in statements:
        slot = (statement.entity, statement.attribute.noun)
        # Out and in again, so that it stands where the correction stood.
        slots.pop(slot, None)
        slots[slot] = statement
    return list(slots.values())


def _insert(data: Data, statement: Statement, value: str) -> str:
    """The call that keeps a value in the attribute's bank, or in the first one of a schema that does not have it."""
    attribute = statement.attribute
    bank = attribute.bank if attribute.bank in data["banks"] else data["banks"][0]
    return write_insert(bank, note_of(statement.entity, attribute.noun, value))


def _call(data: Data, statement: Statement) -> str | None:
    """The call that a statement asks for; None if the memory says it already."""
    entries: Sequence[Mapping[str, Any]] = data["entries"]
    name = f"{statement.entity} {statement.attribute.noun}"
    entry = next((entry for entry in entries if entry_name(entry["content"]) == name), None)
    if statement.value is None:
        return write_delete(entry["bank"], name) if entry else None
    if entry is None:
        return _insert(data, statement, statement.value)
    note, _, _ = entry["content"].partition(" , ")
    value = note.removeprefix(f"{name} ")
    if value == statement.value:
        return None
    # What was a mistake never held, so it is no former value.
    former = None if statement.kind == "correct" else value
    new = note_of(statement.entity, statement.attribute.noun, statement.value, former)
    return write_update(entry["bank"], name, new)
