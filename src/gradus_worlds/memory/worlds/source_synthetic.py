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
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, Said, read_line, sayings
from gradus_worlds.memory.worlds.questions import MONTHS
from gradus_worlds.memory.worlds.records import Source
from gradus_worlds.memory.worlds.synthetic import SYLLABLES, synthetic_config, synthetic_world

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

    def longer(factor: int) -> dict[str, Any]:
        people = round(base.people * factor**0.5)
        sizes = {"chunks": base.chunks * factor, "people": people, "questions": base.questions * 2}
        return {**knobs, "split": "test", **sizes}

    def train(index: int) -> tuple[int, dict[str, Any]]:
        lesson = next((shape for indices, shape in LESSONS.items() if index in indices), None)
        shape = lesson or {"chat": index % (base.chat + 1)}
        return index, {**knobs, "split": "train", **shape}

    conditions = (
        Condition(
            name="in-distribution",
            seeds=range(1_000_000, 1_000_128),
            summary="worlds as long as in training, of words never seen",
            options={**knobs, "split": "test"},
        ),
        Condition(
            name="longer-4x",
            seeds=range(2_000_000, 2_000_048),
            summary="four times as long, more people",
            options=longer(4),
        ),
        Condition(
            name="longer-16x",
            seeds=range(3_000_000, 3_000_008),
            summary="sixteen times as long",
            options=longer(LONGEST),
        ),
    )
    return Source(
        name="memory",
        summary="dialogues of invented people whose facts change, are taken back, rumoured and joked about",
        world=lambda seed, **options: synthetic_world(seed, **{**knobs, **options}),
        train=train,
        conditions={condition.name: condition for condition in conditions},
        max_chunks=base.chunks * LONGEST,
        vocabulary=_vocabulary,
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


def _vocabulary() -> Vocabulary:
    texts = [*CHAT]
    for attribute in ATTRIBUTES.values():
        texts += [attribute.noun, *(text for _, text in sayings(attribute))]
    words = {word for text in texts for word in text.split() if "{" not in word}
    dates = [*MONTHS, *map(str, range(1, 32)), *map(str, range(2029, 2042))]
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
    return f"{entity} {cue} {value}" + (f" , formerly {former}" if former else "")


def read_chunk(text: str) -> list[Said]:
    """Returns what the lines of a chunk say; rumours, jokes, repeats and small talk say nothing.

    >>> [said.value for said in read_chunk("Tavo: my city is now Reku.\\nMila: well, I have to think about that.")]
    ['Reku']
    """
    read = [read_line(line) for line in text.splitlines()]
    return [said for said in read if said is not None and said.kind not in ("rumour", "joke", "repeat")]


def append_only(data: Mapping[str, Any]) -> list[str]:
    """An entry for every statement that gives a value."""
    return [_insert(said, said.value) for said in read_chunk(data["chunk"]) if said.value]


def teach(data: Mapping[str, Any]) -> list[str]:
    """The calls for one chunk, given the entries that are shown with it."""
    return [call for said in _last_word(read_chunk(data["chunk"])) for call in _calls(said, data["entries"])]


def _last_word(statements: Sequence[Said]) -> list[Said]:
    """One statement per slot: a correction in the same chunk takes the place of what it corrects."""
    slots: dict[tuple[str, str], Said] = {}
    for said in statements:
        key = said.entity, said.attribute.noun
        slots.pop(key, None)
        slots[key] = said
    return list(slots.values())


def _insert(said: Said, value: str) -> str:
    return write_insert(said.attribute.bank, note_of(said.entity, said.attribute.noun, value))


def _calls(said: Said, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [said.entity, said.attribute.noun]
    known = next((entry for entry in entries if entry["content"].split()[:2] == head), None)
    if said.value is None:
        return [write_delete(known["bank"], entry_name(known["content"]))] if known else []
    if known is None:
        return [_insert(said, said.value)]
    held = known["content"].split(" , ")[0].split(" ", 2)[2]
    if held == said.value:
        return []
    former = None if said.kind == "correct" else held
    note = note_of(said.entity, said.attribute.noun, said.value, former)
    return [write_update(known["bank"], entry_name(known["content"]), note)]
