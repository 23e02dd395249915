"""LoCoMo's long conversations (arXiv 2402.17753) as its users have them: JSON with dates, captions and a few irregular fields.

Each conversation becomes a record like those of one's own worlds. Answers may be integers or missing (questions of category 5 have
none: the answer is unknown), evidence ids may be garbled or name turns that are not there; such evidence is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError
from gradus_worlds.memory.worlds.jsonl import file_source, world_of
from gradus_worlds.memory.worlds.records import Source, World

CATEGORIES: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
CHUNK_WORDS = 120
_EVIDENCE = re.compile(r"D\s*:?\s*(\d+)\s*:\s*(\d+)")


def locomo_source(path: str) -> Source:
    """Worlds from a LoCoMo file: a list of conversations, or one."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the conversations in {path} cannot be read: {error}") from error
    conversations = data if isinstance(data, list) else [data]
    worlds = [_world(one, place, path) for place, one in enumerate(conversations)]
    return file_source(f"memory:locomo:{path}", "LoCoMo's long conversations", worlds)


def _world(data: Any, place: int, path: str) -> World:
    where = f"conversation {place} of {path}"
    if not isinstance(data, dict) or not isinstance(data.get("conversation"), dict):
        raise ConfigError(f"{where} has no 'conversation'; expected LoCoMo's JSON")
    turns = _turns(data["conversation"])
    said = {turn_id: text for _, turn_id, text in turns}
    asked = [line for line in data.get("qa") or [] if isinstance(line, dict) and line.get("question")]
    record = {"chunks": _chunks(turns), "questions": [_question(line, said) for line in asked]}
    return world_of(record, str(data.get("sample_id") or f"conversation-{place}"), where)


def _turns(conversation: Mapping[str, Any]) -> list[tuple[str | None, str, str]]:
    """All turns in order as (date of the session, id such as D1:2, text)."""
    numbers = sorted(int(match[1]) for key in conversation if (match := re.fullmatch(r"session_(\d+)", key)))
    turns: list[tuple[str | None, str, str]] = []
    for number in numbers:
        when = conversation.get(f"session_{number}_date_time")
        for place, turn in enumerate(conversation[f"session_{number}"] or [], 1):
            if isinstance(turn, dict):
                text = _turn_text(turn)
                if text:
                    turns.append((str(when) if when else None, str(turn.get("dia_id") or f"D{number}:{place}"), text))
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


def _question(line: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    category, given = line.get("category"), line.get("evidence") or []
    named = CATEGORIES.get(category) if isinstance(category, int) else None
    texts = [str(item) for item in given] if isinstance(given, list) else [str(given)]
    ids = [f"D{int(session)}:{int(turn)}" for text in texts for session, turn in _EVIDENCE.findall(text)]
    return {
        "question": str(line["question"]).strip(),
        "answers": None if category == 5 else line.get("answer"),
        "kind": f"{category} {named}" if named else "uncategorised",
        "evidence": [said[one] for one in dict.fromkeys(ids) if one in said],
    }
