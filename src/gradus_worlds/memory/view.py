"""Draws an episode: the memory as it grows, chunk by chunk, and every question with why it was right or wrong.

Each chunk shows what it changed and not the whole memory, which stands at the end: a memory that is repeated at every chunk makes a
long episode's picture grow with the square of its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Episode, EpisodeView, ViewPanel
from gradus_worlds.memory.measures import curves, metrics

_MARKS = {True: "right", False: "wrong"}


def view(episode: Episode) -> EpisodeView:
    """Panels: memory share, the calls at every chunk, what each chunk changed, the memory at the end, the questions."""
    outcome = episode.outcome
    lines = curves(episode)
    rows = [_row(episode, place) for place in range(len(episode.turns))]
    panels = [
        ViewPanel(
            kind="lines",
            title="Memory as a share of what was read",
            series={"memory / input": lines["memory share of input"]},
        ),
        ViewPanel(
            kind="table",
            title="The memory as it grows (+ written, ~ rewritten, - forgotten)",
            columns=("chunk", "what was said", "what there was to keep", "what changed", "entries"),
            rows=rows,
        ),
        ViewPanel(
            kind="table",
            title="The memory at the end",
            columns=("entry", "category", "content", "since", "from chunk"),
            rows=_memory_rows(outcome.get("memory", {})),
        ),
        _questions(outcome.get("questions", ())),
    ]
    return EpisodeView(
        title=f"{outcome.get('world', episode.task.seed)}, by {episode.policy}",
        panels=panels,
        facts=_facts(episode),
    )


def _row(episode: Episode, place: int) -> tuple[str, ...]:
    """A chunk: what was said, what there was to keep, and what its calls changed."""
    turn, outcome = episode.turns[place], episode.outcome
    facts: Sequence[Sequence[Mapping[str, Any]]] = outcome.get("facts", ())
    accounts: Sequence[Mapping[str, Any]] = outcome.get("turns", ())
    when = turn.data.get("timestamp")
    return (
        f"{place + 1}" + (f" ({when})" if when else ""),
        str(turn.data.get("chunk", turn.observation)),
        "\n".join(_fact(fact) for each in facts[place : place + 1] for fact in each) or "nothing",
        "\n".join(_change(call) for call in turn.action_data.get("calls", ())) or "nothing",
        "".join(str(account["entries"]) for account in accounts[place : place + 1]),
    )


def _change(call: Mapping[str, Any]) -> str:
    """Returns what a call did."""
    verb, number, content = str(call["name"] or "unreadable"), call["entry_id"], call["content"]
    if not call["ok"]:
        return f"{verb.removeprefix('memory_')} refused: {call['message']}"
    if number is not None:
        signs = {"memory_insert": "+", "memory_update": "~", "memory_delete": "-"}
        return f"{signs[verb]} {number} [{call['bank']}] {content}"
    return f"~ core: {content}" if verb == "core_memory_update" else "noop"


def _memory_rows(memory: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (str(entry["id"]), entry["bank"], entry["content"], entry["timestamp"] or "", _chunk(entry["source"]))
        for entry in memory.get("entries", ())
    ]
    return [("core", "", memory["core"], "", ""), *rows] if memory.get("core") else rows


def _chunk(source: int | None) -> str:
    return "" if source is None else str(source + 1)


def _fact(fact: Mapping[str, Any]) -> str:
    about = " ".join(str(fact[key]) for key in ("entity", "attribute", "value") if fact[key])
    return f"{fact['kind']}: {about}" + (f" (was {fact['former']})" if fact["former"] else "")


def _questions(questions: Sequence[Mapping[str, Any]]) -> ViewPanel:
    """Every question, what each reader made of it and why, and what was retrieved."""
    readers = list(questions[0]["readings"]) if questions else []
    return ViewPanel(
        kind="table",
        title="Questions",
        columns=("kind", "question", "gold", *readers, "why", "what was retrieved"),
        rows=[_question_row(question) for question in questions],
    )


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
