"""Dialogues in files: the user's own worlds, and LoCoMo's long conversations (arXiv 2402.17753), which become records like those.

One's own: one a line, ``{chunks: [{text, timestamp?}], questions: [{question, answers, evidence?}]}``. LoCoMo's JSON is taken as its users
have it: answers may be integers or missing (questions of category 5 have none: the answer is unknown), evidence ids may be garbled or name
turns that are not there; such evidence is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gradus.core import Condition, ConfigError, read_text
from gradus_worlds.memory.text import normalize, substring_match
from gradus_worlds.memory.worlds.records import TEST_BASE, UNKNOWN, Chunk, Evidence, Fact, Question, Source, World

CATEGORIES: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
CHUNK_WORDS = 120
_SESSION = re.compile(r"session_(\d+)")
# The id of a turn, also as some files garble it: D1:3, D:1:3, D1 : 3.
_EVIDENCE = re.compile(r"D\s*:?\s*(\d+)\s*:\s*(\d+)")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _ChunkLine(_Strict):
    text: str = Field(min_length=1)
    timestamp: str | None = None


class _QuestionLine(_Strict):
    """A question of a user's own."""

    question: str = Field(min_length=1)
    # Any is right; none, or the word unknown, means unknown.
    answers: tuple[str, ...]
    # Indices of chunks, or words that stand in one.
    evidence: tuple[int | str, ...] = ()
    kind: str = "question"

    @field_validator("answers", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        values = _listed(value)
        return [str(answer) if isinstance(answer, int | float) else answer for answer in values]


class _WorldLine(_Strict):
    chunks: tuple[_ChunkLine, ...] = Field(min_length=1)
    questions: tuple[_QuestionLine, ...] = Field(min_length=1)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast(list[Any], value) if isinstance(value, list) else [value]


def jsonl_source(path: str) -> Source:
    """Worlds from a JSONL file. A ConfigError names the line and the field that cannot be used."""
    # A text may hold what str.splitlines takes for the end of a line.
    lines = read_text(Path(path)).removeprefix("\ufeff").split("\n")
    worlds = [_world_of(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    return file_source(f"memory:jsonl:{path}", f"your own dialogues in {Path(path).name}", worlds)


def _world_of(text: str, number: int, path: str) -> World:
    where = f"line {number} of {path}"
    try:
        record = _WorldLine.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ConfigError(
            f"{where}: {field}: {first['msg']}; expected {{chunks: [{{text, timestamp?}}], "
            "questions: [{question, answers, evidence?}]}"
        ) from error
    chunks = [Chunk(text=chunk.text, timestamp=chunk.timestamp) for chunk in record.chunks]
    questions: list[Question] = []
    for line in record.questions:
        evidence = tuple(_evidence(item, chunks, where) for item in line.evidence)
        answers = _known_answers(line.answers)
        questions.append(Question(text=line.question, answers=answers, kind=line.kind, evidence=evidence))
    return _world(f"{Path(path).stem}-{number}", chunks, questions)


def _evidence(item: int | str, chunks: Sequence[Chunk], where: str) -> Evidence:
    if isinstance(item, str):
        words = item.strip()
        for index, chunk in enumerate(chunks):
            if words and words in chunk.text:
                return Evidence(chunk=index, text=words)
        raise ConfigError(f"{where}: evidence {item[:60]!r} stands in no chunk; give words of a chunk, or its index")
    if not 0 <= item < len(chunks):
        raise ConfigError(f"{where}: evidence {item} is not a chunk; there are chunks 0 to {len(chunks) - 1}")
    return Evidence(chunk=item, text=chunks[item].text)


def _known_answers(answers: Iterable[str]) -> tuple[str, ...]:
    """The answers without "unknown", the word of readers that know nothing: it would reward silence.

    >>> _known_answers(["Rome", "Unknown.", " "])
    ('Rome',)
    """
    return tuple(answer for answer in answers if answer.strip() and normalize(answer) != UNKNOWN)


def _world(name: str, chunks: Sequence[Chunk], questions: Sequence[Question]) -> World:
    """A world whose chunks have their gold facts: each known answer belongs to the chunk that its first evidence names, or else to
    the first chunk in which it stands."""
    # A dict keeps each fact once and in order: several questions may ask for one.
    facts: list[dict[Fact, None]] = [{} for _ in chunks]
    for question in questions:
        if question.unknown:
            continue
        answer = question.answers[0]
        places = [item.chunk for item in question.evidence]
        if not places:
            places = [index for index, chunk in enumerate(chunks) if substring_match(chunk.text, answer)]
        if places:
            facts[places[0]][Fact(value=answer)] = None
    pairs = zip(chunks, facts, strict=True)
    with_facts = [replace(chunk, facts=tuple(row)) for chunk, row in pairs]
    return World(name=name, chunks=with_facts, questions=questions)


def file_source(name: str, summary: str, worlds: Sequence[World]) -> Source:
    """A source over worlds that are all in memory. Those of the last fifth of the dialogues are for testing, the rest for training."""
    if not worlds:
        raise ConfigError(f"{name} holds no world")
    dialogues = list(dict.fromkeys(map(_dialogue, worlds)))
    # By dialogue and not by line: lines may ask of one dialogue.
    held_out = set(dialogues[-max(1, len(dialogues) // 5) :])
    training = [world for world in worlds if _dialogue(world) not in held_out]
    testing = [world for world in worlds if _dialogue(world) in held_out]

    def world_of(seed: int) -> World:
        return testing[seed - TEST_BASE] if seed >= TEST_BASE else training[seed]

    def train(index: int) -> tuple[int, Mapping[str, Any]]:
        if not training:
            raise ConfigError(f"{name} holds one dialogue, which is for testing; training needs a second one")
        return index % len(training), {}

    seeds = range(TEST_BASE, TEST_BASE + len(testing))
    return Source(
        name=name,
        summary=summary,
        world=world_of,
        train=train,
        conditions={"test": Condition(name="test", seeds=seeds, summary="worlds that are never trained on")},
        max_chunks=max(len(world.chunks) for world in worlds),
        recipe="memory-own.toml",
        content=lambda task: _dialogue(world_of(task.seed)),  # a dialogue may stand in the file twice
    )


def _dialogue(world: World) -> str:
    """Returns what a policy reads of a world, without the questions, so lines that ask of one dialogue are one task."""
    return "\n".join(chunk.text for chunk in world.chunks)


class _Turn(BaseModel):
    speaker: str = "Somebody"
    text: str = ""
    blip_caption: str | None = None
    dia_id: str | None = None

    def line(self) -> str:
        image = f"(shares {self.blip_caption})" if self.blip_caption else ""
        return " ".join(f"{self.speaker}: {self.text} {image}".split())


class _LocomoQuestion(BaseModel):
    question: str
    answer: str | int | float | None = None
    evidence: Any = None
    category: int | None = None

    def record(self, turns: Mapping[str, Evidence]) -> Question:
        """The question, with the evidence that is really a turn; those of category 5 have no answer."""
        answers = [] if self.category == 5 or self.answer is None else [str(self.answer)]
        # Some files join several ids in one text, or garble them; what is no turn is left out.
        pairs = _EVIDENCE.findall(json.dumps(self.evidence))
        ids = dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in pairs)  # each once, in order
        category = self.category or 0
        return Question(
            text=self.question.strip(),
            answers=_known_answers(answers),
            kind=f"{category} {CATEGORIES[category]}" if category in CATEGORIES else "uncategorised",
            evidence=tuple(turns[turn_id] for turn_id in ids if turn_id in turns),
        )


class _LocomoConversation(BaseModel):
    sample_id: str | None = None
    conversation: dict[str, Any]
    qa: list[_LocomoQuestion] = []

    def sessions(self) -> list[tuple[int, str | None, list[_Turn]]]:
        """(number, date, turns) of each session, in order."""
        sessions: list[tuple[int, str | None, list[_Turn]]] = []
        for key, turns in self.conversation.items():
            match = _SESSION.fullmatch(key)
            if match and turns:
                date = self.conversation.get(f"{key}_date_time")
                validated = [_Turn.model_validate(turn) for turn in turns]
                sessions.append((int(match[1]), date, validated))
        return sorted(sessions, key=lambda session: session[0])


def locomo_source(path: str) -> Source:
    """Worlds from a LoCoMo file: a list of conversations, or one."""
    try:
        conversations = _listed(json.loads(read_text(Path(path))))
    except ValueError as error:
        raise ConfigError(f"the conversations in {path} are not JSON: {error}") from error
    worlds = [_conversation(data, place, path) for place, data in enumerate(conversations)]
    return file_source(f"memory:locomo:{path}", "LoCoMo's long conversations", worlds)


def _conversation(data: Any, place: int, path: str) -> World:
    """Sessions in chunks of at most CHUNK_WORDS words; a longer turn is a chunk."""
    try:
        conversation = _LocomoConversation.model_validate(data)
        sessions = conversation.sessions()
    except ValidationError as error:
        raise ConfigError(
            f"conversation {place} of {path} has no 'conversation', or a field of another kind; expected LoCoMo's JSON: {error}"
        ) from error
    chunks: list[Chunk] = []
    evidence: dict[str, Evidence] = {}
    for number, date, turns in sessions:
        room = 0  # words that the last chunk still takes; a session begins a new one
        for index, turn in enumerate(turns, 1):
            text = turn.line()
            words = len(text.split())
            if words > room:
                chunks.append(Chunk(text=text, timestamp=date))
                room = CHUNK_WORDS
            else:
                longer = f"{chunks[-1].text}\n{text}"
                chunks[-1] = replace(chunks[-1], text=longer)
            room -= words
            # Files of others may leave out the ids of turns.
            turn_id = turn.dia_id or f"D{number}:{index}"
            evidence[turn_id] = Evidence(chunk=len(chunks) - 1, text=text)
    questions = [question.record(evidence) for question in conversation.qa]
    return _world(conversation.sample_id or f"conversation-{place}", chunks, questions)
