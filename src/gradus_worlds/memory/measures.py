"""Figures of an episode beside its reward, its course chunk by chunk, and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import Episode, EpisodeView, ViewPanel
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


_MARKS = {True: "right", False: "wrong"}


def view(episode: Episode) -> EpisodeView:
    """Panels: memory share, the memory at the end, the questions. The browser of episodes shows the calls."""
    outcome = episode.outcome
    panels = [
        ViewPanel(
            kind="lines",
            title="Memory as a share of what was read",
            series={"memory / input": curves(episode)["memory share of input"]},
        ),
        ViewPanel(
            kind="table",
            title="The memory at the end",
            columns=("entry", "category", "content", "since", "from chunk"),
            rows=_memory_rows(outcome.get("memory", {})),
        ),
        ViewPanel(
            kind="table",
            title="Questions",
            columns=("kind", "question", "gold", *READERS, "why", "what was retrieved"),
            rows=[_question_row(question) for question in outcome.get("questions", ())],
        ),
    ]
    return EpisodeView(
        title=f"{outcome.get('world', episode.task.seed)}, by {episode.policy}",
        panels=panels,
        facts=_facts(episode),
    )


def _memory_rows(memory: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (
            str(entry["id"]),
            entry["bank"],
            entry["content"],
            entry["timestamp"] or "",
            "" if entry["source"] is None else str(entry["source"] + 1),
        )
        for entry in memory.get("entries", ())
    ]
    return [("core", "", memory["core"], "", ""), *rows] if memory.get("core") else rows


def _question_row(question: Mapping[str, Any]) -> tuple[str, ...]:
    readings = question["readings"]
    retrieved = [f"{hit['id']} ({hit['score']:.2f}) {hit['content']}" for hit in question["retrieved"]]
    return (
        question["kind"],
        question["question"],
        " or ".join(question["gold"]),
        *(f"{_MARKS[reading['correct']]}: {reading['prediction']}" for reading in readings.values()),
        "\n".join(f"{name}: {reading['why']}" for name, reading in readings.items()),
        "\n".join(retrieved) or "nothing",
    )


def _facts(episode: Episode) -> dict[str, str]:
    figures = metrics(episode)
    names = ("strict_accuracy", "generous_accuracy", "memory_share", "evidence_recall", "facts_right")
    return {name.replace("_", " "): f"{figures[name]:.2f}" for name in names if figures.get(name) is not None}
