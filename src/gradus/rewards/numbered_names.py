"""Answers that begin with a number and are no amount: a date, a time of day, an era, a direction, a title."""

from __future__ import annotations

import re

from gradus.rewards.numbers import CURRENCY

_BEGINS = re.compile(rf"[^\w-]*-?\s?{CURRENCY}?\.?\d", re.IGNORECASE)
# Without "may" and "march" in small letters, and "5 apples left", which is an amount.
_DISTINGUISHING = re.compile(
    r"\b(?:january|february|april|june|july|august|september|october|november|december|(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
    r"|(?:north|south)(?:east|west)?(?:wards?)?|(?:east|west)(?:wards?)?|loss|profit)\b"
    r"|(?<=[\d:])\s*(?:[ap]\.?m|ad|a\.d|bce?|b\.c|ce|left|right)\b"
    r"|\bto the (?:left|right)\b|\b\d+(?:st|nd|rd|th)\s+(?!place\b)[a-z]",
    re.IGNORECASE,
)
_PREFIX = "(?:kilo|centi|milli|micro|nano|mega|giga|tera)?"
_UNIT = re.compile(
    rf"{_PREFIX}(?:met(?:er|re)|gram|lit(?:er|re)|watt|joule|newton|volt|amp|ampere|ohm|hertz|pascal|calorie|byte|bit|second|mole?)s?"
    r"|(?:mile|yard|acre|hectare|ounce|pound|ton|tonne|gallon|quart|pint|cup|minute|min|hour|hr|day|week|month|year|yr|sec|lb|kg"
    r"|dollar|euro|cent|rupee|peso|franc|won|yuan|dirham|ruble|real|krone|krona|buck|degree|radian|point|unit|item|dozen|hundred"
    r"|thousand|million|billion|trillion|percent|person|time|bp|mbp|rad|deg|sq|cubic|square|mph|kmh|kph|mol|knot|light)s?"
    r"|feet|foot|inch(?:es)?|celsius|fahrenheit|kelvin|yen|pence|people|half|halves|per|and|each|total|cm|mm|km|usd|eur|gbp|[a-z]{3,}hz",
    re.IGNORECASE,
)
_TITLED = re.compile(r"(?<![.!?:]\s)\b(?:[A-Z][a-z]{2,}|[A-Z]{4,})\b")  # a sentence may follow the number


def is_named(text: str) -> bool:
    """Whether ``text`` begins with a number and its words say what the number alone does not; a unit or currency does not.

    >>> is_named("5 January"), is_named("12 Angry Men"), is_named("5 Euro"), is_named("5 apples")
    (True, True, False, False)
    """
    if not _BEGINS.match(text):
        return False
    names = (name for name in _TITLED.findall(text) if not _UNIT.fullmatch(name))
    return _DISTINGUISHING.search(text) is not None or next(names, None) is not None
