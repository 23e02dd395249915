"""`gradus check AGENT`: one episode on a scripted model, and what it shows of how the agent calls its model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from gradus.core import Asked, EnvironmentSpec, Episode, Grader, Observation, Turn
from gradus.core.calls import write_calls
from gradus.core.findings import Finding
from gradus.core.records import ToolCall
from gradus.core.values import Json, JsonDict
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.rollouts import roll_out
from gradus.rollouts.grading import continued_calls

_SECONDS = 10.0  # that the agent has
_SLOW = 2.0  # seconds of a call beyond which waiting for all episodes is costly
_DEEP = 8  # levels of a schema


def _answer(observation: Observation, _: Script) -> str:
    """Calls the first tool that an agent offers once in each conversation, and speaks then; JSON if a form is asked for."""
    asked = observation.asked or Asked()
    has_result = any(message.role == "tool" for message in observation.messages)
    if asked.tools and (asked.choice or not has_result):
        functions: list[Json] = [tool["function"] for tool in asked.tools]
        named = [function for function in functions if function["name"] == asked.choice]
        function = (named or functions)[0]
        arguments = sample(function.get("parameters") or {})
        return write_calls([ToolCall(name=function["name"], arguments=arguments)])
    return "It is 4." if asked.schema is None else json.dumps(sample(asked.schema))


def sample(schema: Json, root: Json | None = None, depth: int = _DEEP) -> Any:
    """Return a small value that fits a JSON schema; an empty object for one that says nothing. ``root``: what references refer to.

    >>> sample({"type": "object", "properties": {"n": {"type": "integer"}}})
    {'n': 1}
    """
    root = root or schema
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        schema = cast(Json, root.get("$defs", {}).get(name, {}))
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return sample(schema[name][0], root, depth)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = cast(list[str], kind)[0]
    if kind == "object" and depth:
        properties: dict[str, Json] = schema.get("properties") or {}
        return {name: sample(field, root, depth - 1) for name, field in properties.items()}
    if kind == "array" and depth:
        return [sample(schema.get("items") or {}, root, depth - 1)]
    plain: JsonDict = {"string": "x", "integer": 1, "number": 1.0, "boolean": True, "null": None}
    return plain.get(str(kind), {})


def _nothing(episode: Episode) -> float:
    """The true reward of an episode that is not judged."""
    return 0.0


def check_agent(spec: EnvironmentSpec) -> tuple[Finding, ...]:
    """Run one episode on a scripted model. Return findings on refusals, parameters that the run decides, calls that begin anew,
    answers that nobody waited for, parallel calls, and time."""
    grader = Grader(name="none", compute=lambda episodes: [0.0] * len(episodes))
    seconds = min(_SECONDS, spec.stepping.episode_seconds or _SECONDS)
    # Rewards are left out: what earns nothing yet is no fault of the agent.
    hasty = replace(spec, stepping=replace(spec.stepping, episode_seconds=seconds), true_reward=_nothing)
    import_module("openai")  # once a process, and no time of the agent's
    started = time.monotonic()
    model = FunctionPolicy("scripted", _answer)
    (episode,) = roll_out(hasty, model, [spec.train_task(0)], grader=grader).episodes
    return tuple(_findings(episode, time.monotonic() - started))


def _findings(episode: Episode, seconds: float) -> Iterator[Finding]:
    turns = episode.turns
    outcome = episode.outcome
    failure = episode.failure
    if failure is None:
        result = str(outcome.get("result"))[:60]
        yield Finding(
            status="pass", subject="agent", evidence=f"{len(turns)} calls of the model; it returned {result!r}"
        )
    elif "the endpoint refused" in failure.message:
        remedy = "leave the parameter out; docs/agents.md has a table of what a client may ask"
        yield Finding(status="fail", subject="refused", evidence=failure.message, remedy=remedy)
    elif not turns:
        yield Finding(status="fail", subject="agent", evidence=failure.message, remedy="run the agent by itself first")
    else:
        remedy = "such an episode gets failed_reward; name exceptions that are no fault of the model in missing="
        yield Finding(status="warn", subject="agent", evidence=failure.message, remedy=remedy)
    for name, value in outcome.get("overruled", {}).items():
        evidence = f"{name} = {value!r} is the run's to decide; what the agent asks for has no effect"
        yield Finding(status="note", subject="overruled", evidence=evidence)
    yield from _of_calls(turns, outcome.get("anew", ()), continued_calls(episode))
    each = seconds / max(1, len(turns))
    evidence = f"{each:.2f} s a call, {seconds:.1f} s in all, without a model"
    if each > _SLOW:
        remedy = "set wait_ms, so that others do not wait for slow tools"
        yield Finding(status="warn", subject="time", evidence=evidence, remedy=remedy)
    else:
        yield Finding(status="pass", subject="time", evidence=evidence)


def _of_calls(turns: Sequence[Turn], anew: Sequence[str], continued: float | None) -> Iterator[Finding]:
    if continued is not None:
        evidence = f"{continued:.0%} of {len(turns) - 1} later calls go on with an earlier one"
        if continued == 0:
            remedy = "send earlier messages as they were"
            yield Finding(status="warn", subject="continued calls", evidence=evidence, remedy=remedy)
        else:
            yield Finding(status="pass", subject="continued calls", evidence=evidence)
    for why in dict.fromkeys(anew):
        yield Finding(status="note", subject="begins anew", evidence=why)
    undelivered = sum(turn.undelivered for turn in turns)
    if undelivered:
        remedy = "raise the time that the client waits"
        evidence = f"{undelivered} of {len(turns)} answers came when the client had left"
        yield Finding(status="warn", subject="undelivered", evidence=evidence, remedy=remedy)
    parallel = sum(turn.asked is not None and turn.asked.parallel for turn in turns)
    if parallel:
        evidence = f"{parallel} of {len(turns)} calls waited beside another one; they draw by what they ask"
        yield Finding(status="note", subject="parallel calls", evidence=evidence)
