"""The unit beside a number, so far as it is known: 5 km is not 5 m, and 2 hours are 120 minutes.

A word that is not in the table says nothing: ``5 apples`` may answer ``5 pieces``, and a number without a unit answers one with any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

# What is measured -> a unit's size in a common one, and its names in small letters, without the s of a plural.
# Sizes are those of the SI brochure and, for inch, pound and gallon, of the international yard and pound and US customary units.
_TABLE = """
length 1/1000 mm millimeter millimetre
length 1/100 cm centimeter centimetre
length 1 m meter metre
length 1000 km kilometer kilometre
length 127/5000 inch inche
length 381/1250 ft foot feet
length 1143/1250 yd yard
length 201168/125 mi mile
time 1/1000 ms millisecond
time 1 s sec second
time 60 m min minute
time 3600 h hr hour
time 86400 d day
time 604800 wk week fortnight/2
months 1 mo month
months 12 yr year
months 120 decade
months 1200 century centurie
mass 1/1000 mg milligram
mass 1 g gram
mass 1000 kg kilo kilogram
mass 1000000 t tonne
mass 45359237/100000 lb pound
mass 45359237/1600000 oz ounce
volume 1/1000 ml milliliter millilitre
volume 1 l liter litre
gallons 1/16 cup
gallons 1/8 pint
gallons 1/4 quart qt
gallons 1 gallon gal
bytes 1000 kb kilobyte
bytes 1000000 mb megabyte
bytes 1000000000 gb gigabyte
bytes 1000000000000 tb terabyte
dollars 1/100 cent ¢
dollars 1 dollar buck usd us us$ cad aud $
euros 1 euro eur €
pounds 1/100 penny pennie pence
pounds 1 pound gbp £
rupees 1 rupee rs inr ₹
yen 1 yen ¥
yuan 1 yuan rmb cny ¥
angle 1 degree deg °
radians 1 radian rad
celsius 1 degree deg ° celsius °c
fahrenheit 1 degree deg ° fahrenheit °f
kelvin 1 kelvin
watts 1 watt
watts 1000 kw kilowatt
joules 1 joule
joules 1000 kj kilojoule
calories 1 calorie cal
calories 1000 kcal kilocalorie
"""
_WORD = r"[^\W\d_]+|[¢$€£¥₹]|°\s?[cCfF]?"
_UNIT = re.compile(
    rf"\s?(?P<raised>square|sq\.?|cubic|cu\.?)?\s?(?P<unit>{_WORD})(?:\s+(?P<more>celsius|fahrenheit)\b)?"
    rf"(?:\s?(?:/|\bper\b|\ban?\b(?=\s+(?:second|minute|hour|day|week|month|year)\b))\s?(?P<below>{_WORD}))?",
    re.IGNORECASE,
)
_SPEEDS = {"mph": ("mile", "hour"), "kph": ("km", "hour"), "kmh": ("km", "hour"), "kmph": ("km", "hour")}
_MONEY_BEFORE = re.compile(r"(us\$|[$€£¥₹]|\b(?:usd|eur|gbp|rs|inr|cad|aud))\.?\s?$", re.IGNORECASE)

Meanings = frozenset[tuple[str, Fraction]]


def _table() -> Iterator[tuple[str, tuple[str, Fraction]]]:
    for line in _TABLE.split("\n"):
        kind, size, *names = line.split() or ("", "1")
        for name, _, times in (each.partition("/") for each in names):
            yield name, (kind, Fraction(size) * int(times or 1))


_NAMES: dict[str, Meanings] = {}
for _name, _meaning in _table():
    _NAMES[_name] = _NAMES.get(_name, frozenset()) | {_meaning}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What a unit may mean: a kind of measure and a size each, as ``m`` is a meter or a minute. Empty if it is not known.

    ``below``: the same of what stands behind the stroke of ``km/h``. ``raised``: of an area or a space.
    """

    above: Meanings = frozenset()
    below: Meanings = frozenset()
    raised: bool = False


NO_UNIT = Unit()


def unit_of(before: str, after: str) -> Unit:
    """The unit of a number, from the texts around it.

    >>> sorted(kind for kind, _ in unit_of("", " m long").above), unit_of("", " apples").above
    (['length', 'time'], frozenset())
    """
    if before.rstrip().endswith("$") and "$" in after:  # $5$ is LaTeX
        before, after = before.rstrip().removesuffix("$"), after.replace("$", "", 1)
    match = _UNIT.match(after)
    word = match["unit"] if match else ""
    if match is not None and word.casefold() in _SPEEDS:
        above, below = (_NAMES[each] for each in _SPEEDS[word.casefold()])
        return Unit(above=above, below=below)
    above = _meanings(f"{word} {match['more']}" if match is not None and match["more"] else word)
    money = _MONEY_BEFORE.search(before)
    if not above and money is not None:
        above = _meanings(money[1])
    if match is None or not above:
        return Unit(above=above)
    return Unit(above=above, below=_meanings(match["below"] or ""), raised=match["raised"] is not None)


def contradict(one: Unit, other: Unit) -> bool:
    """Whether two units cannot be the same. One that is not known, or not told to its end, contradicts none."""
    if not one.above or not other.above:
        return False
    if one.raised != other.raised and not _kinds(one) & _kinds(other):
        return False  # cubic centimeters and milliliters
    return not one.above & other.above or bool(one.below and other.below and not one.below & other.below)


def converted(value: Fraction, unit: Unit, to: Unit) -> list[Fraction]:
    """What ``value`` is in the other unit, for each thing that both may mean; empty for areas, spaces and rates."""
    if unit.raised or to.raised or unit.below or to.below:
        return []
    return [value * size / other for kind, size in unit.above for kind_too, other in to.above if kind == kind_too]


def _kinds(unit: Unit) -> set[str]:
    return {kind for kind, _ in unit.above}


def _meanings(word: str) -> Meanings:
    name = re.sub(r"(?<=°)\s", "", word.casefold())
    for scale in ("celsius", "fahrenheit"):
        if name.endswith(f" {scale}"):
            return _NAMES[scale]
    return _NAMES.get(name) or _NAMES.get(name.removesuffix("s"), frozenset())
