"""Runs one client's agent on a scripted model and prints its row of the table in docs/agents.md. Run as ``python matrix.py CLIENT``."""

from __future__ import annotations

import json
import sys
from typing import Any

from frameworks import AGENTS, COLORS, LOOK, SAYINGS

from gradus.core import Action, Observation
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.spec import agent_spec
from gradus.rollouts import roll_out

ROWS = [{"question": f"What color is thing {number}?", "answer": "red", "hidden": "is red"} for number in range(8)]


class Clerk:
    """A policy that looks first and says the color then."""

    name = "clerk"

    def __init__(self, client: str) -> None:
        self.look, self.red, _ = SAYINGS.get(client, (LOOK, *COLORS))

    def start(self, episodes: Any) -> Any:
        return self

    def act(self, requests: Any) -> list[Action]:
        return [Action(text=self._answer(each.observation)) for each in requests]

    def _answer(self, seen: Observation) -> str:
        heard = "is red" in seen.text or any("is red" in message.content for message in seen.messages)
        return self.red if heard else self.look

    def close(self) -> None:
        pass


def row(name: str) -> dict[str, str]:
    """Returns the cells of a client's row."""
    spec = agent_spec(AGENTS[name], ROWS, [lambda completions, **_: [1.0] * len(completions)], limits=AgentLimits())
    (episode,) = roll_out(spec, Clerk(name), [spec.train_task(0)]).episodes
    outcome = episode.outcome
    continued = episode.metrics.get("continued_calls")
    return {
        "client": name,
        "looks, then answers": "yes" if "red" in str(outcome.get("result")) else str(episode.failure)[:400],
        "go on": "-" if continued is None else f"{continued:.0%}",
        "overruled": ", ".join(sorted(outcome.get("overruled", {}))) or "-",
    }


if __name__ == "__main__":
    print(json.dumps(row(sys.argv[1])))
