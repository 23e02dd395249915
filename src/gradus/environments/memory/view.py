"""How an episode is drawn: the memory as it grows, chunk by chunk, and every question with why it was right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Episode, EpisodeView, Turn, ViewPanel
from gradus.environments.memory.measures import curves, metrics

__all__ = ["view"]

_MARKS = {True: "right", False: "wrong"}


def view(episode: Episode) -> EpisodeView:
    """Panels: memory share, the calls at every chunk, the memory after each chunk that changed it, the questions."""
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
            title="The memory as it grows",
            columns=("chunk", "what was said", "what there was to keep", "calls", "memory afterwards"),
            rows=rows,
        ),
        ViewPanel(
            kind="table",
            title="Questions",
            columns=("kind", "question", "gold", "strict", "generous", "why", "what was retrieved"),
            rows=[_question_row(question) for question in outcome.get("questions", ())],
        ),
    ]
    return EpisodeView(
        title=f"{outcome.get('world', episode.task.seed)}, played by {episode.policy}",
        panels=panels,
        facts=_facts(episode),
    )


class _Replay:
    """The memory rebuilt from the calls that stand in the turns."""

    def __init__(self) -> None:
        self.core = ""
        self.entries: dict[int, tuple[str, str]] = {}

    def row(self, turn: Turn, facts: Sequence[Sequence[Mapping[str, Any]]], place: int) -> tuple[str, ...]:
        calls = turn.action_data.get("calls", ())
        for call in calls:
            self._apply(call)
        listed = [f"{entry_id} [{bank}] {content}" for entry_id, (bank, content) in self.entries.items()]
        if self.core:
            listed.insert(0, f"core: {self.core}")
        gold = facts[place] if place < len(facts) else ()
        when = turn.data.get("timestamp")
        return (
            f"{place + 1}" + (f" ({when})" if when else ""),
            str(turn.data.get("text", turn.observation)),
            "\n".join(_fact(fact) for fact in gold) or "nothing",
            "\n".join(_call(call) for call in calls),
            "\n".join(listed) or "empty",
        )

    def _apply(self, call: Mapping[str, Any]) -> None:
        if not call["ok"]:
            return
        if call["name"] == "memory_delete":
            self.entries.pop(call["entry_id"], None)
        elif call["entry_id"] is not None:
            self.entries[call["entry_id"]] = (call["bank"], call["content"])
        elif call["name"] == "core_memory_update":
            self.core = call["content"]


def _call(call: Mapping[str, Any]) -> str:
    verb = str(call["name"] or "unreadable").removeprefix("memory_")
    if not call["ok"]:
        return f"{verb} refused: {call['message']}"
    target = f" {call['entry_id']}" if call["entry_id"] is not None else ""
    return f"{verb}{target}" + (f": {call['content']}" if call["content"] and verb != "delete" else "")


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


def _question_row(question: Mapping[str, Any]) -> tuple[str, ...]:
    strict, generous = question["readings"]["strict"], question["readings"]["generous"]
    retrieved = [f"{hit['id']} ({hit['score']:.2f}) {hit['content']}" for hit in question["retrieved"]]
    return (
        question["kind"],
        question["question"],
        " or ".join(question["gold"]),
        f"{_MARKS[strict['correct']]}: {strict['prediction']}",
        f"{_MARKS[generous['correct']]}: {generous['prediction']}",
        f"strict: {strict['why']}; generous: {generous['why']}",
        "\n".join(retrieved) or "nothing",
    )


def _facts(episode: Episode) -> dict[str, str]:
    found = metrics(episode)
    names = ("strict_accuracy", "generous_accuracy", "memory_share", "evidence_recall", "facts_right")
    return {name.replace("_", " "): f"{found[name]:.2f}" for name in names if found.get(name) is not None}
