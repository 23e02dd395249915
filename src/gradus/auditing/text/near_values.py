"""Wrong answers near the right one, made by rules: another day, another digit in a word, another unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from gradus.auditing.text.gold import Gold, is_sentence

Text = str | None  # an answer, None if the operator does not apply
Texts = tuple[str, ...] | None  # several, which all must be accepted to count
Make = Callable[[Gold, Random], Text | Texts]
Match = re.Match[str]

# A line holds the names of one unit; "m" may be a meter or a minute, which is not known to be another unit than either.
_NAMES_OF_UNITS = """\
m meters min minutes
mm millimeters
cm centimeters
km kilometers
g grams
kg kilograms
lb lbs pounds
s seconds
h hours
d days
weeks
years
inches
feet
miles
ml
l liters
dollars
cents"""
_UNITS = {name: names.split()[0] for names in _NAMES_OF_UNITS.splitlines() for name in names.split()}
_MEASURED = re.compile(r"\A([-−]?\d[\d.,]*)\s*([A-Za-z]+)\Z")
_HALF_DAYS = re.compile(r"(?i)\d\s*[ap]\.?m\b|\b(?:AM|PM)\b|\b(?:12|twelve)[- ]hour")
# A question whose answer may well be its own word from behind, or one in other letters.
_REARRANGED = re.compile(r"(?i)anagram|permut|arrang|scrambl|order|letters|backwards|revers")
_LONG = 400  # characters of a text


def _at_match(pattern: str, change: Callable[[Match, Gold, Random], Text]) -> Make:
    """A change of the first place of the answer that the pattern finds."""
    compiled = re.compile(pattern)

    def make(gold: Gold, rng: Random) -> Text:
        match = compiled.search(gold.bare)
        if match is None:
            return None
        changed = change(match, gold, rng)
        if changed is None:
            return None
        return match.string[: match.start()] + changed + match.string[match.end() :]

    return make


def _next_day(date: Match, gold: Gold, rng: Random) -> Text:
    """The day after; the day before at the end of a month. Nothing if the year comes last: then either number may be the day."""
    before, month, sign, text, _ = date.groups("")
    if not before:
        return None
    day = int(text)
    other = day + 1 if day < 28 else day - 1  # every month has a 28th
    return f"{before}{month}{sign}{other:02d}"


def _day_for_month(date: Match, gold: Gold, rng: Random) -> Text:
    """Day and month exchanged, if both readings are dates."""
    before, first, sign, second, after = date.groups("")
    if first == second or max(int(first), int(second)) > 12:
        return None
    return f"{before}{second}{sign}{first}{after}"


def _another_digit(digit: Match, gold: Gold, rng: Random) -> Text:
    """H3O for H2O, but not 19m for 18m: its digits are not part of a word."""
    if gold.is_structure or gold.is_program or len(gold.bare) > _LONG:
        return None
    if gold.is_number or _MEASURED.fullmatch(gold.bare):
        return None
    return str(int(digit[0]) % 9 + 1)


def _half_a_day(time: Match, gold: Gold, rng: Random) -> Text:
    """03:20 for 15:20, or am for pm; nothing where the question itself counts twice to twelve and the answer does not say which."""
    hour, minutes, half = time.groups()
    if half:
        return f"{hour}{minutes}{half.translate(str.maketrans('apAP', 'paPA'))}"
    if _HALF_DAYS.search(gold.prompt):
        return None
    other = (int(hour) + 12) % 24
    return f"{other:0{len(hour)}d}{minutes}"


def _another_unit(measured: Match, gold: Gold, rng: Random) -> Text:
    """The unit of another answer that is surely another one, if possible with the same first letter; else one of mass or length."""
    # Units that other answers have, for a grader may know no others.
    number, unit = measured.groups()
    matches = [_MEASURED.fullmatch(text.strip()) for text in gold.others.counts]
    units = sorted({match[2] for match in matches if match})
    different = [name for name in units if {name, unit} <= _UNITS.keys() and _UNITS[name] != _UNITS[unit]]
    near = [name for name in different if name[0] == unit[0]] or different
    if near:
        return f"{number} {rng.choice(near)}"
    return f"{number} cm" if unit == "kg" else f"{number} kg"


def _backwards(gold: Gold, rng: Random) -> Text:
    """A word from its end to its start, unless the question speaks of letters or their order."""
    text = gold.bare
    if not re.fullmatch(r"[A-Za-z]{3,}", text) or text.lower() == text[::-1].lower():
        return None
    if gold.is_option or _REARRANGED.search(gold.prompt):
        return None
    return text[::-1]


def _half_of_its_words(gold: Gold, rng: Random) -> Text:
    """Of a sentence half of the words, but two at least, that another answer of as many words has otherwise."""
    words = gold.text.split()
    if not is_sentence(gold.text) or gold.is_program:
        return None
    # A sentence with one other word may say the same.
    sentences = [text.split() for text in gold.others.counts]
    sentences = [sentence for sentence in sentences if len(_differences(words, sentence)) > 1]
    if not sentences:
        return None
    sentence = rng.choice(sentences)
    places = _differences(words, sentence)
    for place in rng.sample(places, max(2, (len(places) + 1) // 2)):
        words[place] = sentence[place]
    return " ".join(words)


def _differences(words: Sequence[str], others: Sequence[str]) -> list[int]:
    """The places at which two sentences of as many words differ; none if they have not as many."""
    if len(words) != len(others):
        return []
    return [place for place, pair in enumerate(zip(words, others, strict=True)) if len(set(pair)) > 1]


_OPPOSITES = """\
left right
up down
above below
north south
east west
before after
more less
first last
true false
yes no
inside outside
increases decreases
increased decreased
higher lower"""
_PAIRS = list(map(str.split, _OPPOSITES.splitlines()))
_OPPOSITE = {word: other for pair in _PAIRS for word, other in (pair, pair[::-1])}
_NAME = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?|(?<=\S )[A-Z][a-z]+)(?!\w|\.\d)")


def _opposite(word: Match, gold: Gold, rng: Random) -> Text:
    """The opposite of a word of a sentence, in its case."""
    other = _OPPOSITE[word[0].lower()]
    if gold.is_structure or gold.is_program or len(gold.bare) > _LONG:
        return None
    return other.capitalize() if word[0][0].isupper() else other


def _negation(verb: Match, gold: Gold, rng: Random) -> Text:
    """The verb of a sentence with "not", or without one that stands there."""
    if not is_sentence(gold.text) or gold.is_program:
        return None
    return verb[1] if verb[2] else f"{verb[1]} not"


def names_exchanged(gold: Gold, rng: Random) -> Text:
    """A sentence in which the first two different names or numbers have changed places."""
    if not is_sentence(gold.text) or gold.is_program:
        return None
    text = gold.bare
    places = list(_NAME.finditer(text))
    second = next((place for place in places if place[0] != places[0][0]), None)
    if second is None or second[0].isdigit() != places[0][0].isdigit():
        return None
    first = places[0]
    between = text[first.end() : second.start()]
    return f"{text[: first.start()]}{second[0]}{between}{first[0]}{text[second.end() :]}"


# With the year before month and day, or behind day and month: without one, 12-05 may be a score or a range.
_DATE = r"(?<!\d)(?=\d{4}[-/.]|\d\d[-/.]\d\d[-/.]\d{4})(\d{4}[-/.])?(\d\d)([-/.])(\d\d)([-/.]\d{4})?(?!\d)"
_TIME = r"(?i)(?<![\d:])([01]?\d|2[0-3])(:[0-5]\d(?::[0-5]\d)?)(?![\d:])(\s*[ap]\.?m\b)?"
NEAR: Mapping[str, Make] = {
    "half a day off": _at_match(_TIME, _half_a_day),
    "a day off": _at_match(_DATE, _next_day),
    "day and month exchanged": _at_match(_DATE, _day_for_month),
    "another digit in a word": _at_match(r"(?<=[A-Za-z])\d|\d(?=[A-Za-z])", _another_digit),
    "another unit": _at_match(_MEASURED.pattern, _another_unit),
    "the opposite word": _at_match(rf"(?i)\b(?:{'|'.join(_OPPOSITE)})\b", _opposite),
    "the negated sentence": _at_match(r"\b(is|are|was|were|can|will|does|has)\b(\s+not\b)?", _negation),
    "a word backwards": _backwards,
    "half of its own words replaced": _half_of_its_words,
}
