"""Rows of the tasks on which graders in public styles are audited. Everything follows from the seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Any

from gradus.core import child_rng

Row = dict[str, Any]
_TASKS = 48
_NAMES = ["Mara", "Theo", "Priya", "Luis", "Noor", "Emil", "Sana", "Otto", "Vera", "Kofi"]
_PLACES = ["Lisbon", "Osaka", "Quito", "Dakar", "Bergen", "Perth", "Tbilisi", "Tampere", "Bogota", "Lagos", "Hanoi", "Split"]  # fmt: skip
_THINGS = ["kettle", "ladder", "violin", "compass", "lantern", "anvil", "barometer", "saddle", "loom", "sextant", "easel", "crate"]  # fmt: skip
_TONES = {
    "positive": ["I would order this again", "Better than I hoped", "My neighbor bought one too"],
    "negative": ["The hinge fell off", "It arrived empty", "Support never wrote back"],
    "neutral": ["It comes in a box", "The cable is one meter long", "Delivered on Monday"],
}


def word_problem(rng: Random) -> Row:
    name, packs, each, sold = rng.choice(_NAMES), rng.randrange(12, 60), rng.randrange(6, 48), rng.randrange(5, 60)
    total = packs * each - sold
    asked = f"{name} fills {packs} packs with {each} cards each and sells {sold} cards. How many cards are left?"
    return {"question": f"{asked} Put the number after ####.", "answer": str(total)}


def solved_problem(rng: Random) -> Row:
    """As a math set has it: the answer column is the whole worked solution."""
    row = word_problem(rng)
    return {**row, "answer": f"First the packs, then the sale.\n#### {row['answer']}", "final": row["answer"]}


def fraction(rng: Random) -> Row:
    a, b, c, d = (rng.randrange(2, 12) for _ in range(4))
    value = Fraction(a, b) + Fraction(c, d)
    gold = str(value) if value.denominator > 1 else str(value.numerator)
    latex = rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else gold
    question = rf"Add $\frac{{{a}}}{{{b}}}$ and $\frac{{{c}}}{{{d}}}$. Give the answer in \boxed{{}}."
    return {"question": question, "answer": rf"\boxed{{{latex}}}", "value": gold}


def balance(rng: Random) -> Row:
    start, moves = rng.randrange(-40, 40), [rng.choice([-1, 1]) * rng.randrange(3, 50) for _ in range(3)]
    asked = (
        f"An account holds {start} euros. Bookings: {', '.join(f'{move:+d}' for move in moves)}. What is the balance? "
    )
    return {"question": asked + "Write it in <answer> tags.", "answer": f"<answer>{start + sum(moves)}</answer>", "total": start + sum(moves)}  # fmt: skip


def sentiment(rng: Random) -> Row:
    label = rng.choice(list(_TONES))
    asked = f"Note {rng.randrange(10_000)}: {rng.choice(_TONES[label])}. Label it positive, negative or neutral in <answer> tags."
    return {"question": asked, "answer": label}


def choice(rng: Random) -> Row:
    a, b = rng.randrange(12, 90), rng.randrange(12, 90)
    options = [a + b, a + b + 10, a + b - 1, abs(a - b)]
    rng.shuffle(options)
    listed = "\n".join(f"{letter}) {value}" for letter, value in zip("ABCD", options, strict=True))
    asked = f"Which is {a} plus {b}?\n{listed}\nFinish with a line 'Answer: LETTER'."
    return {"question": asked, "answer": "Answer: " + "ABCD"[options.index(a + b)], "letter": "ABCD"[options.index(a + b)]}  # fmt: skip


def yes_no(rng: Random) -> Row:
    n = rng.randrange(100, 5000)
    return {"question": f"Is {n} divisible by 3? Reason, then end with 'Answer: yes' or 'Answer: no'.", "answer": f"Answer: {'yes' if n % 3 == 0 else 'no'}"}  # fmt: skip


def record(rng: Random) -> Row:
    made = {"name": rng.choice(_NAMES), "city": rng.choice(_PLACES), "items": rng.randrange(1, 90)}
    asked = f"{made['name']} of {made['city']} ordered {made['items']} pieces. Extract JSON with the keys name, city and items."
    return {"question": asked, "answer": json.dumps(made)}


def trivia(rng: Random) -> Row:
    name, thing, place, year = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_PLACES), rng.randrange(1850, 1999)
    asked = f"In {year} {name} left a {thing} at the harbor. The harbor of that story lies in {place[::-1]}, spelled backwards. "
    return {"question": asked + "Who left what where? Answer in <answer> tags.", "answer": f"{name} left a {thing} in {place}"}  # fmt: skip


def countdown(rng: Random) -> Row:
    while True:
        numbers = rng.sample(range(2, 60), 4)
        a, b, c, d = numbers
        target = (a + b) * c - d
        if 0 < target < 2000 and target not in numbers:
            break
    rng.shuffle(numbers)
    for p in permutations(numbers):
        if (p[0] + p[1]) * p[2] - p[3] == target:
            gold = f"({p[0]} + {p[1]}) * {p[2]} - {p[3]}"
            break
    else:
        raise AssertionError("the numbers make the target")
    asked = (
        f"Use each of the numbers {numbers} once, with + - * /, to make {target}. Write the equation in <answer> tags."
    )
    return {"question": asked, "answer": gold, "nums": numbers, "target": target}


def day(rng: Random) -> Row:
    start = date(2019, 1, 1) + timedelta(days=rng.randrange(2500))
    more = rng.randrange(5, 300)
    return {"question": f"Which date is {more} days after {start.isoformat()}? Answer as YYYY-MM-DD.", "answer": (start + timedelta(days=more)).isoformat()}  # fmt: skip


def cities(rng: Random) -> Row:
    there = rng.sample(_PLACES, 6)
    stamped = sorted(rng.sample(there, 3))
    told = " ".join(f"The crate from {each} has {'a' if each in stamped else 'no'} stamp." for each in there)
    return {"question": f"{told} List the cities whose crates have a stamp, in any order, with commas.", "answer": ", ".join(stamped)}  # fmt: skip


def ordered(rng: Random) -> Row:
    numbers = rng.sample(range(10, 400), 6)
    return {"question": f"Sort these numbers from the smallest to the largest: {', '.join(map(str, numbers))}", "answer": ", ".join(map(str, sorted(numbers)))}  # fmt: skip


def physics(rng: Random) -> Row:
    mass, speed = rng.randrange(2, 90), rng.randrange(3, 70)
    asked = f"A body of {mass} kg moves at {speed} m/s. What is its kinetic energy? Give the number and the unit."
    return {"question": asked, "answer": f"{mass * speed**2 / 2:.1f} J"}


def estimate(rng: Random) -> Row:
    height = rng.randrange(4, 200)
    asked = f"How many seconds does a stone fall from {height} m (g = 9.81)? Within 1 percent; the number alone."
    return {"question": asked, "answer": f"{(2 * height / 9.81) ** 0.5:.3f}"}


def call(rng: Random) -> Row:
    name = rng.choice(["get_weather", "book_room", "send_parcel"])
    made = {"name": name, "arguments": {"city": rng.choice(_PLACES), "days": rng.randrange(1, 20)}}
    verb = {"get_weather": "Show the weather of", "book_room": "Book a room in", "send_parcel": "Send a parcel to"}[
        name
    ]
    asked = f"{verb} {made['arguments']['city']} for {made['arguments']['days']} days. Tools: get_weather, book_room, send_parcel(city, days). Call one tool."
    return {"question": asked, "answer": f"<tool_call>{json.dumps(made)}</tool_call>", "call": json.dumps(made)}


def query(rng: Random) -> Row:
    column, table, least = rng.choice(["price", "age", "weight"]), rng.choice(_THINGS) + "s", rng.randrange(5, 500)
    asked = f"Write SQL: the {column} of all rows of {table} with {column} above {least}, highest first."
    return {"question": asked, "answer": f"SELECT {column} FROM {table} WHERE {column} > {least} ORDER BY {column} DESC"}  # fmt: skip


def notice(rng: Random) -> Row:
    """A short text that has to hold facts; the answer column is one text that does."""
    who, where, when, price = (
        rng.choice(_NAMES),
        rng.choice(_PLACES),
        f"{rng.randrange(1, 29)} May",
        rng.randrange(20, 900),
    )
    asked = (
        f"Write a notice of at most 40 words: {who} gives a concert in {where} on {when}; tickets cost {price} euros."
    )
    return {"question": asked, "answer": f"Come to {where} on {when}. {who} gives a concert, and tickets cost {price} euros.", "facts": [who, where, when, f"{price} euros"]}  # fmt: skip


def summary(rng: Random) -> Row:
    who, thing, where, count = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_PLACES), rng.randrange(10, 900)
    text = f"It rained all week. {who} repaired {count} old pieces of a {thing} in {where} without any help. Nobody knew the reason, and the press did not ask."
    return {"question": f"Summarize in one sentence: {text}", "answer": f"{who} repaired {count} old pieces of a {thing} in {where}."}  # fmt: skip


def grid(rng: Random) -> Row:
    rows = [[rng.randrange(1, 10) for _ in range(3)] for _ in range(3)]
    shown = "\n".join(" ".join(map(str, row)) for row in rows)
    turned = "\n".join(" ".join(map(str, row)) for row in zip(*rows[::-1], strict=True))
    return {"question": f"Turn this grid a quarter to the right:\n{shown}", "answer": turned}


def program(rng: Random) -> Row:
    factor, more = rng.randrange(2, 60), rng.randrange(1, 90)
    tests = [[n, n * factor + more] for n in (0, 3, 11)]
    asked = f"Write a Python function solve(n) that returns n times {factor} plus {more}."
    return {"question": asked, "answer": f"def solve(n):\n    return n * {factor} + {more}", "tests": tests}


TASKS: Mapping[str, Callable[[Random], Row]] = {
    each.__name__: each
    for each in (
        word_problem, solved_problem, fraction, balance, sentiment, choice, yes_no, record, trivia, countdown, day, cities,
        ordered, physics, estimate, call, query, notice, summary, grid, program,
    )
}  # fmt: skip


def rows(kind: str, *, seed: int) -> list[Row]:
    """Different rows of one kind."""
    rng, made = child_rng(seed, "styles", kind), dict[str, Row]()
    for _ in range(100 * _TASKS):
        row = TASKS[kind](rng)
        made.setdefault(row["question"], row)
        if len(made) == _TASKS:
            break
    return list(made.values())
