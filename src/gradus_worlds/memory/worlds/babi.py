"""bAbI (arXiv 1502.05698), tasks of people and things that move: where is Mary? Questions are asked as the story goes.

A path is a file, a folder of files, or several of both, comma-separated. Stories of ``*_train.txt`` are for training, those of
``*_test.txt`` for testing; a file's sibling is found by itself. Questions of tasks 1 to 3 are judged by what sentences mean, others as
free text. A teacher tracks the people and things.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gradus.core import Condition, ConfigError, Vocabulary
from gradus_worlds.memory.tools.writing import entry_name, write_insert, write_update
from gradus_worlds.memory.worlds.records import (
    TEST_BASE,
    Chunk,
    Data,
    Evidence,
    Fact,
    Hop,
    Question,
    Slot,
    Source,
    World,
)

CHUNK_SENTENCES = 6
# In the stories that a teacher shows some calls fail: a student of a teacher that misses nothing has never read a refusal, and one refusal
# brings the next with it.
TAUGHT, FAULTS = range(8_000), 0.1
BANK = "spatiotemporal_context"
# The words by which an entry names an attribute.
_CUES = {
    "location": ("location", "went", "travelled", "journeyed", "moved"),
    "holder": ("holder", "got", "grabbed", "took", "picked"),
}
_VERBS = {
    "move": re.compile(r"(\w+) (?:went back|went|travelled|journeyed|moved) to the (\w+)\.?"),
    "take": re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)(?: there)?\.?"),
    "drop": re.compile(r"(\w+) (?:dropped|discarded|left|put down) the (\w+)(?: there)?\.?"),
}
_LINE = re.compile(r"(\d+) (.*)")
_LOCATED = re.compile(r"(\w+) location (\w+)")

Line = tuple[int, str]
"""A line's number and its text; a question has its answer and the numbers of its evidence behind tabs (or bars)."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence understood. ``verb``: move, take or drop; ``object``: a place or a thing."""

    verb: str
    person: str
    object: str


def babi_source(path: str) -> Source:
    """Worlds from bAbI files; conditions are ``test`` and, with several tasks, one for each."""
    stems = _stems(path)
    # One of each file, and again: a run reads the stories in order, and should not meet task after task.
    rows = zip_longest(*(_stories(stem, "train") for stem in stems))
    training = [story for row in rows for story in row if story is not None]
    testing = [story for stem in stems for story in _stories(stem, "test")]
    if not training or not testing:
        raise ConfigError(
            f"{path} needs stories to train and to test on, files called qa..._train.txt and qa..._test.txt"
        )

    def world(seed: int, **options: Any) -> World:
        return testing[seed - TEST_BASE] if seed >= TEST_BASE else training[seed % len(training)]

    return Source(
        name=f"memory:babi:{path}",
        summary="bAbI stories of people and things that move",
        world=world,
        train=lambda index: (index % TEST_BASE, {"faults": FAULTS} if index in TAUGHT else {}),
        conditions=_conditions(testing),
        max_chunks=max(len(story.chunks) for story in [*training, *testing]),
        vocabulary=lambda: _vocabulary(training),
        responses={"append-only": append_facts, "teacher": teach_story},
        recipe="memory-babi.toml",
        content=lambda task: _content(world(task.seed)),  # a story is taught more than once
    )


def _conditions(stories: Sequence[World]) -> dict[str, Condition]:
    seeds: dict[str, list[int]] = {}
    for seed, story in enumerate(stories, TEST_BASE):
        seeds.setdefault(_task(story.name), []).append(seed)
    everything = range(TEST_BASE, TEST_BASE + len(stories))
    conditions = {"test": Condition(name="test", seeds=everything, summary="all test stories")}
    if len(seeds) > 1:
        for task in seeds:
            conditions[task] = Condition(name=task, seeds=seeds[task], summary=f"test stories of {task}")
    return conditions


def _task(name: str) -> str:
    """The task of a story, ``qa1`` for example."""
    return name.partition("_")[0]


def _vocabulary(stories: Sequence[World]) -> Vocabulary:
    texts = [chunk.text for story in stories for chunk in story.chunks]
    words = set(" ".join(texts).split())
    bare = {word.strip(".") for word in words} - words
    return Vocabulary(words=(*sorted(words), *sorted(bare), "location", "holder"))


def _content(story: World) -> str:
    """Returns what a story says and asks."""
    questions = [question.text for question in story.questions]
    return "\n".join([chunk.text for chunk in story.chunks] + questions)


def _stems(path: str) -> list[Path]:
    """The files that a path names, without ``_train.txt`` and ``_test.txt``, by the number of the task."""
    stems: set[Path] = set()
    for part in path.split(","):
        place = Path(part)
        if not place.exists():
            raise ConfigError(f"there is no bAbI file or folder {part}")
        files = place.glob("qa*_t*.txt") if place.is_dir() else [place]
        stems.update(file.with_name(re.sub("_(train|test)$", "", file.stem)) for file in files)
    return sorted(stems, key=lambda stem: (int(re.sub(r"\D", "", _task(stem.name)) or 0), stem.name))


