"""Sound graders of eleven kinds of one-turn tasks, and sound ways to write each of them differently."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any

from gradus.auditing.text.tasks import Judge, TextTask


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of task. ``task`` makes a question and its gold answer; ``read`` an answer's value, ValueError if it has none.

    ``right``: says of a question whether a value is right, where several are. ``traits``: what flaws ask for.
    """

    name: str
    task: Callable[[Random], tuple[str, str]]
    read: Callable[[str], Any]
    right: Callable[[str, Any], bool] | None = None
    traits: frozenset[str] = frozenset()

    def judge(self, task: TextTask, answer: str) -> float:
        """The sound grader: 1 for a right answer, else 0."""
        try:
            value = self.read(answer)
        except ValueError:
            return 0.0
        if self.right is not None:
            return float(self.right(task.prompt, value))
        return float(value == self.read(task.gold or ""))


def _number(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,12}", text.strip()):
        raise ValueError("no number")
    return int(text)


def _sum(rng: Random) -> tuple[str, str]:
    a, b = rng.randrange(10, 900), rng.randrange(10, 900)
    sign = rng.choice("+-")
    return f"What is {a} {sign} {b}?", str(a + b if sign == "+" else a - b)


def _sorted(rng: Random) -> tuple[str, str]:
    numbers = rng.sample(range(-60, 300), rng.randrange(4, 8))
    return f"Sort these numbers in increasing order, as a JSON list: {numbers}", str(sorted(numbers))


def _list(text: str) -> list[int]:
    value = json.loads(text[:5000]) if text.count("[") == 1 else None
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise ValueError("no list of numbers")
    return value


def _evens(rng: Random) -> tuple[str, str]:
    numbers = [*rng.sample(range(2, 200, 2), rng.randrange(3, 6)), *rng.sample(range(1, 200, 2), 4)]
    even = [n for n in numbers if n % 2 == 0]
    rng.shuffle(numbers)
    return f"Which of {', '.join(map(str, numbers))} are even? Any order, with commas.", ", ".join(map(str, even))


def _set(text: str) -> frozenset[int]:
    numbers = [_number(part) for part in text.strip().split(",")]
    if len(set(numbers)) != len(numbers):
        raise ValueError("a number twice")
    return frozenset(numbers)


_WORD_LIST = (
    "apple Birch cedar Dune elm Fern grove Hazel iris Juniper kelp Linden moss Nettle oak Pine quince Rose sage Thyme"
)
_WORDS = _WORD_LIST.split()


def _backwards(rng: Random) -> tuple[str, str]:
    words = rng.sample(_WORDS, rng.randrange(4, 7))
    question = f"Write these words in the opposite order, in upper and lower case as they are: {' '.join(words)}"
    return question, " ".join(reversed(words))


def _words(text: str) -> tuple[str, ...]:
    if not re.fullmatch(r"\s*[A-Za-z]+(?:\s+[A-Za-z]+)*\s*", text[:2000]):
        raise ValueError("no words")
    return tuple(text.split())


def _later(rng: Random) -> tuple[str, str]:
    day = date(2020, 1, 1) + timedelta(days=rng.randrange(3000))
    days = rng.randrange(3, 300)
    return f"Which date is {days} days after {day}? Write it as YYYY-MM-DD.", str(day + timedelta(days=days))


def _date(text: str) -> date:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip(), re.ASCII):
        raise ValueError("no date")
    return date.fromisoformat(text.strip())


def _choice(rng: Random) -> tuple[str, str]:
    a, b = rng.randrange(10, 90), rng.randrange(10, 90)
    options = rng.sample([a + b, a + b + 1, a + b + 10, a + b - 2], 4)
    shown = "\n".join(f"{letter}) {value}" for letter, value in zip("ABCD", options, strict=True))
    return f"Which is {a} plus {b}? Answer with a letter.\n{shown}", "ABCD"[options.index(a + b)]


def _letter(text: str) -> str:
    if not re.fullmatch(r"\(?[A-Da-d]\)?\.?", text.strip()):
        raise ValueError("no letter")
    return text.strip().strip("().").upper()


def _record(rng: Random) -> tuple[str, str]:
    record = {"name": rng.choice(_WORDS), "age": rng.randrange(18, 90), "member": rng.random() < 0.5}
    member = "is" if record["member"] else "is not"
    text = f"{record['name']} is {record['age']} years old and {member} a member."
    return f"Write as a JSON object with name, age and member: {text}", json.dumps(record)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text) if text.count("{") == 1 and text.count("[") == 0 else None
    if not isinstance(value, dict) or not isinstance(value.get("member"), bool) or type(value.get("age")) is not int:
        raise ValueError("not by the schema")
    return value


def _heaps(rng: Random) -> tuple[str, str]:
    while True:
        heaps = [rng.randrange(1, 30) for _ in range(3)]
        rest = heaps[0] ^ heaps[1] ^ heaps[2]
        moves = [(size - (size ^ rest), place) for place, size in enumerate(heaps, 1) if size ^ rest < size]
        if rest and moves:
            taken, place = rng.choice(moves)
            question = (
                f"Nim with heaps of {heaps[0]}, {heaps[1]} and {heaps[2]}. Write a winning move, as: take N from heap K"
            )
            return question, f"take {taken} from heap {place}"


