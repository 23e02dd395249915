"""Scripted policies of the shop: the teacher, a careless pupil of his, and those who settle cases without looking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from gradus.core import ConfigError, Observation, Policy, child_rng
from gradus.policies.scripted import FunctionPolicy, Script, policy_factory
from gradus_worlds.shop.desk import CUSTOMERS, ITEMS, REASONS, REMEDIES

DONE = "done"
_ORDER = re.compile(r"order (\d+) :")
_RULE = re.compile(r"\w+ , (?:recent|old) : (\w+)")
_SPOILT = ("name", "argument", "value", "cut")  # ways in which a careless call is invalid


def call(name: str, **arguments: Any) -> str:
    """A call in the plain form.

    >>> call("refund", share="half")
    '{"name": "refund", "arguments": {"share": "half"}}'
    """
    return json.dumps({"name": name, "arguments": arguments})


def remedy_call(remedy: str) -> str:
    """The call that gives a remedy."""
    return call("refund", share=remedy) if remedy in ("full", "half") else call(remedy)


def said(seen: Observation) -> str:
    """Returns what stands in the last message."""
    return seen.messages[-1].content if seen.messages else seen.text


def _read(seen: Observation, script: Script) -> None:
    """Keep what an observation tells: who calls, the order, the reason, the rule."""
    memory, text = script.memory, said(seen)
    if match := re.match(r"I am (\w+) \. It is about the (\w+) \.", text):
        memory["customer"], memory["item"] = match.groups()
    if match := _ORDER.match(text):
        memory["order"] = match[1]
    for reason, words in REASONS.items():
        if text == words:
            memory["reason"] = reason
    if match := _RULE.match(text):
        memory["due"] = match[1]


def _find(memory: dict[str, Any]) -> str:
    return call("find", customer=memory["customer"], item=memory["item"])


def _next(memory: dict[str, Any]) -> str:
    """Returns what the teacher does with what it knows."""
    if "order" not in memory:
        return _find(memory)
    if "reason" not in memory:
        return call("ask", about="reason")
    if "due" not in memory:
        return call("rule", reason=memory["reason"])
    if memory.get("acted"):
        return DONE
    memory["acted"] = True
    return remedy_call(memory["due"])


def _teach(seen: Observation, script: Script) -> str:
    _read(seen, script)
    return _next(script.memory)


def _careless(share: float) -> Callable[[Observation, Script], str]:
    """The teacher's steps; a remedy is guessed in ``share`` of the cases, and a call spoilt in a third of that share."""

    def answer(seen: Observation, script: Script) -> str:
        _read(seen, script)
        if said(seen).startswith("Error:"):
            script.memory["acted"] = False
        rng = script.rng
        if "due" in script.memory and not script.memory.get("acted") and rng.random() < share:
            script.memory["acted"] = True
            text = remedy_call(rng.choice([each for each in REMEDIES if each != script.memory["due"]]))
        else:
            text = _next(script.memory)
        return _spoil(text, rng) if text != DONE and rng.random() < share / 3 else text

    return answer


def _spoil(text: str, rng: Random) -> str:
    """A call with a mistake in it, of the kinds that models make."""
    written = json.loads(text)
    arguments = written["arguments"]
    kind = rng.choice(_SPOILT)
    if kind == "name":
        return call(rng.choice(("reason", "customer", "share")), **arguments)
    if kind == "argument":
        return call(written["name"], about="wish", reason="missing")
    if kind == "value":
        return call(written["name"], **dict.fromkeys(arguments, "full"))
    return text[: text.rindex(" ")]


def _always(remedy: str) -> Callable[[Observation, Script], str]:
    """Gives the same to everybody who calls, without asking anything."""

    def answer(seen: Observation, script: Script) -> str:
        _read(seen, script)
        if "order" not in script.memory:
            return _find(script.memory)
        if script.memory.get("acted"):
            return DONE
        script.memory["acted"] = True
        return remedy_call(remedy)

    return answer


def _obliging(seen: Observation, script: Script) -> str:
    """Gives what the customer wants."""
    text = said(seen)
    wishes = {"all my money": "full", "half of my": "half", "a new one": "replace", "to cancel": "cancel"}
    script.memory.setdefault("wish", next((each for words, each in wishes.items() if words in text), "refuse"))
    return _always(script.memory["wish"])(seen, script)


def random_answer(seed: int) -> str:
    """Some legal answer, drawn without looking."""
    rng = child_rng(seed, "shop", "answer")
    return rng.choice(
        (
            call("find", customer=rng.choice(CUSTOMERS), item=rng.choice(ITEMS)),
            call("ask", about=rng.choice(("reason", "wish"))),
            call("rule", reason=rng.choice(tuple(REASONS))),
            remedy_call(rng.choice(REMEDIES)),
        )
    )


def make_policies() -> dict[str, Callable[[str | None], Policy]]:
    """Factories by name."""

    def careless(argument: str | None) -> Policy:
        try:
            share = float(argument or 0.5)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise ConfigError(f"careless:SHARE needs a number from 0 to 1, got {argument!r}")
        return FunctionPolicy(f"careless:{share:g}", _careless(share))

    return {
        "teacher": policy_factory("teacher", _teach),
        "careless": careless,
        "silent": policy_factory("silent", lambda seen, script: DONE),
        "refuse-all": policy_factory("refuse-all", _always("refuse")),
        "generous": policy_factory("generous", _always("full")),
        "obliging": policy_factory("obliging", _obliging),
        "replace-all": policy_factory("replace-all", _always("replace")),
    }