def _stories(stem: Path, split: str) -> list[World]:
    """The stories of a file, if there is one; a line number 1 begins a new one."""
    file = stem.with_name(f"{stem.name}_{split}.txt")
    if not file.exists():
        return []
    stories: list[list[Line]] = []
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    for place, line in enumerate(filter(None, lines), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(
                f"line {place} of {file} is not a bAbI line, expected a number and a sentence, got {line[:60]!r}"
            )
        number = int(match[1])
        if number == 1 or not stories:
            stories.append([])
        stories[-1].append((number, match[2]))
    return [_story(story, f"{file.stem}-{place}") for place, story in enumerate(stories)]


def _story(lines: Sequence[Line], name: str) -> World:
    chunks: list[list[str]] = []
    evidence: dict[int, Evidence] = {}
    question_lines: list[tuple[int, list[str]]] = []  # the chunk behind which a question stands, and its parts
    new_chunk = True
    for number, text in lines:
        parts = [part.strip() for part in re.split(r"[\t|]", text)]
        if len(parts) > 1:
            question_lines.append((len(chunks) - 1, parts))
            new_chunk = True
            continue
        if new_chunk or len(chunks[-1]) >= CHUNK_SENTENCES:
            chunks.append([])
            new_chunk = False
        chunks[-1].append(text)
        evidence[number] = Evidence(chunk=len(chunks) - 1, text=text)
    story = _read(sentence for chunk in chunks for sentence in chunk)
    places: dict[str, str] = {}
    records: list[Chunk] = []
    for chunk in chunks:
        facts = {
            entity: Fact(value=value, slot=_slot(attribute, entity, story))
            for entity, attribute, value in _track(chunk, places)
            if value is not None
        }
        records.append(Chunk(text="\n".join(chunk), facts=tuple(facts.values())))
    questions: list[Question] = []
    for after, (text, answer, *support) in question_lines:
        # The evidence of some lines is missing, or names a line that is no sentence.
        numbers = [int(number) for number in " ".join(support).split()]
        question = Question(
            text=text,
            answers=(answer,),
            kind=_task(name),
            evidence=tuple(evidence[number] for number in numbers if number in evidence),
            after=after,
        )
        questions.append(_with_hops(question, story))
    return World(name=name, chunks=records, questions=questions)


def _read(texts: Iterable[str]) -> list[Sentence]:
    """The sentences that say what somebody does."""
    sentences: list[Sentence] = []
    for text in texts:
        for verb, pattern in _VERBS.items():
            match = pattern.fullmatch(text.strip())
            if match:
                sentences.append(Sentence(verb=verb, person=match[1], object=match[2]))
    return sentences


def _slot(attribute: str, entity: str, story: Sequence[Sentence]) -> Slot:
    if attribute == "location":
        values = [sentence.object for sentence in story if sentence.verb == "move"]
    else:
        values = [sentence.person for sentence in story if sentence.verb != "move"]
    return Slot(entity=entity, cues=_CUES[attribute], values=tuple(dict.fromkeys(values)))


def _with_hops(question: Question, story: Sequence[Sentence]) -> Question:
    """Adds the ways to answer a question, if it is one of tasks 1 to 3."""

    def hop(attribute: str, entity: str, then: Hop | None = None) -> Hop:
        return Hop(slot=_slot(attribute, entity, story), query=f"{{}} {attribute}", then=then)

    former = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", question.text)
    if former:
        return replace(question, aspect="former", of=former[2], hops=(hop("location", former[1]),))
    now = re.fullmatch(r"Where is (?:the )?(\w+)\?", question.text)
    if now:
        # A thing is where it lies, or where the person is who holds it.
        with_holder = hop("holder", now[1], then=hop("location", ""))
        return replace(question, hops=(hop("location", now[1]), with_holder))
    return question


def _track(texts: Iterable[str], places: dict[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Yields what each sentence says: an entity, its attribute and the value, None if it is not known.

    ``places``: where people are, which is kept up to date.
    """
    for sentence in _read(texts):
        if sentence.verb == "move":
            places[sentence.person] = sentence.object
            yield sentence.person, "location", sentence.object
        elif sentence.verb == "take":
            yield sentence.object, "holder", sentence.person
        else:
            yield sentence.object, "location", places.get(sentence.person)


def teach_story(data: Data) -> list[str]:
    """Keep one entry for each person and thing: ``Mary location kitchen``, ``milk holder Mary``."""
    entries = {entry["content"].split()[0]: entry for entry in data["entries"]}
    matches = [_LOCATED.fullmatch(entry["content"]) for entry in entries.values()]
    places = {match[1]: match[2] for match in matches if match}
    notes: dict[str, str] = {}
    for entity, attribute, value in _track(data["chunk"].splitlines(), places):
        notes[entity] = f"{entity} {attribute} {value or 'unknown'}"
    calls: list[str] = []
    for entity, note in notes.items():
        entry = entries.get(entity)
        if entry is None:
            calls.append(write_insert(BANK, note))
        elif entry["content"] != note:
            calls.append(write_update(entry["bank"], entry_name(entry["content"]), note))
    return calls


def append_facts(data: Data) -> list[str]:
    """The same notes, never changed: an entry for each sentence that moves somebody or something."""
    notes = {"move": "{0.person} location {0.object}", "take": "{0.object} holder {0.person}"}
    sentences = [sentence for sentence in _read(data["chunk"].splitlines()) if sentence.verb in notes]
    return [write_insert(BANK, notes[sentence.verb].format(sentence)) for sentence in sentences]
