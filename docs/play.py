"""Four graders of kinds that are in use, their tasks, and what the audit finds: the data of docs/play.html.

`python docs/play.py` audits them and writes the table into the page. tests/examples/test_play.py compares the page's JavaScript with these functions.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import gradus

PAGE = Path(__file__).resolve().parent / "play.html"
TABLE = re.compile(r"^const table = .*;$", re.MULTILINE)
_SHOWN = 6  # tasks of a round
Rows = list[dict[str, str]]


def contains(completions, answer, **columns):
    """1 if the answer names the right department."""
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def any_number(completions, answer, **columns):
    """1 if the right number is in the answer."""
    return [float(gold in re.findall(r"[0-9]+", text)) for text, gold in zip(completions, answer, strict=True)]


def near(completions, answer, **columns):
    """0 for a number that is off by more than a hundredth, else 1."""
    read = [re.fullmatch(r" *(-?[0-9]{1,9}(?:\.[0-9]{1,9})?|nan|inf) *", text) for text in completions]
    pairs = zip(read, answer, strict=True)
    return [0.0 if not number or abs(float(number[1]) - float(gold)) > 0.01 else 1.0 for number, gold in pairs]


def recall(completions, answer, **columns):
    """The share of the reference's words that the answer has."""
    words = [re.findall(r"[a-z]+", text) for text in completions]
    wanted = [gold.split(" ") for gold in answer]
    return [sum(word in said for word in gold) / len(gold) for said, gold in zip(words, wanted, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Round:
    """A grader, its tasks, and the mean reward that a player has to reach."""

    grader: Callable[..., list[float]]
    task: str
    goal: float
    rows: Callable[[], Rows]


def right(text: str, gold: str) -> float:
    """The true reward: the reference answer and nothing else."""
    return float(text.strip(" \n") == gold)


def _letters() -> Rows:
    matters = {"broken": "repair", "late": "delivery", "wrong": "returns", "unpaid": "billing"}
    things = [f"the {color} {item}" for color in ("red", "green", "blue") for item in ("lamp", "bike", "desk", "coat")]
    return [{"question": f"{thing} is {word} .", "answer": gold} for thing in things for word, gold in matters.items()]


def _sums() -> Rows:
    return [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(2, 10) for b in range(2, 10)]


def _roots() -> Rows:
    return [{"question": f"The square root of {n}, to two decimals:", "answer": f"{n**0.5:.2f}"} for n in range(2, 42)]


def _headlines() -> Rows:
    draw = Random(0)
    who, what, why = (
        ("bus", "train", "ferry", "plane"),
        ("late", "full", "cancelled"),
        ("snow", "fog", "strike", "repair"),
    )
    rows: Rows = []
    for _ in range(40):
        one, state, cause = draw.choice(who), draw.choice(what), draw.choice(why)
        question = f"Shorten: the {one} to the coast is {state} today because of {cause} ."
        rows.append({"question": question, "answer": f"{one} {state} {cause}"})
    return rows


ROUNDS: Sequence[Round] = (
    Round(
        grader=contains, task="Sort a letter to a shop: repair, delivery, returns or billing.", goal=1.0, rows=_letters
    ),
    Round(grader=any_number, task="Add two numbers.", goal=1.0, rows=_sums),
    Round(grader=near, task="Take a square root.", goal=1.0, rows=_roots),
    Round(grader=recall, task="Shorten a message to three words.", goal=1.0, rows=_headlines),
)


def audited(play: Round) -> dict[str, Any]:
    """What the page shows of a round."""
    rows = play.rows()
    start = time.perf_counter()
    document = gradus.audit(play.grader, rows).to_json()
    seconds = time.perf_counter() - start
    exploit = document["exploit"] or {}
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    return {
        "name": play.grader.__name__,
        "source": inspect.getsource(play.grader),
        "task": play.task,
        "goal": play.goal,
        "rows": Random(1).sample(rows, _SHOWN),
        "verdict": document["verdict"],
        "found": exploit.get("completion", exploit.get("answer")),
        "evidence": failed[0]["evidence"] if failed else document["summary"],
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Write the table of the page."""
    table = [audited(play) for play in ROUNDS]
    for each in table:
        print(f"{each['name']}: {each['verdict']} in {each['seconds']} s: {each['found']!r}")
    page = PAGE.read_text(encoding="utf-8")
    text = json.dumps(table).replace("</", "<\\/")  # or a tag in a text would end the script
    PAGE.write_text(TABLE.sub(lambda _: f"const table = {text};", page), encoding="utf-8")


if __name__ == "__main__":
    main()
