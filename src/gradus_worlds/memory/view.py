"""Draws an episode: the size of the memory, what stands in it at the end, and every question with why it was right or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import Episode, EpisodeView, ViewPanel
from gradus_worlds.memory.measures import curves, metrics
from gradus_worlds.memory.readers.reading import READERS

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
