"""The synthetic world as a source: its conditions, its vocabulary, and its language as the teacher reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import Condition, ConfigError, Vocabulary
from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, CHAT, sayings
from gradus_worlds.memory.worlds.records import Source
from gradus_worlds.memory.worlds.synthetic import (
    MOST_CHUNKS,
    MOST_PEOPLE,
    MOST_QUESTIONS,
    SYLLABLES,
    synthetic_config,
    synthetic_world,
)
from gradus_worlds.memory.worlds.teacher import append_only, teach
from gradus_worlds.memory.worlds.timeline import MONTHS

# Training worlds that are lessons, without small talk: of one chunk to learn to copy from what is said, and of four, full of
# changes, to learn to copy from what the memory holds.
LESSONS: Mapping[range, Mapping[str, Any]] = {
    range(1_500, 4_000): {"chunks": 4, "chat": 0, "attributes": 2, "events": 1.3, "tell": 3.0, "change": 6.0},
    range(4_000, 8_000): {"chunks": 1, "chat": 0},
}
LONGEST = 16  # times as many chunks as in training
TEST_SEEDS, LONG_SEEDS, LONGEST_SEEDS = (
    range(1_000_000, 1_000_128),
    range(2_000_000, 2_000_048),
    range(3_000_000, 3_000_008),
)


def synthetic_source(argument: str = "") -> Source:
    """Knobs, as ``chunks=12,people=4``, override :class:`SyntheticConfig` in every condition. People grow with the square root of the length, as far
    as there may be so many.

    Training worlds have from none to all of the small talk, and 6,500 of them (1,500 to 7,999) are short lessons: copying is
    learnt where little distracts, ignoring where much does. A model that is warm-started on 8,000 worlds gets both.
    """
    base = synthetic_config(_knobs(argument))
    knobs = base.model_dump(exclude_unset=True)
    if base.chunks * LONGEST > MOST_CHUNKS:
        raise ConfigError(
            f"expected at most {MOST_CHUNKS // LONGEST} chunks, got chunks={base.chunks}: the condition longer-16x has {LONGEST} times as many, "
            f"and a world has at most {MOST_CHUNKS}"
        )

    def longer(factor: int) -> dict[str, Any]:
        people = min(round(base.people * factor**0.5), MOST_PEOPLE)
        return {
            **knobs,
            "split": "test",
            "chunks": base.chunks * factor,
            "people": people,
            "questions": min(base.questions * 2, MOST_QUESTIONS),
        }

    def train(index: int) -> tuple[int, dict[str, Any]]:
        lesson = next((shape for indices, shape in LESSONS.items() if index in indices), None)
        shape = lesson or {"chat": index % (base.chat + 1)}
        return index, {**knobs, "split": "train", **shape}

    conditions = (
        Condition(
            name="in-distribution",
            seeds=TEST_SEEDS,
            summary="worlds as long as in training, of words never seen",
            options={**knobs, "split": "test"},
        ),
        Condition(name="longer-4x", seeds=LONG_SEEDS, summary="four times as long, more people", options=longer(4)),
        Condition(name="longer-16x", seeds=LONGEST_SEEDS, summary="sixteen times as long", options=longer(LONGEST)),
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
