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
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gradus.core import Condition, ConfigError, read_text
from gradus_worlds.memory.text import normalize, substring_match
from gradus_worlds.memory.worlds.records import TEST_BASE, UNKNOWN, Chunk, Evidence, Fact, Question, Source, World
from gradus_worlds.memory.worlds.source_synthetic import synthetic_source

CATEGORIES: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
CHUNK_WORDS = 120
_EVIDENCE = re.compile(r"D\s*:?\s*(\d+)\s*:\s*(\d+)")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _ChunkLine(_Strict):
    text: str = Field(min_length=1)
    timestamp: str | None = None


class _QuestionLine(_Strict):
    """``answers``: any is right; none, or the word unknown, means unknown. ``evidence``: indices of chunks, or words that stand in one."""

    question: str = Field(min_length=1)
    answers: tuple[str, ...]
    evidence: tuple[int | str, ...] = ()
    kind: str = "question"

    @field_validator("answers", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        values = value if isinstance(value, list) else [] if value is None else [value]
        return [str(one) if isinstance(one, int | float) else one for one in values]


class _WorldLine(_Strict):
    chunks: tuple[_ChunkLine, ...] = Field(min_length=1)
    questions: tuple[_QuestionLine, ...] = Field(min_length=1)


def jsonl_source(path: str) -> Source:
    """Worlds from a JSONL file. A ConfigError names the line and the field that cannot be used."""
    # A text may hold what str.splitlines takes for the end of a line.
    lines = read_text(Path(path)).removeprefix("\ufeff").split("\n")
    stem = Path(path).stem
    worlds = [
        world_of(line, f"{stem}-{number}", f"line {number} of {path}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    return file_source(f"memory:jsonl:{path}", f"your own dialogues in {Path(path).name}", worlds)


def world_of(record: str | Mapping[str, Any], name: str, where: str) -> World:
    """Reads a world from its record, or from that as JSON. A ConfigError names the field that cannot be used."""
    try:
        text = isinstance(record, str)
        world = _WorldLine.model_validate_json(record) if text else _WorldLine.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ConfigError(
            f"{where}: {field}: {first['msg']}; expected {{chunks: [{{text, timestamp?}}], "
            "questions: [{question, answers, evidence?}]}"
        ) from error
    chunks = tuple(Chunk(text=chunk.text, timestamp=chunk.timestamp) for chunk in world.chunks)
    questions = tuple(
        Question(
            text=line.question,
            answers=_known_answers(line.answers),
            kind=line.kind,
            evidence=tuple(_evidence(item, chunks, where) for item in line.evidence),
        )
        for line in world.questions
    )
    return World(name=name, chunks=_with_facts(chunks, questions), questions=questions)


def _evidence(item: int | str, chunks: tuple[Chunk, ...], where: str) -> Evidence:
    if isinstance(item, str):
        words = item.strip()
        place = next((place for place, chunk in enumerate(chunks) if words and words in chunk.text), None)
        if place is None:
            raise ConfigError(
                f"{where}: evidence {item[:60]!r} stands in no chunk; give words of a chunk, or its index"
            )
        return Evidence(chunk=place, text=words)
    if not 0 <= item < len(chunks):
        raise ConfigError(f"{where}: evidence {item} is not a chunk; there are chunks 0 to {len(chunks) - 1}")
    return Evidence(chunk=item, text=chunks[item].text)


def _known_answers(answers: Iterable[str]) -> tuple[str, ...]:
    """The answers that are some. The word that readers say where nothing is known is none: it would pay for silence.

    >>> _known_answers(["Rome", "Unknown.", " "])
    ('Rome',)
    """
    return tuple(answer for answer in answers if answer.strip() and normalize(answer) != UNKNOWN)


def _with_facts(chunks: Sequence[Chunk], questions: Sequence[Question]) -> tuple[Chunk, ...]:
    """Give the chunks their gold facts: each known answer belongs to the chunk that its first evidence names, or else to the
    first chunk in which it stands."""
    facts: list[list[Fact]] = [[] for _ in chunks]
    for question in questions:
        if question.unknown:
            continue
        fact = Fact(value=question.answers[0])
        places = [item.chunk for item in question.evidence] or [
            place for place, chunk in enumerate(chunks) if substring_match(chunk.text, question.answers[0])
        ]
        if places and fact not in facts[places[0]]:
            facts[places[0]].append(fact)
    return tuple(replace(chunk, facts=tuple(own)) for chunk, own in zip(chunks, facts, strict=True))


def file_source(name: str, summary: str, worlds: Sequence[World]) -> Source:
    """A source over worlds that are all there. Those of the last fifth of the dialogues are for testing, the rest for training."""
    if not worlds:
        raise ConfigError(f"{name} holds no world")
    dialogues = list(dict.fromkeys(map(_dialogue, worlds)))
    held = set(dialogues[-max(1, len(dialogues) // 5) :])
    taught = [one for one in worlds if _dialogue(one) not in held]
    tested = [one for one in worlds if _dialogue(one) in held]

    def world(seed: int) -> World:
        return tested[seed - TEST_BASE] if seed >= TEST_BASE else taught[seed]

    def train(index: int) -> tuple[int, Mapping[str, Any]]:
        if not taught:
            raise ConfigError(f"{name} holds one dialogue, which is for testing; training needs a second one")
        return index % len(taught), {}

    seeds = range(TEST_BASE, TEST_BASE + len(tested))
    return Source(
        name=name,
        summary=summary,
        world=world,
        train=train,
        conditions={"test": Condition(name="test", seeds=seeds, summary="worlds that are never trained on")},
        max_chunks=max(len(one.chunks) for one in worlds),
        vocabulary=synthetic_source().vocabulary,  # other words are spelled
        recipe="memory-own.toml",
        content=lambda task: _dialogue(world(task.seed)),  # a dialogue may stand in the file twice
    )


def _dialogue(world: World) -> str:
    """Returns what a policy reads of a world. The questions are none of it, so lines that ask of one dialogue are one task."""
    return "\n".join(chunk.text for chunk in world.chunks)


def locomo_source(path: str) -> Source:
    """Worlds from a LoCoMo file: a list of conversations, or one."""
    try:
        data = json.loads(read_text(Path(path)))
    except ValueError as error:
        raise ConfigError(f"the conversations in {path} are not JSON: {error}") from error
    conversations = data if isinstance(data, list) else [data]
    worlds = [_conversation(one, place, path) for place, one in enumerate(conversations)]
    return file_source(f"memory:locomo:{path}", "LoCoMo's long conversations", worlds)


def _conversation(data: Any, place: int, path: str) -> World:
    where = f"conversation {place} of {path}"
    if not isinstance(data, dict) or not isinstance(data.get("conversation"), dict):
        raise ConfigError(f"{where} has no 'conversation'; expected LoCoMo's JSON")
    turns = _turns(data["conversation"])
    said = {turn_id: text for _, turn_id, text in turns}
    asked = [line for line in data.get("qa") or [] if line.get("question")]
    record = {"chunks": _chunks(turns), "questions": [_locomo_question(line, said) for line in asked]}
    return world_of(record, str(data.get("sample_id") or f"conversation-{place}"), where)


def _turns(conversation: Mapping[str, Any]) -> list[tuple[str | None, str, str]]:
    """All turns in order as (date of the session, id such as D1:2, text)."""
    numbers = sorted(int(match[1]) for key in conversation if (match := re.fullmatch(r"session_(\d+)", key)))
    turns: list[tuple[str | None, str, str]] = []
    for number in numbers:
        when = conversation.get(f"session_{number}_date_time")
        for place, turn in enumerate(conversation[f"session_{number}"] or [], 1):
            if text := _turn_text(turn):
                turns.append((when or None, turn.get("dia_id") or f"D{number}:{place}", text))
    return turns


def _turn_text(turn: Mapping[str, Any]) -> str:
    said = " ".join(str(turn.get("text") or "").split())
    caption = " ".join(str(turn.get("blip_caption") or "").split())
    shown = f"(shares {caption})" if caption else ""
    text = " ".join(part for part in (said, shown) if part)
    return f"{turn.get('speaker') or 'Somebody'}: {text}" if text else ""


def _chunks(turns: Sequence[tuple[str | None, str, str]]) -> list[dict[str, Any]]:
    """Turns of one session in chunks of at most CHUNK_WORDS words; a longer turn is a chunk."""
    chunks: list[dict[str, Any]] = []
    words, session = 0, ""
    for when, turn_id, text in turns:
        own, size = turn_id.partition(":")[0], len(text.split())
        if not chunks or own != session or words + size > CHUNK_WORDS:
            chunks.append({"text": text, "timestamp": when})
            words = 0
        else:
            chunks[-1]["text"] += f"\n{text}"
        words, session = words + size, own
    return chunks


def _locomo_question(line: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    category, given = line.get("category"), line.get("evidence") or []
    ids = [f"D{int(session)}:{int(turn)}" for session, turn in _EVIDENCE.findall(json.dumps(given))]
    return {
        "question": str(line["question"]).strip(),
        "answers": None if category == 5 else line.get("answer"),
        "kind": f"{category} {CATEGORIES[category]}"
        if isinstance(category, int) and category in CATEGORIES
        else "uncategorised",
        "evidence": [said[one] for one in dict.fromkeys(ids) if one in said],
    }
