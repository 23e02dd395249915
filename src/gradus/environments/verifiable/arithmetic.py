"""Sums out of a seed: offline, endless, with a knob for difficulty and a worked solution for each.

A solution goes column by column from the right, as at school, because that order lets a small transformer write each digit
when all it depends on has been written (arXiv 2307.03381).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from gradus.core import ConfigError, child_rng, child_seed
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item

OPERATIONS = "+-*"
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
        rng = child_rng(seed, "arithmetic", split)
        digits = self.digits + (split == "harder")
        while True:
            left, operation, right = self._draw(rng, digits)
            if split == "harder" and left < 10**self.digits and right < 10**self.digits:
                continue
            if split in ("harder", _split_of(left, operation, right)):
                return sum_item(left, operation, right)

    def _draw(self, rng: Random, digits: int) -> tuple[int, str, int]:
        operation = rng.choice(self.operations)
        left, right = _number(rng, digits), _number(rng, 1 if operation == "*" else digits)
        return (right, operation, left) if operation == "-" and left < right else (left, operation, right)


def _number(rng: Random, digits: int) -> int:
    """A number below 10 ** digits. Half of them have their length drawn first, so that short numbers are not rare."""
    return rng.randrange(10 ** (digits if rng.random() < 0.5 else rng.randint(1, digits)))


def sum_item(left: int, operation: str, right: int) -> Item:
    """The item that asks for ``left operation right``."""
    answer = str(solve(left, operation, right))
    return Item(
        question=f"What is {left} {operation} {right} ?",
        answer=answer,
        worked=work(left, operation, right)[0],
        columns={"answer": answer, "left": left, "operation": operation, "right": right},
        content=f"{operation} {_pair(left, operation, right)}",
    )


def solve(left: int, operation: str, right: int) -> int:
    """The result.

    >>> solve(47, "+", 38), solve(47, "-", 38), solve(47, "*", 8)
    (85, 9, 376)
    """
    return {"+": left + right, "-": left - right, "*": left * right}[operation]


def work(left: int, operation: str, right: int, *, slip: Callable[[int, str], int] | None = None) -> tuple[str, str]:
    """A solution column by column from the right, and the answer it ends in.

    ``slip(value, operation)`` is what is written for a column's value: a mistake is carried on, as a pupil would.

    >>> work(47, "+", 38)
    ('7 + 8 = 15 , 4 + 3 + 1 = 8', '85')
    >>> work(47, "-", 38)
    ('7 - 8 + 10 = 9 , 4 - 3 - 1 = 0', '9')
    >>> work(47, "*", 8)
    ('7 * 8 = 56 , 4 * 8 + 5 = 37', '376')
    """
    columns = max(len(str(left)), len(str(right)) if operation != "*" else 1)
    lines: list[str] = []
    digits: list[int] = []
    carry = 0
    for column in range(columns):
        a, b = left // 10**column % 10, (right if operation == "*" else right // 10**column % 10)
        text, value = _column(a, operation, b, carry)
        value = slip(value, operation) if slip is not None else value
        lines.append(f"{text} = {value}")
        last = column == columns - 1
        digits.append(value if last else value % 10)
        carry = value // 10 if operation != "-" else int(a - carry < b)
    answer = "".join(str(digit) for digit in reversed(digits))
    return " , ".join(lines), str(int(answer))


def _column(a: int, operation: str, b: int, carry: int) -> tuple[str, int]:
    """One column in words, and its value."""
    if operation == "-":
        borrow = a - carry < b
        text = f"{a} - {b}" + (f" - {carry}" if carry else "") + (" + 10" if borrow else "")
        return text, a - b - carry + 10 * borrow
    value = (a * b if operation == "*" else a + b) + carry
    return f"{a} {operation} {b}" + (f" + {carry}" if carry else ""), value


def guesses(rng: Random, chance: float) -> Callable[[int, str], int]:
    """Slips: by ``chance`` a column's value is any other that a column can have."""
    ceilings = {"+": 20, "-": 10, "*": 90}

    def slip(value: int, operation: str) -> int:
        if rng.random() >= chance:
            return value
        return rng.choice([other for other in range(ceilings[operation]) if other != value])

    return slip


def one_short(rng: Random, chance: float) -> Callable[[int, str], int]:
    """Slips: by ``chance`` a column's value is one too small. Above a half, the likeliest answer is a wrong one."""
    return lambda value, operation: max(value - 1, 0) if rng.random() < chance else value


def _split_of(left: int, operation: str, right: int) -> str:
    """Says where this pair of operands belongs."""
    return _RESERVED.get(child_seed(0, "held-out", operation, *_pair(left, operation, right)) % _SHARES, "train")


def _pair(left: int, operation: str, right: int) -> list[int]:
    """The operands; the order of a commutative pair does not matter."""
    return [left, right] if operation == "-" else sorted((left, right))
