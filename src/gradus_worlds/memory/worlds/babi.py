"""bAbI (arXiv 1502.05698), tasks of people and things that move: where is Mary? Questions are asked as the story goes.

A path is a file, a folder of files, or several of both, comma-separated. Stories of ``*_train.txt`` are for training, those of
``*_test.txt`` for testing; a file's sibling is found by itself. Training tasks behind the last story are made ones, of the same shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from gradus.core import Condition, ConfigError, Task, Vocabulary, child_rng
from gradus_worlds.memory.worlds.babi_made import Line, can_be_made, cast_of, made_story
from gradus_worlds.memory.worlds.babi_story import append_facts, sentence_facts, teach_story
from gradus_worlds.memory.worlds.babi_story import question as read_question
from gradus_worlds.memory.worlds.records import TEST_BASE, Chunk, Evidence, Question, Source, World

CHUNK_SENTENCES = 6
# In the stories that a teacher shows some calls fail: who was taught by one that misses nothing has never read a refusal, and one brings
# the next with it.
TAUGHT, FAULTS = range(8_000), 0.1
T = TypeVar("T")
_LINE = re.compile(r"(\d+) (.*)")


def babi_source(path: str) -> Source:
    """Worlds from bAbI files; conditions are ``test`` and, with several tasks, one for each."""
    trains, tests = _files(path)
    shapes = _in_turn([[(file, story) for story in _read_lines(file)] for file in trains])
    casts = {file: cast_of([story for each, story in shapes if each == file]) for file in trains}
    taught = [_story(story, f"{file.stem}-{number}", file) for number, (file, story) in enumerate(shapes)]
    tested = [
        (file.name.partition("_")[0], _story(story, f"{file.stem}-{number}", file))
        for file in tests
        for number, story in enumerate(_read_lines(file))
    ]
    if not taught or not tested:
        raise ConfigError(
            f"{path} needs stories to train and to test on, files called qa..._train.txt and qa..._test.txt"
        )
    conditions = [Condition(name="test", seeds=range(TEST_BASE, TEST_BASE + len(tested)), summary="all test stories")]
    for task in dict.fromkeys(name for name, _ in tested):
        seeds = [TEST_BASE + i for i, (name, _) in enumerate(tested) if name == task]
        conditions += [Condition(name=task, seeds=seeds, summary=f"test stories of {task}")] if len(tests) > 1 else []

    def world(seed: int, **options: Any) -> World:
        if seed >= TEST_BASE:
            return tested[seed - TEST_BASE][1]
        file, shape = shapes[seed % len(shapes)]
        if seed < len(taught) or not can_be_made(shape, casts[file]):
            return taught[seed % len(taught)]
        story = made_story(shape, casts[file], child_rng(seed, "memory-babi"))
        return _story(story, f"{file.stem}-made-{seed}", file)

    def content(task: Task) -> str:
        story = world(task.seed)
        return "\n".join([*(chunk.text for chunk in story.chunks), *(one.text for one in story.questions)])

    def vocabulary() -> Vocabulary:
        words = sorted({word for one in taught for chunk in one.chunks for word in chunk.text.split()})
        bare = sorted({word.strip(".") for word in words} - set(words))
        return Vocabulary(words=(*words, *bare, "location", "holder"))

    return Source(
        name=f"memory:babi:{path}",
        summary="bAbI stories of people and things that move",
        world=world,
        train=lambda index: (index % TEST_BASE, {"faults": FAULTS} if index in TAUGHT else {}),
        conditions={condition.name: condition for condition in conditions},
        max_chunks=max(len(one.chunks) for one in [*taught, *(story for _, story in tested)]),
        vocabulary=vocabulary,
        responses={"append-only": append_facts, "teacher": teach_story},
        recipe="memory-babi.toml",
        content=content,
    )


def _in_turn(files: Sequence[Sequence[T]]) -> list[T]:
    """One of each file, and again, until none is left: a run reads the stories in order, and should not meet task after task."""
    return [one for row in zip_longest(*files, fillvalue=None) for one in row if one is not None]


def _files(path: str) -> tuple[list[Path], list[Path]]:
    """The train and test files that a path names, siblings included, tasks in numerical order."""
    files: set[Path] = set()
    for part in filter(None, path.split(",")):
        place = Path(part)
        if not place.exists():
            raise ConfigError(f"there is no bAbI file or folder {part}")
        for file in sorted(place.glob("qa*_t*.txt")) if place.is_dir() else [place]:
            stem = re.sub(r"_(train|test)$", "", file.stem)
            siblings = [file.with_name(f"{stem}_{split}.txt") for split in ("train", "test")]
            files.update(sibling for sibling in siblings if sibling.exists())
    ordered = sorted(
        files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]
    )
    return [f for f in ordered if f.stem.endswith("_train")], [f for f in ordered if f.stem.endswith("_test")]


def _read_lines(file: Path) -> list[list[Line]]:
    """The lines of each story of a file; a line number 1 begins a new one."""
    stories: list[list[Line]] = []
    for number, raw in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not raw.strip():
            continue
        match = _LINE.fullmatch(raw.strip())
        if match is None:
            raise ConfigError(
                f"line {number} of {file} is not a bAbI line, expected a number and a sentence, got {raw[:60]!r}"
            )
        if int(match[1]) == 1 or not stories:
            stories.append([])
        stories[-1].append((int(match[1]), match[2]))
    return stories


def _story(lines: Sequence[Line], name: str, file: Path) -> World:
    kind = file.name.partition("_")[0]
    chunks: list[list[str]] = []
    where: dict[int, tuple[int, str]] = {}
    asked: list[tuple[int, str, str, list[int]]] = []
    fresh = True
    for number, text in lines:
        parts = [part.strip() for part in re.split(r"[\t|]", text)]
        if len(parts) >= 2:
            support = [int(one) for one in parts[2].split()] if len(parts) > 2 else []
            asked.append((len(chunks) - 1, parts[0], parts[1], support))
            fresh = True
            continue
        if fresh or len(chunks[-1]) >= CHUNK_SENTENCES:
            chunks.append([])
            fresh = False
        chunks[-1].append(text)
        where[number] = (len(chunks) - 1, text)
    told = "\n".join(line for chunk in chunks for line in chunk)
    facts = sentence_facts(chunks)
    return World(
        name=name,
        chunks=tuple(Chunk(text="\n".join(c), facts=f) for c, f in zip(chunks, facts, strict=True)),
        questions=tuple(_question(one, told, where, kind) for one in asked),
    )


def _question(
    asked: tuple[int, str, str, list[int]], told: str, where: Mapping[int, tuple[int, str]], kind: str
) -> Question:
    after, text, answer, support = asked
    evidence = tuple(Evidence(chunk=where[one][0], text=where[one][1]) for one in support if one in where)
    return read_question(text, answer, told, kind=kind, after=max(0, after), evidence=evidence)
