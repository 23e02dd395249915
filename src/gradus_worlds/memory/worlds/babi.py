"""bAbI (arXiv 1502.05698), tasks of people and things that move: where is Mary? Questions are asked as the story goes.

A path is a file, a folder of files, or several of both, comma-separated. Stories of ``*_train.txt`` are for training, those of
``*_test.txt`` for testing; a file's sibling is found by itself. Then what sentences mean, what questions ask, and a teacher that
tracks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gradus.core import Condition, ConfigError, Vocabulary
from gradus_worlds.memory.tools.writing import entry_name, write_insert, write_update
from gradus_worlds.memory.worlds.records import TEST_BASE, Chunk, Evidence, Fact, Hop, Question, Slot, Source, World

CHUNK_SENTENCES = 6
# In the stories that a teacher shows some calls fail: who was taught by one that misses nothing has never read a refusal, and one brings
# the next with it.
TAUGHT, FAULTS = range(8_000), 0.1
BANK = "spatiotemporal_context"
Line = tuple[int, str]
"""A line's number and its text; a question has its answer and the numbers of its evidence behind tabs (or bars)."""

_LINE = re.compile(r"(\d+) (.*)")
_MOVE = re.compile(r"(\w+) (?:went back|went|travelled|journeyed|moved) to the (\w+)\.?")
_TAKE = re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)(?: there)?\.?")
_DROP = re.compile(r"(\w+) (?:dropped|discarded|left|put down) the (\w+)(?: there)?\.?")
_LOCATED = re.compile(r"(\w+) location (\w+)")


def babi_source(path: str) -> Source:
    """Worlds from bAbI files; conditions are ``test`` and, with several tasks, one for each."""
    trains, tests = _files(path)
    # One of each file, and again: a run reads the stories in order, and should not meet task after task.
    taught = [one for row in zip_longest(*map(_stories, trains)) for one in row if one is not None]
    tested = [one for file in tests for one in _stories(file)]
    if not taught or not tested:
        raise ConfigError(
            f"{path} needs stories to train and to test on, files called qa..._train.txt and qa..._test.txt"
        )
    conditions = [Condition(name="test", seeds=range(TEST_BASE, TEST_BASE + len(tested)), summary="all test stories")]
    tasks = [_task(one) for one in tested]
    for task in dict.fromkeys(tasks) if len(tests) > 1 else ():
        seeds = [TEST_BASE + place for place, name in enumerate(tasks) if name == task]
        conditions.append(Condition(name=task, seeds=seeds, summary=f"test stories of {task}"))

    def world(seed: int, **options: Any) -> World:
        return tested[seed - TEST_BASE] if seed >= TEST_BASE else taught[seed % len(taught)]

    return Source(
        name=f"memory:babi:{path}",
        summary="bAbI stories of people and things that move",
        world=world,
        train=lambda index: (index % TEST_BASE, {"faults": FAULTS} if index in TAUGHT else {}),
        conditions={condition.name: condition for condition in conditions},
        max_chunks=max(len(one.chunks) for one in [*taught, *tested]),
        vocabulary=lambda: _vocabulary(taught),
        responses={"append-only": append_facts, "teacher": teach_story},
        recipe="memory-babi.toml",
        content=lambda task: _told(world(task.seed)),  # a story is taught more than once
    )


def _task(story: World) -> str:
    return story.name.partition("_")[0]


def _vocabulary(stories: Sequence[World]) -> Vocabulary:
    words = sorted({word for one in stories for chunk in one.chunks for word in chunk.text.split()})
    bare = sorted({word.strip(".") for word in words} - set(words))
    return Vocabulary(words=(*words, *bare, "location", "holder"))


def _told(story: World) -> str:
    """Returns what a story says and asks."""
    return "\n".join([*(chunk.text for chunk in story.chunks), *(one.text for one in story.questions)])


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


def _stories(file: Path) -> list[World]:
    """The stories of a file; a line number 1 begins a new one."""
    stories: list[list[Line]] = []
    for number, raw in enumerate(filter(str.strip, file.read_text(encoding="utf-8").splitlines()), 1):
        match = _LINE.fullmatch(raw.strip())
        if match is None:
            raise ConfigError(
                f"line {number} of {file} is not a bAbI line, expected a number and a sentence, got {raw[:60]!r}"
            )
        if int(match[1]) == 1 or not stories:
            stories.append([])
        stories[-1].append((int(match[1]), match[2]))
    return [_story(lines, f"{file.stem}-{number}") for number, lines in enumerate(stories)]


def _story(lines: Sequence[Line], name: str) -> World:
    chunks: list[list[str]] = []
    where: dict[int, Evidence] = {}
    asked: list[tuple[int, list[str]]] = []
    fresh = True
    for number, text in lines:
        parts = [part.strip() for part in re.split(r"[\t|]", text)]
        if len(parts) >= 2:
            asked.append((len(chunks) - 1, parts))
            fresh = True
            continue
        if fresh or len(chunks[-1]) >= CHUNK_SENTENCES:
            chunks.append([])
            fresh = False
        chunks[-1].append(text)
        where[number] = Evidence(chunk=len(chunks) - 1, text=text)
    told = "\n".join(line for chunk in chunks for line in chunk)
    return World(
        name=name,
        chunks=tuple(
            Chunk(text="\n".join(c), facts=f) for c, f in zip(chunks, _sentence_facts(chunks, told), strict=True)
        ),
        questions=tuple(_question(parts, after, told, where, name.partition("_")[0]) for after, parts in asked),
    )