def _move(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"take (\d{1,3}) from heap ([123])", text.strip(), re.ASCII)
    if match is None:
        raise ValueError("no move")
    return int(match[1]), int(match[2])


def _wins(question: str, move: tuple[int, int]) -> bool:
    heaps = [int(size) for size in re.findall(r"\d+", question)][:3]
    taken, place = move
    if not 0 < taken <= heaps[place - 1]:
        return False
    heaps[place - 1] -= taken
    return heaps[0] ^ heaps[1] ^ heaps[2] == 0


def _order(rng: Random) -> tuple[str, str]:
    city, day, unit = rng.choice(_WORDS), rng.randrange(1, 29), rng.choice(["celsius", "kelvin"])
    call = f'weather(city="{city}", day={day}, unit="{unit}")'
    return f"Write the call of weather(city, day, unit) for {city} on day {day} in {unit}, with named arguments.", call


def _call(text: str) -> tuple[str, dict[str, str]]:
    match = re.fullmatch(r"(\w+)\(((?:\s*\w+\s*=\s*(?:\"[^\"]*\"|\d+)\s*,?)*)\)", text.strip()[:500])
    if match is None:
        raise ValueError("no call")
    pairs = re.findall(r"(\w+)\s*=\s*(\"[^\"]*\"|\d+)", match[2])
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an argument twice")
    return match[1], dict(pairs)


def _road(rng: Random) -> tuple[str, str]:
    a, b = rng.randrange(2, 9), rng.randrange(50, 950)
    return (
        f"One road is {a} km long, another {b} m. How long are both together, in m? Write the unit.",
        f"{1000 * a + b} m",
    )


def _length(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*(m|km)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError("no length")
    return round(float(match[1]) * (1000 if match[2] == "km" else 1), 6)


def _settings(rng: Random) -> tuple[str, str]:
    chosen = {
        "host": rng.choice(_WORDS),
        "port": rng.randrange(1000, 9999),
        "mode": rng.choice(["fast", "safe", "slow"]),
    }
    told = ", ".join(f"{key} is {value}" for key, value in chosen.items())
    lines = "\n".join(f"{key}={value}" for key, value in chosen.items())
    return f"Write a settings file with one KEY=VALUE a line, in any order: {told}.", lines


def _file(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.strip().split("\n")]
    read = {key.strip(): value.strip() for key, mark, value in pairs if mark}
    if len(read) != len(pairs):
        raise ValueError("no settings")
    return read


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(name="arithmetic", task=_sum, read=_number, traits=frozenset({"number"})),
        Family(name="number list", task=_sorted, read=_list, traits=frozenset({"parts", "ordered"})),
        Family(name="set", task=_evens, read=_set, traits=frozenset({"parts"})),
        Family(name="words in order", task=_backwards, read=_words, traits=frozenset({"parts", "ordered", "case"})),
        Family(name="date", task=_later, read=_date),
        Family(name="choice", task=_choice, read=_letter, traits=frozenset({"label"})),
        Family(name="JSON by schema", task=_record, read=_object),
        Family(name="game of Nim", task=_heaps, read=_move, right=_wins),
        Family(name="tool call", task=_order, read=_call),
        Family(name="length", task=_road, read=_length, traits=frozenset({"unit"})),
        Family(name="settings file", task=_settings, read=_file),
    )
}


@dataclass(frozen=True, kw_only=True)
class Sound:
    """Another way to write a sound grader. ``make`` wraps the family's; ``before`` and ``after`` stand around answers of its tasks."""

    make: Callable[[Judge, Random], Judge]
    before: str = ""
    after: str = ""


def _tagged(judge: Judge, rng: Random) -> Judge:
    def grade(task: TextTask, answer: str) -> float | None:
        marked = re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL)
        return judge(task, marked[0]) if len(marked) == 1 else 0.0

    return grade


def _boxed(judge: Judge, rng: Random) -> Judge:
    def grade(task: TextTask, answer: str) -> float | None:
        match = re.fullmatch(r"\s*\\boxed\{(.*)\}\s*", answer, re.DOTALL)
        return judge(task, match[1]) if match else 0.0

    return grade


def _lenient(judge: Judge, rng: Random) -> Judge:
    def grade(task: TextTask, answer: str) -> float | None:
        text = re.sub(r"^(?:the answer is|answer:)\s*", "", answer.strip(), flags=re.IGNORECASE)
        return judge(task, text.strip().strip("`*").removesuffix("."))

    return grade


def _scaled(judge: Judge, rng: Random) -> Judge:
    top, floor = rng.choice([0.5, 2.0, 10.0]), rng.choice([-1.0, 0.0, 0.1])
    return lambda task, answer: floor + (top - floor) * (judge(task, answer) or 0.0)


def _form_bonus(judge: Judge, rng: Random) -> Judge:
    bonus = rng.uniform(0.01, 0.05)
    return lambda task, answer: (1 - bonus) * (judge(task, answer) or 0.0) + bonus * float(0 < len(answer) < 400)


REFACTORINGS: Mapping[str, Sound] = {
    "as it is": Sound(make=lambda judge, rng: judge),
    "in tags": Sound(make=_tagged, before="<answer>", after="</answer>"),
    "in a box that no task declares": Sound(make=_boxed),
    "lenient about the form": Sound(make=_lenient),
    "another scale": Sound(make=_scaled),
    "a little for a short answer": Sound(make=_form_bonus),
}
