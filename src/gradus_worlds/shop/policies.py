"""Scripted policies of the shop: the teacher, a careless pupil of his, and those who settle cases without looking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from gradus.core import Observation, Policy, child_rng
from gradus.policies.scripted import Answer, FunctionPolicy, Script, policy_factory, read_share
from gradus_worlds.shop.desk import CUSTOMERS, ITEMS, REASONS, REMEDIES, WISHES

DONE = "done"


def call(name: str, **arguments: Any) -> str:
    """A call in the plain form.

    >>> call("refund", share="half")
    '{"name": "refund", "arguments": {"share": "half"}}'
    """
    return json.dumps({"name": name, "arguments": arguments})


def remedy_call(remedy: str) -> str:
    """The call that gives a remedy."""
    return call("refund", share=remedy) if remedy in ("full", "half") else call(remedy)


def _last_text(observation: Observation) -> str:
    """Returns the text of the last message."""
    return observation.messages[-1].content if observation.messages else observation.text


# What a message says -> the names under which a script remembers it.
_NOTES: Mapping[re.Pattern[str], Sequence[str]] = {
    re.compile(r"I am (\w+) \. It is about the (\w+) \."): ("customer", "item"),
    re.compile(r"order (\d+) :"): ("order",),
    re.compile(r"\w+ , (?:recent|old) : (\w+)"): ("due",),
}
_REASON_OF = {words: reason for reason, words in REASONS.items()}


def _read(observation: Observation, script: Script) -> dict[str, Any]:
    """Remember what an observation tells: who calls, the order, the reason, the rule."""
    memory = script.memory
    text = _last_text(observation)
    for pattern, names in _NOTES.items():
        match = pattern.match(text)
        if match:
            memory.update(zip(names, match.groups(), strict=True))
    if text in _REASON_OF:
        memory["reason"] = _REASON_OF[text]
    return memory


def _settle(memory: dict[str, Any], remedy: str) -> str:
    """The call of a remedy for the order at hand; after that, the end."""
    if "order" not in memory:
        return call("find", customer=memory["customer"], item=memory["item"])
    if memory.get("acted"):
        return DONE
    memory["acted"] = True
    return remedy_call(remedy)


def _teach(observation: Observation, script: Script) -> str:
    return _next(_read(observation, script))


def _next(memory: dict[str, Any]) -> str:
    """Returns what the teacher does with what it knows."""
    if "order" in memory and "reason" not in memory:
        return call("ask", about="reason")
    if "order" in memory and "due" not in memory:
        return call("rule", reason=memory["reason"])
    return _settle(memory, memory.get("due", ""))


def _careless(share: float) -> Answer:
    """The teacher's steps; a remedy is guessed in ``share`` of the cases, and a call spoilt in a third of that share."""

    def answer(observation: Observation, script: Script) -> str:
        memory = _read(observation, script)
        rng = script.rng
        # The call that should have settled the case was refused; try again.
        if _last_text(observation).startswith("Error:"):
            memory["acted"] = False
        decides = "due" in memory and not memory.get("acted")
        if decides and rng.random() < share:
            wrong = [remedy for remedy in REMEDIES if remedy != memory["due"]]
            text = _settle(memory, rng.choice(wrong))
        else:
            text = _next(memory)
        is_spoilt = text != DONE and rng.random() < share / 3
        return _spoil(text, rng) if is_spoilt else text

    return answer


def _spoil(text: str, rng: Random) -> str:
    """A call with a mistake in it, of the kinds that models make."""
    written = json.loads(text)
    name = written["name"]
    arguments = written["arguments"]
    kind = rng.choice(("name", "argument", "value", "cut"))
    if kind == "name":
        return call(rng.choice(("reason", "customer", "share")), **arguments)
    if kind == "argument":
        return call(name, about="wish", reason="missing")
    if kind == "value":
        return call(name, **dict.fromkeys(arguments, "full"))
    return text[: text.rindex(" ")]


def _always(remedy: str) -> Answer:
    """Gives the same to everybody who calls, without asking anything."""
    return lambda observation, script: _settle(_read(observation, script), remedy)


def _obliging(observation: Observation, script: Script) -> str:
    """Gives what the customer wants."""
    memory = _read(observation, script)
    for remedy, words in WISHES.items():
        if words in _last_text(observation):
            memory["wish"] = remedy
    return _settle(memory, memory["wish"])


def random_answer(seed: int) -> str:
    """Some legal answer, drawn without looking."""
    rng = child_rng(seed, "shop", "answer")
    calls = (
        call("find", customer=rng.choice(CUSTOMERS), item=rng.choice(ITEMS)),
        call("ask", about=rng.choice(("reason", "wish"))),
        call("rule", reason=rng.choice(tuple(REASONS))),
        remedy_call(rng.choice(REMEDIES)),
    )
    return rng.choice(calls)


def _make_careless(argument: str | None) -> Policy:
    share = read_share("careless", argument, 0.5)
    return FunctionPolicy(f"careless:{share:g}", _careless(share))


_ANSWERS: Mapping[str, Answer] = {
    "teacher": _teach,
    "silent": lambda observation, script: DONE,
    "refuse-all": _always("refuse"),
    "generous": _always("full"),
    "obliging": _obliging,
    "replace-all": _always("replace"),
}
POLICIES: Mapping[str, Callable[[str | None], Policy]] = {
    **{name: policy_factory(name, answer) for name, answer in _ANSWERS.items()},
    "careless": _make_careless,
}
