"""The data set ``chain_sum`` of reasoning-gym with two numbers of one digit, plus or minus; its own texts and its own right answers."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from asking import Prompt, asked_by, with_prompted
from reasoning_gym import create_dataset  # pyright: ignore[reportMissingImports]

import gradus

SYSTEM = "You are a calculator. Write the result as a number and nothing else."
_HELD_OUT = 0.3  # of the facts


def rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training rows and held-out rows. 3 + 8 and 8 + 3 are one fact."""
    made = create_dataset("chain_sum", size=1500, seed=0, min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    different = {item["question"]: str(item["answer"]) for item in made}
    facts: dict[str, list[dict[str, str]]] = {}
    for question, answer in sorted(different.items()):
        fact = _fact(question)
        facts.setdefault(fact, []).append({"question": question, "answer": answer, "fact": fact})
    order = sorted(facts)
    Random(0).shuffle(order)
    first = round(_HELD_OUT * len(order))
    held_out, trained = ([row for fact in part for row in facts[fact]] for part in (order[:first], order[first:]))
    return trained, held_out


def _fact(question: str) -> str:
    a, sign, b = re.findall(r"\d+|[+-]", question)[-3:]
    return f"{a} - {b}" if sign == "-" else " + ".join(sorted((a, b)))


def right(row: Any, text: str) -> float:
    """1 if the result stands anywhere in the text, so that no answer loses for its form."""
    return float(row["answer"] in re.findall(r"(?<!\d )-?\d+", text))


_train, _test = rows()
PROMPTS = {  # prompts.py tries them on training tasks
    "calculator": Prompt(system=SYSTEM),
    "bare": Prompt(),
    "number alone": Prompt(question="{question}\nReply with the number alone."),
    "examples that say the sum": Prompt(
        shots=[(row["question"], f"{row['question'].rpartition(': ')[2]} {row['answer']}") for row in _train[:4]]
    ),
    "four examples": Prompt(system=SYSTEM, shots=[(row["question"], row["answer"]) for row in _train[:4]]),
}
BEST = PROMPTS["examples that say the sum"]
spec = with_prompted(
    asked_by(gradus.one_turn(_train, ["final_answer"], judge=right, name="chain_sum", test=_test), BEST),
    BEST,
    cluster=lambda episode: episode.outcome["columns"]["fact"],
)
