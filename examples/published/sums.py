"""Small sums, for a published model that cannot yet do most of them: ``gradus run examples/published/sums.toml --model FILE.gguf``."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from asking import Prompt, with_prompted

import gradus

SYSTEM = "You are a calculator. Write the result as a number and nothing else."
_HELD_OUT = 60  # facts of 210


def rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training rows and held-out rows. A fact is an unordered pair: if 8 + 15 is trained, 15 + 8 is not held out."""
    facts = [(a, b) for a in range(1, 21) for b in range(a, 21)]
    Random(0).shuffle(facts)
    held_out, trained = (
        [_row(*each) for fact in part for each in sorted({fact, fact[::-1]})]
        for part in (facts[:_HELD_OUT], facts[_HELD_OUT:])
    )
    return trained, held_out


def _row(a: int, b: int) -> dict[str, str]:
    return {"question": f"{a} + {b} =", "answer": str(a + b), "fact": f"{min(a, b)} + {max(a, b)}"}


def right(row: Any, text: str) -> float:
    """1 if the sum stands anywhere in the text, so that no answer loses for its form."""
    return float(row["answer"] in re.findall(r"\d+", text))


_train, _test = rows()
PROMPTS = {  # prompts.py tries them on training tasks
    "calculator": Prompt(system=SYSTEM),
    "calculator, asked in words": Prompt(system=SYSTEM, question="What is {question} ?"),
    "number alone": Prompt(question="What is {question} ? Reply with the number alone."),
    "bare": Prompt(),
    "four examples": Prompt(system=SYSTEM, shots=[(row["question"], row["answer"]) for row in _train[:4]]),
    "sixteen examples": Prompt(system=SYSTEM, shots=[(row["question"], row["answer"]) for row in _train[:16]]),
    "examples that say the sum": Prompt(
        shots=[(row["question"], row["question"] + " " + row["answer"]) for row in _train[:4]]
    ),
}
spec = with_prompted(
    gradus.one_turn(_train, ["final_answer"], judge=right, name="sums", system_prompt=SYSTEM, test=_test),
    PROMPTS["examples that say the sum"],
    cluster=lambda episode: episode.outcome["columns"]["fact"],
)