def _question(parts: Sequence[str], after: int, told: str, where: Mapping[int, Evidence], kind: str) -> Question:
    """A question with the ways to answer it. ``parts``: its text, its answer, and the numbers of its evidence.

    ``told`` is the whole story: its words are the possible values.
    """
    wanted, of, hops = _ways(parts[0], told)
    support = map(int, parts[2].split()) if len(parts) > 2 else ()
    return Question(
        text=parts[0],
        answers=(parts[1],),
        kind=kind,
        wanted=wanted,
        hops=hops,
        of=of,
        evidence=tuple(where[one] for one in support if one in where),
        after=after,
    )


def _read_sentence(sentence: str) -> tuple[str, str, str] | None:
    """(verb, person, place or thing) of a sentence."""
    for verb, pattern in (("move", _MOVE), ("take", _TAKE), ("drop", _DROP)):
        match = pattern.fullmatch(sentence.strip())
        if match:
            return verb, match[1], match[2]
    return None


# What a slot is about: the words that name it, and which part of which sentences are its values.
_SLOTS = {
    "location": (("location", "went", "travelled", "journeyed", "moved"), ("move",), 2),
    "holder": (("holder", "got", "grabbed", "took", "picked"), ("take", "drop"), 1),
    "held": (("holder", "got", "grabbed", "took", "picked"), ("take", "drop"), 2),
}


def _slot(kind: str, entity: str, told: str) -> Slot:
    cues, verbs, part = _SLOTS[kind]
    read = [_read_sentence(line) for line in told.splitlines()]
    values = dict.fromkeys(sentence[part] for sentence in read if sentence is not None and sentence[0] in verbs)
    return Slot(entity=entity, cues=cues, values=tuple(values))


def _ways(text: str, told: str) -> tuple[str, str | None, tuple[Hop, ...]]:
    """Returns what a question wants, the value that it asks a former one of, and the ways to answer it."""

    def hop(kind: str, entity: str, attribute: str, then: Hop | None = None) -> Hop:
        return Hop(slot=_slot(kind, entity, told), query=f"{{}} {attribute}", then=then)

    if carried := re.fullmatch(r"What is (\w+) carrying\?", text):
        return "list", None, (hop("held", carried[1], "holder"),)
    if former := re.fullmatch(r"Where was the (\w+) before the (\w+)\?", text):
        return "former", former[2], (hop("location", former[1], "location"),)
    if where := re.fullmatch(r"Where is (?:the )?(\w+)\?", text):
        name, then = where[1], hop("location", "", "location")
        return "value", None, (hop("location", name, "location"), hop("holder", name, "holder", then))
    return "value", None, ()


def _track(sentences: Iterable[str], places: dict[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Returns what each sentence says: a name, its attribute and the value, None if it is not known.

    ``places``: where people are, which is kept up to date.
    """
    for verb, person, what in filter(None, map(_read_sentence, sentences)):
        if verb == "move":
            places[person] = what
            yield person, "location", what
        elif verb == "take":
            yield what, "holder", person
        else:
            yield what, "location", places.get(person)


def _sentence_facts(chunks: Sequence[Sequence[str]], told: str) -> list[tuple[Fact, ...]]:
    """Returns what each chunk asks of a memory: the last place of everyone who moved, the holder of what was taken, the place of what
    was dropped if it is known."""
    places: dict[str, str] = {}
    facts: list[tuple[Fact, ...]] = []
    for chunk in chunks:
        known = {
            name: Fact(value=value, slot=_slot(attribute, name, told))
            for name, attribute, value in _track(chunk, places)
            if value is not None
        }
        facts.append(tuple(known.values()))
    return facts


def teach_story(data: Mapping[str, Any]) -> list[str]:
    """Keep one entry for each person and thing: ``Mary location kitchen``, ``milk holder Mary``."""
    shown = {entry["content"].split()[0]: entry for entry in data["entries"]}
    located = filter(None, (_LOCATED.fullmatch(entry["content"]) for entry in shown.values()))
    places = {match[1]: match[2] for match in located}
    notes = {
        name: f"{name} {attribute} {value or 'unknown'}"
        for name, attribute, value in _track(data["chunk"].splitlines(), places)
    }
    calls: list[str] = []
    for name, note in notes.items():
        if name not in shown:
            calls.append(write_insert(BANK, note))
        elif shown[name]["content"] != note:
            calls.append(write_update(shown[name]["bank"], entry_name(shown[name]["content"]), note))
    return calls


def append_facts(data: Mapping[str, Any]) -> list[str]:
    """The same notes, never changed: an entry for each sentence that moves somebody or something."""
    read = filter(None, map(_read_sentence, data["chunk"].splitlines()))
    return [
        write_insert(BANK, f"{person} location {what}" if verb == "move" else f"{what} holder {person}")
        for verb, person, what in read
        if verb != "drop"
    ]
