"""The user's own worlds: one a line, ``{chunks: [{text, timestamp?}], questions: [{question, answers, evidence?}]}``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gradus.core import ConfigError
from gradus_worlds.memory.worlds.files import file_source, known_answers, locate_evidence, with_facts
from gradus_worlds.memory.worlds.records import Chunk, Evidence, Question, Source, World


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
    try:
        # A text may hold what str.splitlines takes for the end of a line.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the worlds in {path} cannot be read: {error}") from error
    worlds = [_world(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    return file_source(f"memory:jsonl:{path}", f"your own dialogues in {Path(path).name}", worlds)


def _world(line: str, number: int, path: str) -> World:
    try:
        world = _WorldLine.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {number} of {path} is not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ConfigError(
            f"line {number} of {path}: {where}: {first['msg']}; expected {{chunks: [{{text, timestamp?}}], "
            "questions: [{question, answers, evidence?}]}"
        ) from error
    chunks = tuple(Chunk(text=chunk.text, timestamp=chunk.timestamp) for chunk in world.chunks)
    questions = tuple(_question(line, chunks, f"line {number} of {path}") for line in world.questions)
    return with_facts(World(name=f"{Path(path).stem}-{number}", chunks=chunks, questions=questions))


def _question(line: _QuestionLine, chunks: tuple[Chunk, ...], where: str) -> Question:
    return Question(
        text=line.question,
        answers=known_answers(line.answers),
        kind=line.kind,
        evidence=tuple(_evidence(item, chunks, where) for item in line.evidence),
    )


def _evidence(item: int | str, chunks: tuple[Chunk, ...], where: str) -> Evidence:
    if isinstance(item, str):
        evidence = locate_evidence(chunks, item)
        if evidence is None:
            raise ConfigError(
                f"{where}: evidence {item[:60]!r} stands in no chunk; give words of a chunk, or its index"
            )
        return evidence
    if not 0 <= item < len(chunks):
        raise ConfigError(f"{where}: evidence {item} is no chunk; there are chunks 0 to {len(chunks) - 1}")
    return Evidence(chunk=item, text=chunks[item].text)
