"""Sums out of a seed: offline, endless, with a knob for difficulty and a worked solution for each.

A solution goes column by column from the right, as at school, because that order lets a small transformer write each digit
when all it depends on has been written (arXiv 2307.03381).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from gradus.core import ConfigError, child_rng, child_seed
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item

OPERATIONS = "+-*"
Slip = Callable[[int, str], int]  # value of a column, operation -> what is written for it
_SHARES = 5
_RESERVED = {0: "held-out", 1: "in-distribution"}  # a fifth of all pairs of operands each; the rest is trained on


class ArithmeticTasks:
    """Sums of two numbers of up to ``digits`` digits; ``*`` has one factor below ten, ``-`` no negative result.

    No sum of a condition is trained on: a fifth of all pairs of operands makes up ``held-out``, another ``in-distribution``.
    ``harder`` has one digit more.
    """

    def __init__(self, name: str = "arithmetic", *, digits: int = 2, operations: str = "+") -> None:
        if not 1 <= digits <= 8:
            raise ConfigError(f"arithmetic digits must be between 1 and 8, got {digits}")
        if not operations or set(operations) - set(OPERATIONS):
            raise ConfigError(f"arithmetic operations must be some of {OPERATIONS}, got {operations!r}")
        self.name = name
        self.system_prompt = SYSTEM_PROMPT
        self.digits = digits
        self.operations = "".join(dict.fromkeys(operations))

    def size(self, split: str) -> None:
        """None: the sums have no end."""
        return

    def item(self, split: str, seed: int) -> Item:
        """The sum for this seed."""
        return _item(split, seed, self.digits, self.operations)


@lru_cache(maxsize=20_000)  # conditions and splits ask for each sum several times
def _item(split: str, seed: int, digits: int, operations: str) -> Item:
    rng = child_rng(seed, "arithmetic", split)
    harder = split == "harder"
    while True:
        first, operation, second = _draw(rng, digits + harder, operations)
        # Harder sums need one operand beyond the training range, or they would be ordinary ones.
        if harder:
            fits = max(first, second) >= 10**digits
        else:
            fits = _split_of(first, operation, second) == split
        if fits:
            return sum_item(first, operation, second)


def _draw(rng: Random, digits: int, operations: str) -> tuple[int, str, int]:
    operation = rng.choice(operations)
    first = _number(rng, digits)
    second = _number(rng, 1 if operation == "*" else digits)
    # Solutions have no sign, so the larger number stands first.
    if operation == "-" and first < second:
        first, second = second, first
    return first, operation, second


def _number(rng: Random, digits: int) -> int:
    """A number below 10 ** digits. Half of them have their length drawn first, so that short numbers are not rare."""
    length = digits if rng.random() < 0.5 else rng.randint(1, digits)
    return rng.randrange(10**length)


def sum_item(first: int, operation: str, second: int) -> Item:
    """The item that asks for ``first operation second``."""
    answer = str(solve(first, operation, second))
    return Item(
        question=f"What is {first} {operation} {second} ?",
        answer=answer,
        worked=work(first, operation, second)[0],
        columns={"answer": answer, "left": first, "operation": operation, "right": second},
        content=f"{operation} {_pair(first, operation, second)}",
    )


def solve(first: int, operation: str, second: int) -> int:
    """The result.

    >>> solve(47, "+", 38), solve(47, "-", 38), solve(47, "*", 8)
    (85, 9, 376)
    """
    return {"+": first + second, "-": first - second, "*": first * second}[operation]


def work(first: int, operation: str, second: int, *, slip: Slip = lambda value, _: value) -> tuple[str, str]:
    """A solution column by column from the right, and the answer it ends in.

    ``slip(value, operation)`` is what is written for a column's value: a mistake is carried on, as a pupil would.

    >>> work(47, "+", 38)
    ('7 + 8 = 15 , 4 + 3 + 1 = 8', '85')
    >>> work(47, "-", 38)
    ('7 - 8 + 10 = 9 , 4 - 3 - 1 = 0', '9')
    >>> work(47, "*", 8)
    ('7 * 8 = 56 , 4 * 8 + 5 = 37', '376')
    """
    columns = len(str(first)) if operation == "*" else max(len(str(first)), len(str(second)))
    lines: list[str] = []
    answer = carry = 0
    for column in range(columns):
        top = first // 10**column % 10
        bottom = second if operation == "*" else second // 10**column % 10
        text, value = _column(top, operation, bottom, carry)
        value = slip(value, operation)
        lines.append(f"{text} = {value}")
        # The leftmost column keeps its carry: it is written as it is.
        last = column == columns - 1
        answer += (value if last else value % 10) * 10**column
        carry = int(top - carry < bottom) if operation == "-" else value // 10
    return " , ".join(lines), str(answer)


def _column(top: int, operation: str, bottom: int, carry: int) -> tuple[str, int]:
    """One column in words, and its value."""
    text = f"{top} {operation} {bottom}"
    if operation == "-":
        borrow = top - carry < bottom
        text += (f" - {carry}" if carry else "") + (" + 10" if borrow else "")
        return text, top - bottom - carry + 10 * borrow
    value = top * bottom if operation == "*" else top + bottom
    # The carry is written out: a small model cannot hold what is nowhere in its context.
    return text + (f" + {carry}" if carry else ""), value + carry


def guesses(rng: Random, chance: float) -> Slip:
    """Slips: by ``chance`` a column's value is any other that a column can have."""
    ceilings = {"+": 20, "-": 10, "*": 90}

    def slip(value: int, operation: str) -> int:
        if rng.random() >= chance:
            return value
        return rng.choice([wrong for wrong in range(ceilings[operation]) if wrong != value])

    return slip


def one_short(rng: Random, chance: float) -> Slip:
    """Slips: by ``chance`` a column's value is one too small. Above a half, the likeliest answer is a wrong one."""
    return lambda value, _: max(value - 1, 0) if rng.random() < chance else value


def _split_of(first: int, operation: str, second: int) -> str:
    """Says where this pair of operands belongs."""
    # A hash of the operands, not of the seed: two seeds may draw the same sum.
    share = child_seed(0, "held-out", operation, *_pair(first, operation, second)) % _SHARES
    return _RESERVED.get(share, "train")


def _pair(first: int, operation: str, second: int) -> list[int]:
    """The operands; the order of a commutative pair does not matter."""
    return [first, second] if operation == "-" else sorted((first, second))
