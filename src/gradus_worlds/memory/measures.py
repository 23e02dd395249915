"""Figures of an episode beside its reward, and its course chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import Episode
from gradus_worlds.memory.graders import balanced_accuracy, reader_accuracy

_TOOLS = {
    "inserts": "memory_insert",
    "updates": "memory_update",
    "deletes": "memory_delete",
    "core_updates": "core_memory_update",
    "noops": "memory_noop",
}


def metrics(episode: Episode) -> Mapping[str, float | None]:
    """Accuracy by reader and by kind of question, token F1, memory share of the input, evidence recall, and calls per chunk."""
    outcome = episode.outcome
    turns, questions = outcome.get("turns", ()), outcome.get("questions", ())
    figures: dict[str, float | None] = {
        "strict_accuracy": reader_accuracy(episode, "strict"),
        "generous_accuracy": reader_accuracy(episode, "generous"),
        "balanced_accuracy": balanced_accuracy(questions) if questions else None,
        "strict_f1": _mean(question["readings"]["strict"]["f1"] for question in questions),
        "generous_f1": _mean(question["readings"]["generous"]["f1"] for question in questions),
        "evidence_recall": _mean(question["evidence_recall"] for question in questions),
        "memory_share": outcome["memory_words"] / max(1, outcome["input_words"]) if turns else None,
        "entries": float(turns[-1]["entries"]) if turns else None,
        "calls": _mean(turn["calls"] for turn in turns),
        "failed_calls": _share(
            sum(turn["attempts"] - turn["succeeded"] for turn in turns), sum(turn["attempts"] for turn in turns)
        ),
        "facts_right": _share(sum(turn["right"] for turn in turns), sum(turn["facts"] for turn in turns)),
    }
    for name, tool in _TOOLS.items():
        figures[name] = float(sum(turn["by_tool"].get(tool, 0) for turn in turns)) if turns else None
    for reader in _readers(questions):
        readings = [question["readings"][reader] for question in questions]
        figures.setdefault(f"{reader}_accuracy", _mean(float(reading["correct"]) for reading in readings))
        figures.setdefault(f"{reader}_f1", _mean(reading["f1"] for reading in readings))
    return {**figures, **_by_kind(questions)}


def curves(episode: Episode) -> Mapping[str, Sequence[float | None]]:
    """By chunk: words in the memory as a share of what was read so far, entries, and share of the chunk's facts kept rightly."""
    read, share = 0, list[float | None]()
    turns = episode.outcome.get("turns", ())
    for turn in turns:
        read += turn["input_words"]
        share.append(turn["memory_words"] / max(1, read))
    return {
        "memory share of input": share,
        "entries": [float(turn["entries"]) for turn in turns],
        "facts kept": [_share(turn["right"], turn["facts"]) for turn in turns],
    }


def _by_kind(questions: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Accuracy and F1 of each reader, and evidence recall, for each kind of question that was asked: ``strict_f1/former``."""
    figures: dict[str, float | None] = {}
    for kind in sorted({question["kind"] for question in questions}):
        own = [question for question in questions if question["kind"] == kind]
        for reader in _readers(own):
            readings = [question["readings"][reader] for question in own]
            figures[f"{reader}_accuracy/{kind}"] = _mean(float(reading["correct"]) for reading in readings)
            figures[f"{reader}_f1/{kind}"] = _mean(reading["f1"] for reading in readings)
        figures[f"evidence_recall/{kind}"] = _mean(question["evidence_recall"] for question in own)
    return figures


def _readers(questions: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(questions[0]["readings"]) if questions else []


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
