"""Wrong answers that lie near the right one and are none by a rule: another day, another digit in a word, another unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from gradus.auditing.text.programs import are_programs
from gradus.auditing.text.shapes import Others, is_label, is_sentence
from gradus.auditing.text.tasks import TextTask

_DATE = re.compile(r"(?<!\d)(\d{4})([-/.])(\d\d)\2(\d\d)(?!\d)")
_UNITS = {  # names of one unit stand together
    name: names[0]
    for names in map(str.split, ("m meters min minutes", "mm millimeters", "cm centimeters", "km kilometers", "g grams", "kg kilograms", "lb lbs pounds",
                                 "s seconds", "h hours", "d days", "weeks", "years", "inches", "feet", "miles", "ml", "l liters", "dollars", "cents"))
    for name in names
}  # fmt: skip
_MEASURED = re.compile(r"([-−]?\d[\d.,]*)\s*([A-Za-z]+)")
_DIGIT_IN_WORD = re.compile(r"(?<=[A-Za-z])\d|\d(?=[A-Za-z])")
_REARRANGED = re.compile(r"(?i)anagram|permut|arrang|scrambl|order|letters|backwards|revers")


def a_day_off(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """The day after, or the day before at the end of a month."""
    gold = (task.gold or "").strip()
    match = _DATE.search(gold)
    if match is None:
        return None
    day = int(match[4])
    return (f"{gold[: match.start(4)]}{day + 1 if day < 28 else day - 1:02d}{gold[match.end(4) :]}",)


def day_for_month(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """The day and the month exchanged, where that is another date."""
    gold = (task.gold or "").strip()
    match = _DATE.search(gold)
    if match is None or match[3] == match[4] or int(match[4]) > 12:
        return None
    return (f"{gold[: match.start(3)]}{match[4]}{match[2]}{match[3]}{gold[match.end(4) :]}",)


def digit_in_word(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """H3O for H2O: a digit that stands in a word is no number, so no change of numbers touches it."""
    gold = (task.gold or "").strip()
    places = [match.start() for match in _DIGIT_IN_WORD.finditer(gold)]
    if not places or len(gold) > 400 or gold[:1] in "[{" or _is_measured(gold) or are_programs([task]):
        return None
    place = rng.choice(places)
    return (gold[:place] + str(int(gold[place]) % 9 + 1) + gold[place + 1 :],)


def backwards(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """A word from its end to its start, unless the question speaks of letters or their order."""
    gold = (task.gold or "").strip()
    if not re.fullmatch(r"[A-Za-z]{3,}", gold) or gold.lower() == gold[::-1].lower() or is_label(task, others):
        return None
    return None if _REARRANGED.search(task.prompt) else (gold[::-1],)


def strange_letter(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """A letter inside a word that none of the golds has."""
    gold = (task.gold or "").strip()
    if not re.fullmatch(r"[A-Za-z]{2,}", gold) or is_label(task, others):
        return None
    known = set("".join(others.golds).lower())
    strange = next((letter for letter in "qzxjkvw" if letter not in known), None)
    return None if strange is None else (f"{gold[:1]}{strange}{gold[1:]}",)


def half_of_its_words(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """Of a sentence half of the words, but two at least, that another answer of as many words has otherwise."""
    words = (task.gold or "").split()
    if not is_sentence(task.gold or "") or are_programs([task]):
        return None
    alike = [
        said for gold in others.counts if len(said := gold.split()) == len(words) and len(_differ(words, said)) > 1
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


def another_unit(task: TextTask, others: Others, rng: Random) -> tuple[str, ...] | None:
    """The unit of another answer that is surely another one, if possible with the same first letter; else one of mass or length."""
    match = _MEASURED.fullmatch((task.gold or "").strip())
    if match is None:
        return None
    number, unit = match.groups()
    units = {found[2] for gold in others.counts if (found := _MEASURED.fullmatch(gold.strip()))}
    there = sorted(each for each in units if {each, unit} <= _UNITS.keys() and _UNITS[each] != _UNITS[unit])
    alike = [each for each in there if each[0] == unit[0]] or there
    return (f"{number} {rng.choice(alike) if alike else 'kg' if unit != 'kg' else 'cm'}",)


def _is_measured(gold: str) -> bool:
    """Whether it is a number with its unit behind it, as 18m, whose digits are no part of a word."""
    return _MEASURED.fullmatch(gold) is not None
