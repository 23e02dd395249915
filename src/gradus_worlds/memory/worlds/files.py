"""Worlds that are read from files: splitting them, and what a good memory of free text would hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.core import Condition, ConfigError, Task
from gradus_worlds.memory.text import normalize, substring_match
from gradus_worlds.memory.worlds.records import UNKNOWN, Chunk, Evidence, Fact, Source, World
from gradus_worlds.memory.worlds.source_synthetic import synthetic_source

TEST_BASE = 1_000_000  # seeds of test worlds begin here, so that no training index can meet one


def known_answers(answers: Iterable[str]) -> tuple[str, ...]:
    """The answers that are some. The word that readers say where nothing is known is none: it would pay for silence.

    >>> known_answers(["Rome", "Unknown.", " "])
    ('Rome',)
    """
    return tuple(answer for answer in answers if answer.strip() and normalize(answer) != UNKNOWN)


def with_facts(world: World) -> World:
    """Give the chunks their gold facts: each known answer belongs to the chunk that its first evidence names, or else to the
    first chunk in which it stands."""
    facts: dict[int, list[Fact]] = {}
    for question in world.questions:
        if question.unknown:
            continue
        answer = question.answers[0]
        places = [item.chunk for item in question.evidence]
        places += [i for i, chunk in enumerate(world.chunks) if not places and substring_match(chunk.text, answer)][:1]
        fact = Fact(kind="insert", answer=answer)
        if places and fact not in facts.get(places[0], []):
            facts.setdefault(places[0], []).append(fact)
    chunks = tuple(replace(chunk, facts=tuple(facts.get(i, ()))) for i, chunk in enumerate(world.chunks))
    return replace(world, chunks=chunks)


def locate_evidence(chunks: Sequence[Chunk], text: str) -> Evidence | None:
    """The first chunk in which a text stands, None if there is none."""
    place = next((i for i, chunk in enumerate(chunks) if text.strip() and text.strip() in chunk.text), None)
    return None if place is None else Evidence(chunk=place, text=text.strip())


def file_source(name: str, summary: str, worlds: Sequence[World]) -> Source:
    """A source over worlds that are all there. The last fifth of the dialogues is for testing, the rest for training.

    With a single dialogue, all of it is for testing and training happens on synthetic worlds.
    """
    if not worlds:
        raise ConfigError(f"{name} holds no world")
    taught, tested = _split(worlds)
    synthetic = synthetic_source()

    def world(seed: int, **options: Any) -> World:
        if seed >= TEST_BASE:
            return tested[(seed - TEST_BASE) % len(tested)]
        return taught[seed % len(taught)] if taught else synthetic.world(seed, **options)

    def content(task: Task) -> str:
        return _dialogue(world(task.seed))

    def train(index: int) -> tuple[int, Mapping[str, Any]]:
        return (index % len(taught), {}) if taught else synthetic.train(index)

    seeds = range(TEST_BASE, TEST_BASE + len(tested))
    longest = max(len(one.chunks) for one in worlds)
    return Source(
        name=name,
        summary=summary,
        world=world,
        train=train,
        conditions={"test": Condition(name="test", seeds=seeds, summary="worlds that are never trained on")},
        max_chunks=longest if taught else max(longest, synthetic.max_chunks),
        vocabulary=synthetic.vocabulary,  # other words are spelled
        recipe="memory-own.toml",
        content=content if taught else None,  # a dialogue may stand in the file twice
    )


def _dialogue(world: World) -> str:
    """Returns what a policy reads of a world. The questions are none of it, so lines that ask of one dialogue are one task."""
    return "\n".join(chunk.text for chunk in world.chunks)


def _split(worlds: Sequence[World]) -> tuple[list[World], list[World]]:
    """(taught, tested): those of the last fifth of the dialogues are tested. A single dialogue is tested only."""
    dialogues = list(dict.fromkeys(map(_dialogue, worlds)))
    held = set(dialogues[-max(1, len(dialogues) // 5) :])
    return [one for one in worlds if _dialogue(one) not in held], [one for one in worlds if _dialogue(one) in held]
