"""Runs one client's agent on a scripted model and prints its row of the table in docs/agents.md. Run as ``python matrix.py CLIENT``."""

import json
import sys

from frameworks import AGENTS, SAYINGS, Sayings

from gradus.core import Episode, Observation, StopReason
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.spec import agent_spec
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.rollouts import roll_out

ROWS = [{"question": f"What color is thing {number}?", "answer": "red", "hidden": "is red"} for number in range(8)]


def clerk(first: str, sayings: Sayings) -> FunctionPolicy:
    """A policy that looks first, in one of three ways, and says the color when it has heard it."""

    def answer(seen: Observation, script: Script) -> str:
        """What is next: the framework may send the conversation, or a text of its own with all that was."""
        everything = "\n".join((seen.text, *(message.content for message in seen.messages)))
        if "is red" in everything:
            demands_end = sayings.others and "next_tool_name" in everything
            return sayings.others[0] if demands_end else sayings.colors[0]
        following, script.memory["following"] = script.memory.get("following", first), sayings.look
        return following

    return FunctionPolicy("clerk", answer)


def _episode(name: str, first: str) -> Episode:
    sayings = SAYINGS.get(name, Sayings())
    spec = agent_spec(AGENTS[name], ROWS, [lambda completions, **_: [1.0] * len(completions)], limits=AgentLimits())
    (episode,) = roll_out(spec, clerk(first, sayings), [spec.train_task(0)]).episodes
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
