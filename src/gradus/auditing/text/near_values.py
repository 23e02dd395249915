"""Wrong answers near the right one, made by rules: another day, another digit in a word, another unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from gradus.auditing.text.gold import Gold, is_sentence

_UNITS = {  # names of one unit stand together
    name: names[0]
    for names in map(str.split, ("m meters min minutes", "mm millimeters", "cm centimeters", "km kilometers", "g grams", "kg kilograms", "lb lbs pounds",
                                 "s seconds", "h hours", "d days", "weeks", "years", "inches", "feet", "miles", "ml", "l liters", "dollars", "cents"))
    for name in names
}  # fmt: skip
_MEASURED = re.compile(r"([-−]?\d[\d.,]*)\s*([A-Za-z]+)")
_DIGIT_IN_WORD = re.compile(r"(?<=[A-Za-z])\d|\d(?=[A-Za-z])")
_REARRANGED = re.compile(r"(?i)anagram|permut|arrang|scrambl|order|letters|backwards|revers")


def a_day_off(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """The day after, or the day before at the end of a month."""
    if (match := gold.date) is None:
        return None
    day = int(match[4])
    return (f"{gold.bare[: match.start(4)]}{day + 1 if day < 28 else day - 1:02d}{gold.bare[match.end(4) :]}",)


def day_for_month(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """The day and the month exchanged, where that is another date."""
    match = gold.date
    if match is None or match[3] == match[4] or int(match[4]) > 12:
        return None
    return (f"{gold.bare[: match.start(3)]}{match[4]}{match[2]}{match[3]}{gold.bare[match.end(4) :]}",)


def digit_in_word(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """H3O for H2O: a digit within a word, which the changes of numbers leave alone."""
    text = gold.bare
    places = [match.start() for match in _DIGIT_IN_WORD.finditer(text)]
    measured = _MEASURED.fullmatch(text) is not None  # as 18m: its digits are not part of a word
    if not places or len(text) > 400 or text[:1] in "[{" or measured or gold.is_program or gold.is_number:
        return None
    place = rng.choice(places)
    return (text[:place] + str(int(text[place]) % 9 + 1) + text[place + 1 :],)


def backwards(gold: Gold, rng: Random) -> tuple[str, ...] | None:
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


def half_of_its_words(gold: Gold, rng: Random) -> tuple[str, ...] | None:
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


def another_unit(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """The unit of another answer that is surely another one, if possible with the same first letter; else one of mass or length."""
    match = _MEASURED.fullmatch(gold.bare)
    if match is None:
        return None
    number, unit = match.groups()
    units = {each[2] for text in gold.others.counts if (each := _MEASURED.fullmatch(text.strip()))}
    there = sorted(each for each in units if {each, unit} <= _UNITS.keys() and _UNITS[each] != _UNITS[unit])
    alike = [each for each in there if each[0] == unit[0]] or there
    return (f"{number} {rng.choice(alike) if alike else 'kg' if unit != 'kg' else 'cm'}",)
