"""Figures of an episode beside its reward, its course chunk by chunk, and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import fsum
from typing import Any

from gradus.core import Episode, EpisodeView, ViewPanel
from gradus_worlds.memory.graders import balanced_accuracy, marks_of

Json = Mapping[str, Any]
Figures = dict[str, float | None]

READERS = ("reader", "strict", "generous")


def metrics(episode: Episode) -> Figures:
    """Accuracy, token F1 and evidence recall, of all questions and by kind, memory share of the input, and calls per chunk.

    ``reader_agreement``: share of questions that reader and ``strict`` both got right or both wrong. ``reader_disagreement``: share of
    questions asked twice whose second answer differed.
    """
    outcome = episode.outcome
    turns = outcome.get("turns", ())
    questions = outcome.get("questions", ())
    succeeded = [ok for turn in turns for ok in turn["succeeded"]]
    right = sum(turn["right"] for turn in turns)
    facts = sum(turn["facts"] for turn in turns)
    figures: Figures = {
        **_answers(questions),
        "reader_agreement": _mean(_agreement(question) for question in questions),
        "reader_disagreement": _mean(not each["agrees"] for each in questions if each["agrees"] is not None),
        "balanced_accuracy": balanced_accuracy(marks_of(questions, outcome["counted"])) if questions else None,
        "memory_share": outcome["memory_words"] / max(1, outcome["input_words"]) if turns else None,
        "entries": float(turns[-1]["entries"]) if turns else None,
        "calls": _mean(turn["calls"] for turn in turns),
        "failed_calls": _mean(not ok for ok in succeeded),
        "facts_right": _share(right, facts),
    }
    by_kind: dict[str, list[Json]] = {}
    for question in questions:
        by_kind.setdefault(question["kind"], []).append(question)
    for kind in sorted(by_kind):
        figures |= _answers(by_kind[kind], f"/{kind}")
    return figures


def curves(episode: Episode) -> Mapping[str, Sequence[float | None]]:
    """By chunk: words in the memory as a share of what was read so far, entries, and share of the chunk's facts kept rightly."""
    turns = episode.outcome.get("turns", ())
    words = accumulate(turn["input_words"] for turn in turns)
    return {
        "memory share of input": [turn["memory_words"] / max(1, read) for turn, read in zip(turns, words, strict=True)],
        "entries": [float(turn["entries"]) for turn in turns],
        "facts kept": [_share(turn["right"], turn["facts"]) for turn in turns],
    }


def _answers(questions: Sequence[Json], suffix: str = "") -> Figures:
    """Accuracy and F1 of each reader, and evidence recall: ``strict_f1``, or ``strict_f1/former`` of a kind of question."""
    figures: Figures = {}
    for reader in READERS:
        readings = [question["readings"][reader] for question in questions if _was_read(question, reader)]
        figures[f"{reader}_accuracy{suffix}"] = _mean(reading["correct"] for reading in readings)
        figures[f"{reader}_f1{suffix}"] = _mean(reading["f1"] for reading in readings)
    figures[f"evidence_recall{suffix}"] = _mean(question["evidence_recall"] for question in questions)
    return figures


def _was_read(question: Json, reader: str) -> bool:
    """False if the reader gave no answer; the rules always do."""
    return reader != "reader" or question["error"] is None


def _agreement(question: Json) -> bool | None:
    if question["error"]:
        return None
    readings = question["readings"]
    return readings["reader"]["correct"] == readings["strict"]["correct"]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fsum(numbers) / len(numbers) if numbers else None


def _share(part: int, total: int) -> float | None:
    return part / total if total else None


def view(episode: Episode) -> EpisodeView:
    """Panels: memory share, the memory at the end, the questions. The browser of episodes shows the calls."""
    outcome = episode.outcome
    share = curves(episode)["memory share of input"]
    return EpisodeView(
        title=f"{outcome.get('world', episode.task.seed)}, by {episode.policy}",
        panels=[
            ViewPanel(kind="lines", title="Memory as a share of what was read", series={"memory / input": share}),
            ViewPanel(
                kind="table",
                title="The memory at the end",
                columns=("entry", "category", "content", "since", "from chunk"),
                rows=_memory_rows(outcome["memory"]) if outcome else (),
            ),
            ViewPanel(
                kind="table",
                title="Questions",
                columns=("kind", "question", "gold", *READERS, "why", "what was retrieved"),
                rows=[_question_row(question) for question in outcome.get("questions", ())],
            ),
        ],
        facts=_facts(episode),
    )


def _memory_rows(memory: Json) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    if memory["core"]:
        rows.append(("core", "", memory["core"], "", ""))
    for entry in memory["entries"]:
        chunk = "" if entry["source"] is None else str(entry["source"] + 1)
        rows.append((str(entry["id"]), entry["bank"], entry["content"], entry["timestamp"] or "", chunk))
    return rows


def _question_row(question: Json) -> Sequence[str]:
    readings = question["readings"]
    retrieved = [f"{hit['id']} ({hit['score']:.2f}) {hit['content']}" for hit in question["retrieved"]]
    predictions: list[str] = []
    reasons: list[str] = []
    for name in READERS:
        reading = readings[name]
        mark = "right" if reading["correct"] else "wrong"
        predictions.append(f"{mark}: {reading['prediction']}")
        reasons.append(f"{name}: {reading['why']}")
    return (
        question["kind"],
        question["question"],
        " or ".join(question["gold"]),
        *predictions,
        "\n".join(reasons),
        "\n".join(retrieved) or "nothing",
    )


def _facts(episode: Episode) -> dict[str, str]:
    figures = metrics(episode)
    names = [f"{reader}_accuracy" for reader in READERS] + ["memory_share", "evidence_recall", "facts_right"]
    facts: dict[str, str] = {}
    for name in names:
        figure = figures[name]
        if figure is not None:
            facts[name.replace("_", " ")] = f"{figure:.2f}"
    return facts
