"""Runs one client's agent on a scripted model and prints its row of the table in docs/agents.md. Run as ``python matrix.py CLIENT``."""

from __future__ import annotations

import json
import sys
from typing import Any

from frameworks import AGENTS, SAYINGS, Sayings

from gradus.core import Action, Episode, Observation, StopReason
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.spec import agent_spec
from gradus.rollouts import roll_out

ROWS = [{"question": f"What color is thing {number}?", "answer": "red", "hidden": "is red"} for number in range(8)]


class Clerk:
    """A policy that looks first, in one of three ways, and says the color when it has heard it."""

    name = "clerk"

    def __init__(self, first: str, sayings: Sayings) -> None:
        self.first, self.sayings = first, sayings

    def start(self, episodes: Any) -> Any:
        return self

    def act(self, requests: Any) -> list[Action]:
        return [Action(text=self._answer(each.observation)) for each in requests]

    def _answer(self, seen: Observation) -> str:
        """What is next: the framework may send the conversation, or a text of its own with all that was."""
        everything = "\n".join((seen.text, *(message.content for message in seen.messages)))
        if "is red" in everything:
            demands_end = self.sayings.others and "next_tool_name" in everything
            return self.sayings.others[0] if demands_end else self.sayings.colors[0]
        first, self.first = self.first, self.sayings.look
        return first

    def close(self) -> None:
        pass


def _episode(name: str, first: str) -> Episode:
    sayings = SAYINGS.get(name, Sayings())
    spec = agent_spec(AGENTS[name], ROWS, [lambda completions, **_: [1.0] * len(completions)], limits=AgentLimits())
    (episode,) = roll_out(spec, Clerk(first, sayings), [spec.train_task(0)]).episodes
    return episode


def _end(episode: Episode) -> str:
    """How an episode came to its end: with the color, with another answer, broken by the model, or failed by the world."""
    if episode.failure is not None:
        return "broken" if episode.stop is StopReason.BROKEN else "failed"
    return "✓" if "red" in str(episode.outcome.get("result")) else "other"


def row(name: str) -> dict[str, str]:
    """Returns the cells of a client's row."""
    sayings = SAYINGS.get(name, Sayings())
    episode = _episode(name, sayings.look)
    if episode.failure is not None:
        print(episode.failure.message, file=sys.stderr)
    continued = episode.metrics.get("continued_calls")
    return {
        "client": name,
        "calls a tool": _end(episode),
        "two calls at once": "-"
        if sayings.look != Sayings.look
        else _end(_episode(name, f"{sayings.look}\n{sayings.look}")),
        "no such tool": _end(_episode(name, sayings.unknown)),
        "go on": "-" if continued is None else f"{continued:.0%}",
        "overruled": ", ".join(sorted(episode.outcome.get("overruled", {}))) or "-",
    }


if __name__ == "__main__":
    print(json.dumps(row(sys.argv[1])))
