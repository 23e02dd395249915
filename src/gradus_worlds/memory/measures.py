"""Figures of an episode beside its reward, and its course chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import Episode
from gradus_worlds.memory.graders import balanced_accuracy
from gradus_worlds.memory.readers.reading import READERS


def metrics(episode: Episode) -> Mapping[str, float | None]:
    """Accuracy, token F1 and evidence recall, of all questions and by kind, memory share of the input, and calls per chunk."""
    outcome = episode.outcome
    turns, questions = outcome.get("turns", ()), outcome.get("questions", ())
    figures = {
        **_answers(questions),
        "balanced_accuracy": balanced_accuracy(questions) if questions else None,
        "memory_share": outcome["memory_words"] / max(1, outcome["input_words"]) if turns else None,
        "entries": float(turns[-1]["entries"]) if turns else None,
        "calls": _mean(turn["calls"] for turn in turns),
        "failed_calls": _share(
            sum(turn["attempts"] - turn["succeeded"] for turn in turns), sum(turn["attempts"] for turn in turns)
        ),
        "facts_right": _share(sum(turn["right"] for turn in turns), sum(turn["facts"] for turn in turns)),
    }
    for kind in sorted({question["kind"] for question in questions}):
        figures |= _answers([question for question in questions if question["kind"] == kind], f"/{kind}")
    return figures


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


def _answers(questions: Sequence[Mapping[str, Any]], suffix: str = "") -> dict[str, float | None]:
    """Accuracy and F1 of each reader, and evidence recall: ``strict_f1``, or ``strict_f1/former`` of a kind of question."""
    figures: dict[str, float | None] = {}
    for reader in READERS:
        readings = [question["readings"][reader] for question in questions]
        figures[f"{reader}_accuracy{suffix}"] = _mean(float(reading["correct"]) for reading in readings)
        figures[f"{reader}_f1{suffix}"] = _mean(reading["f1"] for reading in readings)
    figures[f"evidence_recall{suffix}"] = _mean(question["evidence_recall"] for question in questions)
    return figures


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
