"""Scripted policies of the shop: the teacher, a careless pupil of his, and those who settle cases without looking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from gradus.core import ConfigError, Observation, Policy, child_rng
from gradus.environments.shop.cases import CUSTOMERS, IDS, REASONS, REMEDIES
from gradus.policies.scripted import FunctionPolicy, Script, policy_factory

__all__ = ["DONE", "call", "make_policies", "random_answer", "remedy_call", "said"]

DONE = "done"
_SPOILT = ("name", "argument", "value", "order", "cut")  # ways in which a careless call is invalid


def call(name: str, **arguments: Any) -> str:
    """A call in the plain form.

    >>> call("refund", order=17, share="half")
    '{"name": "refund", "arguments": {"order": 17, "share": "half"}}'
    """
    return json.dumps({"name": name, "arguments": arguments})


def remedy_call(remedy: str, order: int) -> str:
    """The call that gives a remedy; the end if there is none to give."""
    name, _, share = remedy.partition(" ")
    if name == "nothing":
        return DONE
    return call(name, order=order, share=share) if share else call(name, order=order)


def said(seen: Observation) -> str:
    """What stands in the last message."""
    return seen.messages[-1].content if seen.messages else seen.text


def _read(seen: Observation, script: Script) -> None:
    """Keep what an observation tells: who calls, the order, the reason, the rule."""
    memory, text = script.memory, said(seen)
    if match := re.match(r"I am (\w+) \. It is about the (\w+) \.", text):
        memory["customer"], memory["item"] = match.groups()
    for id, item, days in re.findall(r"^(\d+) : (\w+) \d+ \w+ (\d+) days ago$", text, re.MULTILINE):
        if item == memory.get("item"):
            memory["order"], memory["days"] = int(id), int(days)
    for reason, words in REASONS.items():
        if text == words:
            memory["reason"] = reason
    if match := re.match(r"\w+ : within (\d+) days ([\w ]+) , later ([\w ]+) \.", text):
        limit, within, later = match.groups()
        memory["due"] = within if memory.get("days", 0) <= int(limit) else later


def _next(memory: dict[str, Any]) -> str:
    """What the teacher does with what it knows."""
    if "order" not in memory:
        return call("orders", customer=memory["customer"])
    if "reason" not in memory:
        return call("ask", about="reason")
    if "due" not in memory:
        return call("rule", reason=memory["reason"])
    if memory.get("acted"):
        return DONE
    memory["acted"] = True
    return remedy_call(memory["due"], memory["order"])


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
            text = remedy_call(
                rng.choice([each for each in REMEDIES if each != script.memory["due"]]), script.memory["order"]
            )
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
        return call(rng.choice(("reason", "customer", "order")), **arguments)
    if kind == "argument":
        return call(written["name"], about=next(iter(arguments.values())), reason="missing")
    if kind == "value":
        return call(written["name"], **dict.fromkeys(arguments, "full"))
    if kind == "order" and "order" in arguments:
        return call(written["name"], **{**arguments, "order": rng.choice(IDS)})
    return text[: text.rindex(" ")]


def _always(remedy: str) -> Callable[[Observation, Script], str]:
    """Gives the same to everybody who calls, without asking anything but the order's number."""

    def answer(seen: Observation, script: Script) -> str:
        _read(seen, script)
        if "order" not in script.memory:
            return call("orders", customer=script.memory["customer"])
        if script.memory.get("acted"):
            return DONE
        script.memory["acted"] = True
        return remedy_call(remedy, script.memory["order"])

    return answer


def _obliging(seen: Observation, script: Script) -> str:
    """Gives what the customer wants."""
    text = said(seen)
    wishes = {"all my money": "refund full", "half of my": "refund half", "a new one": "replace", "to cancel": "cancel"}
    script.memory.setdefault("wish", next((each for words, each in wishes.items() if words in text), "nothing"))
    return _always(script.memory["wish"])(seen, script)


def _give_everything(seen: Observation, script: Script) -> str:
    """Refunds every order of the customer in full."""
    if "customer" not in script.memory:
        _read(seen, script)
        return call("orders", customer=script.memory["customer"])
    for id in re.findall(r"^(\d+) :", said(seen), re.MULTILINE):
        script.memory.setdefault("left", []).append(int(id))
    left: list[int] = script.memory.get("left", [])
    return call("refund", order=left.pop(), share="full") if left else DONE


def random_answer(seed: int) -> str:
    """Some legal answer, drawn without looking."""
    rng = child_rng(seed, "shop", "answer")
    order = rng.choice(IDS)
    return rng.choice(
        (
            call("orders", customer=rng.choice(CUSTOMERS)),
            call("ask", about=rng.choice(("reason", "wish"))),
            call("rule", reason=rng.choice(tuple(REASONS))),
            remedy_call(rng.choice(REMEDIES), order),
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
        "deny": policy_factory("deny", lambda seen, script: DONE),
        "generous": policy_factory("generous", _always("refund full")),
        "obliging": policy_factory("obliging", _obliging),
        "give-everything": policy_factory("give-everything", _give_everything),
        "replace-all": policy_factory("replace-all", _always("replace")),
    }
