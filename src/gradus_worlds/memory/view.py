"""How an episode is drawn: the memory as it grows, chunk by chunk, and every question with why it was right or wrong.

Each chunk shows what it changed and not the whole memory, which stands at the end: a memory that is repeated at every chunk makes a
long episode's picture grow with the square of its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Episode, EpisodeView, Turn, ViewPanel
from gradus_worlds.memory.measures import curves, metrics

_MARKS = {True: "right", False: "wrong"}


def view(episode: Episode) -> EpisodeView:
    """Panels: memory share, the calls at every chunk, what each chunk changed, the memory at the end, the questions."""
    outcome = episode.outcome
    lines = curves(episode)
    memory = _Replay()
    rows = [memory.row(turn, outcome.get("facts", ()), place) for place, turn in enumerate(episode.turns)]
    panels = [
        ViewPanel(
            kind="lines",
            title="Memory as a share of what was read",
            series={"memory / input": lines["memory share of input"]},
        ),
        ViewPanel(kind="strip", title="What was done at each chunk", labels=[_deed(turn) for turn in episode.turns]),
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


class _Replay:
    """The memory rebuilt from the calls that stand in the turns, to say what each of them changed."""

    def __init__(self) -> None:
        self.entries: dict[int, str] = {}

    def row(self, turn: Turn, facts: Sequence[Sequence[Mapping[str, Any]]], place: int) -> tuple[str, ...]:
        gold = facts[place] if place < len(facts) else ()
        when = turn.data.get("timestamp")
        changes = [self._change(call) for call in turn.action_data.get("calls", ())]
        return (
            f"{place + 1}" + (f" ({when})" if when else ""),
            str(turn.data.get("chunk", turn.observation)),
            "\n".join(_fact(fact) for fact in gold) or "nothing",
            "\n".join(changes) or "nothing",
            str(len(self.entries)),
        )

    def _change(self, call: Mapping[str, Any]) -> str:
        """Carry out a call and say what it did."""
        verb, number, content = str(call["name"] or "unreadable"), call["entry_id"], call["content"]
        if not call["ok"]:
            return f"{verb.removeprefix('memory_')} refused: {call['message']}"
        if verb == "memory_delete":
            return f"- {number} {self.entries.pop(number, '')}"
        if number is not None:
            before = self.entries.get(number)
            self.entries[number] = content
            return (
                f"+ {number} [{call['bank']}] {content}" if before is None else f"~ {number} {content} (was: {before})"
            )
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


def _deed(turn: Turn) -> str:
    """One word for a turn: the most telling of what was done."""
    calls = turn.action_data.get("calls", ())
    if any(not call["ok"] for call in calls):
        return "refused"
    done = {str(call["name"]) for call in calls}
    order = ("memory_delete", "memory_update", "memory_insert", "core_memory_update")
    return next((name.removeprefix("memory_") for name in order if name in done), "noop")


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
