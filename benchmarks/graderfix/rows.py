"""Questions with right answers for graders that bring none: a name, and what makes the questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from random import Random

Row = tuple[str, str]
_THINGS = ("pens", "eggs", "bolts", "cards", "seeds", "tiles")
_OPTIONS = "ABCDEFGHIJ"
_CAPITALS = """France Paris, Italy Rome, Spain Madrid, Portugal Lisbon, Austria Vienna, Norway Oslo, Sweden Stockholm,
Finland Helsinki, Poland Warsaw, Greece Athens, Hungary Budapest, Ireland Dublin, Egypt Cairo, Kenya Nairobi, Ghana Accra,
Japan Tokyo, Nepal Kathmandu, Iraq Baghdad, Cuba Havana, Peru Lima, Chile Santiago, Ecuador Quito, Croatia Zagreb"""
_WORDS = ("amber", "brisk", "cedar", "delta", "ember", "fable", "grove", "hazel", "ivory", "jolly", "karma", "lunar")


def rows(name: str, count: int, seed: int) -> list[Row]:
    """Up to ``count`` different questions of a kind, with their answers."""
    made = dict(islice(_KINDS[name](Random(seed)), 4 * count))
    return list(made.items())[:count]


def _integers(rng: Random) -> Iterator[Row]:
    while True:
        each, boxes, thing = rng.randint(6, 60), rng.randint(4, 40), rng.choice(_THINGS)
        yield f"A box holds {each} {thing}. How many {thing} do {boxes} boxes hold?", str(each * boxes)


def _primes(rng: Random) -> Iterator[Row]:
    """No formula of the question is the answer."""
    while True:
        limit = rng.randint(50, 2000)
        prime = next(n for n in range(limit - 1, 1, -1) if all(n % divisor for divisor in range(2, n)))
        yield f"What is the largest prime number below {limit}?", str(prime)


def _signed(rng: Random) -> Iterator[Row]:
    while True:
        noon, fall = rng.randint(-20, 40), rng.randint(2, 45)
        yield f"It is {noon} degrees and gets {fall} degrees colder. How many is it then?", str(noon - fall)


def _fractions(rng: Random) -> Iterator[Row]:
    while True:
        one, other = (Fraction(rng.randint(1, 12), rng.randint(2, 12)) for _ in range(2))
        total = one + other
        if 1 not in (one.denominator, other.denominator, total.denominator):
            yield f"Compute ${_latex(one)} + {_latex(other)}$.", _latex(total)


def _latex(number: Fraction) -> str:
    return rf"\frac{{{number.numerator}}}{{{number.denominator}}}"


def _quotients(rng: Random) -> Iterator[Row]:
    while True:
        (letter, other), factor = rng.sample("abcdkmnpqrstuvwxyz", 2), rng.randint(2, 9)
        yield f"Divide {factor} times {letter} by {other}. Write it with a slash.", f"{factor}{letter}/{other}"


def _roots(rng: Random) -> Iterator[Row]:
    while True:
        under, divisor = rng.choice((2, 3, 5, 6, 7, 10, 11, 13, 14, 15)), rng.randint(3, 9)
        gold = rf"\frac{{\sqrt{{{under}}}}}{{{divisor}}}"
        yield f"Write the square root of {under}, divided by {divisor}, in LaTeX.", gold


def _options(rng: Random) -> Iterator[Row]:
    while True:
        values = rng.sample(range(11, 99), len(_OPTIONS))
        right = rng.randrange(len(values))
        part = rng.randint(2, values[right] - 2)
        listed = "\n".join(f"{letter}) {value}" for letter, value in zip(_OPTIONS, values, strict=True))
        yield f"Which is {part} + {values[right] - part}?\n{listed}", _OPTIONS[right]


def _capitals(rng: Random) -> Iterator[Row]:
    pairs = _CAPITALS.split(",")
    for pair in rng.sample(pairs, len(pairs)):
        country, capital = pair.split()
        yield f"What is the capital of {country}?", capital


def _countdown(rng: Random) -> Iterator[Row]:
    while True:
        one, two, three = rng.sample(range(3, 60), 3)
        sign = rng.choice("+-")
        target = one * two + three if sign == "+" else one * two - three
        if target > 0:
            gold = f"{one}*{two}{sign}{three}"
            yield f"Make an equation of {three}, {one} and {two}, each once, that is {target}.", gold


def _decimals(rng: Random) -> Iterator[Row]:
    while True:
        cents, count, thing = rng.randint(105, 999), rng.choice((3, 5, 7)), rng.choice(_THINGS)
        total = cents * count
        if total % 10:
            question = f"A bag of {thing} costs {cents // 100}.{cents % 100:02}. What do {count} bags cost?"
            yield question, f"{total // 100}.{total % 100:02}"


def _backwards(rng: Random) -> Iterator[Row]:
    while True:
        words = rng.sample(_WORDS, rng.randint(4, 6))
        yield f"Write these words in the opposite order: {' '.join(words)}", " ".join(reversed(words))


def _phrases(rng: Random) -> Iterator[Row]:
    while True:
        first, *middle, last, one, other = rng.sample(_WORDS, 7)
        phrase = " ".join((first, *middle, last))
        changed = (" ".join((first, one, *middle[1:], last)), " ".join((first, *middle[:-1], other, last)))
        yield f'Write the phrase "{phrase}" two times, with one other word in its middle each time.', ". ".join(changed)


_KINDS: Mapping[str, Callable[[Random], Iterator[Row]]] = {
    "integers": _integers,
    "primes": _primes,
    "decimals": _decimals,
    "backwards": _backwards,
    "signed integers": _signed,
    "fractions": _fractions,
    "quotients": _quotients,
    "roots": _roots,
    "options": _options,
    "capitals": _capitals,
    "countdown": _countdown,
    "phrases": _phrases,
}
