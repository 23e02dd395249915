"""Wrong answers near the right one, made by rules: another day, another digit in a word, another unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from gradus.auditing.text.gold import Gold, is_sentence

Make = Callable[
    [Gold, Random], "tuple[str, ...] | None"
]  # answers that all must be accepted to count; None if it does not apply

_UNITS = {  # names of one unit stand together
    name: names[0]
    for names in map(str.split, ("m meters min minutes", "mm millimeters", "cm centimeters", "km kilometers", "g grams", "kg kilograms", "lb lbs pounds",
                                 "s seconds", "h hours", "d days", "weeks", "years", "inches", "feet", "miles", "ml", "l liters", "dollars", "cents"))
    for name in names
}  # fmt: skip
_MEASURED = re.compile(r"\A([-−]?\d[\d.,]*)\s*([A-Za-z]+)\Z")
_HALF_DAYS = re.compile(r"(?i)\d\s*[ap]\.?m\b|\b(?:AM|PM)\b|\b(?:12|twelve)[- ]hour")
_DIGIT_IN_WORD = re.compile(r"(?<=[A-Za-z])\d|\d(?=[A-Za-z])")
_REARRANGED = re.compile(r"(?i)anagram|permut|arrang|scrambl|order|letters|backwards|revers")


def place_changed(pattern: re.Pattern[str], change: Callable[[re.Match[str], Gold, Random], str | None]) -> Make:
    """A change of the first place of the answer that the pattern finds."""

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        match = pattern.search(gold.bare)
        if match is None or (changed := change(match, gold, rng)) is None:
            return None
        return (match.string[: match.start()] + changed + match.string[match.end() :],)

    return make


def _next_day(date: re.Match[str], gold: Gold, rng: Random) -> str:
    year, sign, month, day = date[1], date[2], date[3], int(date[4])
    return f"{year}{sign}{month}{sign}{day + 1 if day < 28 else day - 1:02d}"


def _day_for_month(date: re.Match[str], gold: Gold, rng: Random) -> str | None:
    year, sign, month, day = date.groups()
    return None if month == day or int(day) > 12 else f"{year}{sign}{day}{sign}{month}"


def _another_digit(digit: re.Match[str], gold: Gold, rng: Random) -> str | None:
    """H3O for H2O, but not 19m for 18m: its digits are not part of a word."""
    left_alone = len(gold.bare) > 400 or gold.bare[:1] in "[{" or gold.is_program or gold.is_number
    return None if left_alone or _MEASURED.fullmatch(gold.bare) else str(int(digit[0]) % 9 + 1)


def _half_a_day(time: re.Match[str], gold: Gold, rng: Random) -> str | None:
    """03:20 for 15:20, or am for pm; nothing where the question itself counts twice to twelve and the answer does not say which."""
    hour, minutes, half = time.groups()
    if half:
        return f"{hour}{minutes}{half.translate(str.maketrans('apAP', 'paPA'))}"
    return None if _HALF_DAYS.search(gold.prompt) else f"{(int(hour) + 12) % 24:0{len(hour)}d}{minutes}"


def _another_unit(measured: re.Match[str], gold: Gold, rng: Random) -> str:
    """The unit of another answer that is surely another one, if possible with the same first letter; else one of mass or length."""
    number, unit = measured.groups()
    units = {each[2] for text in gold.others.counts if (each := _MEASURED.fullmatch(text.strip()))}
    there = sorted(each for each in units if {each, unit} <= _UNITS.keys() and _UNITS[each] != _UNITS[unit])
    alike = [each for each in there if each[0] == unit[0]] or there
    return f"{number} {rng.choice(alike) if alike else 'kg' if unit != 'kg' else 'cm'}"


def _backwards(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """A word from its end to its start, unless the question speaks of letters or their order."""
    text = gold.bare
    if not re.fullmatch(r"[A-Za-z]{3,}", text) or text.lower() == text[::-1].lower() or gold.is_option:
        return None
    return None if _REARRANGED.search(gold.prompt) else (text[::-1],)


def strange_letter(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """A letter inside a word that none of the golds has."""
    text = gold.bare
    if not re.fullmatch(r"[A-Za-z]{2,}", text) or gold.is_option:
        return None
    known = set("".join(gold.others.golds).lower())
    strange = next((letter for letter in "qzxjkvw" if letter not in known), None)
    return None if strange is None else (f"{text[:1]}{strange}{text[1:]}",)


def _half_of_its_words(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """Of a sentence half of the words, but two at least, that another answer of as many words has otherwise."""
    words = gold.text.split()
    if not is_sentence(gold.text) or gold.is_program:
        return None
    alike = [
        said for text in gold.others.counts if len(said := text.split()) == len(words) and len(_differ(words, said)) > 1
    ]
    if not alike:
        return None
    other = rng.choice(alike)
    places = _differ(words, other)
    for place in rng.sample(places, max(2, (len(places) + 1) // 2)):
        words[place] = other[place]
    return (" ".join(words),)


def _differ(words: Sequence[str], others: Sequence[str]) -> list[int]:
    return [place for place, (one, other) in enumerate(zip(words, others, strict=True)) if one != other]


_DATE = re.compile(r"(?<!\d)(\d{4})([-/.])(\d\d)\2(\d\d)(?!\d)")
_TIME = re.compile(r"(?i)(?<![\d:])([01]?\d|2[0-3])(:[0-5]\d(?::[0-5]\d)?)(?![\d:])(\s*[ap]\.?m\b)?")
NEAR: Mapping[str, Make] = {
    "half a day off": place_changed(_TIME, _half_a_day),
    "a day off": place_changed(_DATE, _next_day),
    "day and month exchanged": place_changed(_DATE, _day_for_month),
    "another digit in a word": place_changed(_DIGIT_IN_WORD, _another_digit),
    "another unit": place_changed(_MEASURED, _another_unit),
    "a word backwards": _backwards,
    "half of its own words replaced": _half_of_its_words,
}
