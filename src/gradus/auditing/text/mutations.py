"""Wrong answers made from the right one, which must earn nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from gradus.auditing.text.gold import LISTED, NUMBER, Gold, alike, is_number, is_sentence, parts, states
from gradus.auditing.text.near_values import NEAR, Make, strange_letter


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A mutation that makes a right answer wrong. ``make`` returns one answer, or several: then all must be accepted to count.

    ``rule`` says for a question if the answer is surely wrong, None for any question; what is not sure a person has to judge.
    ``lenient``: it says something around the right answer, so that one must know that
    already to be paid; a grader that accepts it is lenient and cannot be exploited by it. The text says what to change.
    """

    make: Make
    rule: Callable[[str], object] | None = None
    lenient: str = ""

    def is_settled(self, prompt: str) -> bool:
        """Returns True if the answer is surely wrong for a task that asks this."""
        return self.rule is None or bool(self.rule(prompt))


def _never(prompt: str) -> bool:
    return False


def _number(change: Callable[[str, Random], str | None]) -> Make:
    """A change of an answer that is one number, with a unit after it or none."""

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        if (number := gold.number) is None:
            return None
        changed = change(number, rng)
        return None if changed is None or states(changed, number) else (changed + gold.bare[len(number) :],)

    return make


def _one_digit(gold: str, rng: Random) -> str | None:
    """Of a whole number any but the last; of a decimal one of the first two that count, for the others may be lost in rounding."""
    places = [i for i, character in enumerate(gold) if character.isdigit()]
    if re.search(r"[.eE]", gold):
        first = next((i for i, place in enumerate(places) if gold[place] != "0"), 0)
        places = [*places[first : first + 2], places[-1]]
    place = places[0] if len(places) == 1 else rng.choice(places[: max(1, len(places) - 1)])
    return gold[:place] + str((int(gold[place]) + rng.randrange(1, 9)) % 10) + gold[place + 1 :]


def _off_by_one(gold: str, rng: Random) -> str | None:
    match = re.fullmatch(r"([-−]?\$?)(\d+|\d{1,3}(?:,\d{3})+)(\.\d+)?", gold)
    if match is None:
        return None
    more = int(match[2].replace(",", "")) + 1
    number = f"{more:,}" if "," in match[2] else f"{more}"
    return f"{match[1]}{number}{match[3] or ''}"


def _negated(gold: str, rng: Random) -> str | None:
    return gold[1:] if gold[0] in "-−" else f"-{gold}"


def _with_other(*forms: str) -> Make:
    """Forms with GOLD and OTHER in them; several must all be accepted, so that a grader may read the first or the last answer.

    Not of programs: of several the last one counts, whatever words say, and one may define more than was asked for.
    """

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        other = gold.another(rng)
        if other is None or gold.is_program:
            return None
        return tuple(form.replace("GOLD", gold.text).replace("OTHER", other) for form in forms)

    return make


_ANY_ORDER = re.compile(
    r"(?i)\b(?:any|no (?:particular|special|specific)) order\b|\border (?:(?:does not|doesn't) matter|is (?:not |un)important)\b"
)
_DEMANDED = re.compile(  # an order of the answer; "increasing" alone, or "in reverse", may speak of the task
    r"(?i)\b(?:sort|rank|reverse|arrange) (?:the|these|this|those|all|them|it|each)\b|(?:\A|:)\s*(?:please )?(?:sort|rank|reverse)\b"
    r"|(?:\A\s*|\b(?:and|then|please|to) )(?:sort|put|write|give|return|print|output|say|list|name|state|order)\b.*"
    r"(?:(?<!\bread )(?<!\bare )\bin (?!order to\b)(?:[\w-]+ ){0,4}?order\b(?! to\b)"
    r"|\bfrom (?:the )?\w+ to (?:the )?\w+est\b|\b(?:alphabetic|chronologic|numeric)ally\b)"
)


def _wants_order(prompt: str) -> bool:
    """Returns True if a sentence of the question demands an order in the answer."""
    if _ANY_ORDER.search(prompt):
        return False
    return any(_DEMANDED.search(each) for each in re.split(r"[!?\n]|\.(?!\d)", prompt))


_CASE = re.compile(r"(?i)upper.{0,12}lower|lower.{0,12}upper|case[- ]sensitive|keep the case")


def _elements(change: Callable[[list[str], Random], list[str] | None]) -> Make:
    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        split = _listed(gold)
        if split is None:
            return None
        elements, separator, left, right = split
        changed = change(list(elements), rng)
        if changed is None or changed == elements:
            return None
        return (f"{left}{separator.join(changed)}{right}",)

    return make


def _listed(gold: Gold) -> tuple[list[str], str, str, str] | None:
    """The elements of an answer of three or more, as :func:`parts` has them. The lines of a program may do nothing, and the
    words of a sentence may be left out, unless the question asks for their order."""
    if gold.is_program or (is_sentence(gold.text) and not _wants_order(gold.prompt)):
        return None
    return gold.elements if gold.elements is not None and len(gold.elements[0]) >= 3 else None


def _dropped(elements: list[str], rng: Random) -> list[str] | None:
    del elements[rng.randrange(len(elements))]
    return elements


def _swapped(elements: list[str], rng: Random) -> list[str] | None:
    pairs = [i for i in range(len(elements) - 1) if elements[i] != elements[i + 1]]
    if not pairs:
        return None
    place = rng.choice(pairs)
    elements[place], elements[place + 1] = elements[place + 1], elements[place]
    return elements


def _one_more(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """One more element, which another answer of the same form has, and all that are known. A made-up word may be no element, but words beside the answer.

    Both must be accepted: a plan may go on for one step behind its goal, and a list that forgives one element does not pay for all.
    """
    split = _listed(gold)
    if split is None:
        return None
    elements, separator, left, right = split
    golds = [two for other in gold.others.counts if (two := parts(other)) is not None and two[1:] == split[1:]]
    known = {each for two in golds for each in two[0] if any(alike(each, own) for own in elements)}
    added = sorted(known - set(elements))
    if not added and re.search(r"[A-Za-z]", elements[-1]):
        return None
    more = rng.choice(added) if added else re.sub(r"-?\d+(?:\.\d+)?", "999983", elements[-1])
    return tuple(f"{left}{separator.join([*elements, *several])}{right}" for several in ([more], added or [more] * 2))


def _of_numbers(change: Callable[[list[str], Random], list[str]]) -> Make:
    """A change of elements that are numbers: of others what is said twice may still be so."""

    def make(elements: list[str], rng: Random) -> list[str] | None:
        return change(elements, rng) if all(is_number(each.strip("'\"")) for each in elements) else None

    return _elements(make)


def _not_a_number(elements: list[str], rng: Random) -> list[str]:
    """NaN for one: a comparison of distances finds no difference."""
    elements[rng.randrange(len(elements))] = "NaN"
    return elements


_CALLS = re.compile(r"(?i)\b(?:tools?|functions?|calls?)\b")


def _called_twice(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """Of a tool call: the same call again changes what it acts on twice."""
    calls = gold.json if isinstance(gold.json, list) else [gold.json]
    if not calls or not all(isinstance(each, dict) for each in calls):
        return None
    return (_written([*calls, *calls], gold.text), f"{gold.text}\n{gold.text}")


_ROUGHLY = re.compile(
    r"(?i)\b(?:about|around|approximate\w*|roughly|estimate\w*|within|nearest|round\w*|tolerance)\b|±"
)


def _off(share: float) -> Wrong:
    """A value so far off, unless the question allows one. Of a decimal number half a percent may be rounding."""

    def change(number: str, rng: Random) -> str | None:
        if not re.fullmatch(r"-?\d+(?:\.\d+)?", number):
            return None
        places = len(number.partition(".")[2])
        return None if places and share < _ROUNDED else f"{float(number) * (1 + share):.{places}f}"

    return Wrong(make=_number(change), rule=lambda prompt: not _ROUGHLY.search(prompt))


_ROUNDED = 0.02
_LISTS = re.compile(r"(?i)\b(?:lists?|sets?|any order|which of)\b")


def _word_twice(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """Of a list or set of different words that the question asks for; elsewhere what is said twice may still be so."""
    split = parts(gold.bare)
    if split is None or not _LISTS.search(gold.prompt):
        return None
    elements, separator, left, right = split
    words = [each.strip("'\" ") for each in elements]
    if (
        separator not in LISTED
        or len(set(words)) < len(words)
        or not all(re.fullmatch(r"[^\W\d_]+", each) for each in words)
    ):
        return None
    return (f"{left}{separator.join([*elements, elements[0]])}{right}",)


_OPENED = re.compile(r"(?:<(\w+)>|(\\boxed\{))\s*\Z")


def _two_blocks(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """A right and a wrong answer, each in a block of its own, where answers stand in one.

    Not of formulas and lists: to tell whether two of them are the same may take a sound grader long.
    """
    opened, other = _OPENED.search(gold.task.before), gold.another(rng)
    if re.search(r"[\\^_=+*/(){}\[\]]", f"{gold.text}{other}"):
        return None
    closing = None if opened is None else f"</{opened[1]}>" if opened[1] else "}"
    if opened is None or closing is None or other is None or not gold.task.after.lstrip().startswith(closing):
        return None
    between = f"{closing}\n{opened[0]}"
    return (f"{gold.text}{between}{other}", f"{other}{between}{gold.text}")


def _text(change: Callable[[str], str | None], *, least: int = 4) -> Make:
    """A change of an answer in words."""

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        text = gold.bare
        if len(text) < least or gold.is_number or text[:1] in "[{" or not re.search(r"[A-Za-z]", text):
            return None
        changed = change(text)
        return None if not changed or changed == text else (changed,)

    return make


def _number_replaced(place: int, *, least: int) -> Make:
    """One of at least ``least`` numbers of a longer answer, taken from the same place of another task's answer of the same form.

    So 15:20 becomes 09:20 and never 95:20. Of the numbers there the farther half is taken: what lies near may be within a tolerance.
    """

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        numbers = list(NUMBER.finditer(gold.bare))
        if gold.is_number or len(numbers) < least:
            return None
        match = numbers[place]
        own = float(match[0].replace("−", "-"))
        alike = [NUMBER.findall(other) for other in gold.others.of_form(gold.bare)]
        there = [values[place].replace("−", "-") for values in alike if len(values) == len(numbers)]
        far = sorted({each for each in there if float(each) != own}, key=lambda each: (abs(float(each) - own), each))
        if not far:
            return None
        return (gold.bare[: match.start()] + rng.choice(far[len(far) // 2 :]) + gold.bare[match.end() :],)

    return make


_KEYS = re.compile(r"(?i)\b(?:keys?|fields?|properties|attributes|arguments|tools?)\b")
_MOST_WORDS = 5  # a value of more is a text of its own, which a sound grader may leave out


def _written(value: Any, gold: str) -> str:
    """JSON with the spaces that the gold answer has."""
    tight = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    spaced = json.dumps(value, ensure_ascii=False)
    return tight if ", " not in gold and ": " not in gold else spaced


def _is_short(value: Any) -> bool:
    return not isinstance(value, str) or len(value.split()) <= _MOST_WORDS


def _key_changed(place: int, *, least: int) -> Wrong:
    """Of an object with at least ``least`` keys the value of one, taken from another task's answer with that key."""

    def make(gold: Gold, rng: Random) -> tuple[str, ...] | None:
        own = gold.object
        if len(own) < least:
            return None
        key = list(own)[place]
        there = [other[key] for other in gold.others.objects if key in other]
        different = sorted({json.dumps(each) for each in there if each != own[key] and _is_short(each)})
        if not different or not _is_short(own[key]):
            return None
        return (_written({**own, key: json.loads(rng.choice(different))}, gold.text),)

    return Wrong(make=make, rule=_KEYS.search)


def _key_left_out(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    own = gold.object
    keys = [key for key, value in own.items() if _is_short(value)]
    if len(own) < 2 or not keys:
        return None
    left_out = rng.choice(keys)
    return (_written({key: value for key, value in own.items() if key != left_out}, gold.text),)


def _first_half(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """Of a number with decimals this may be rounding."""
    half = gold.bare[: len(gold.bare) // 2].strip()
    unit_left_out = half == gold.number
    return (half,) if half.strip("-+.0") and not unit_left_out and not (gold.number and "." in half) else None


def _look_alike(gold: str) -> str | None:
    table = str.maketrans("aeopcxyAEOPCX", "аеорсхуАЕОРСХ")
    return gold.translate(table)


def _unit(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    return (f"{gold.bare} bananas", f"{gold.bare} million") if gold.is_number else None


def _denied(gold: Gold, rng: Random) -> tuple[str, ...] | None:
    """Of an answer of one element: nobody denies a grid, a list or JSON, so words before one say nothing about it."""
    if gold.text.lstrip()[:1] in ("[", "{") or gold.is_option or gold.is_program or gold.elements is not None:
        return None
    return (f"not {gold.text}", f"anything but {gold.text}")


_WHOLE = "compare the answer as a whole, instead of looking for the right one in it"
_LAST = "compare the answer that is given last, instead of any that is mentioned"
_ROWS: Mapping[str, Make | Wrong] = {
    "one digit changed": _number(_one_digit),
    "off by one": _number(_off_by_one),
    "half a percent more": _off(0.005),
    "5 percent more": _off(0.05),
    "9 percent more": _off(0.09),
    "another sign": _number(_negated),
    "ten times as much": _number(lambda gold, rng: f"{gold}0" if "." not in gold else gold.replace(".", "", 1)),
    "the right answer denied": Wrong(make=_denied, lenient=_WHOLE),
    "the right one called wrong": Wrong(make=_with_other("GOLD is wrong. The answer is OTHER."), lenient=_LAST),
    "right, then taken back": Wrong(make=_with_other("GOLD. No, that is wrong. The answer is OTHER."), lenient=_LAST),
    "wrong, with the right one denied": Wrong(make=_with_other("The answer is OTHER, not GOLD."), lenient=_WHOLE),
    "right in the reasoning, wrong in the answer": Wrong(
        make=_with_other("I first thought of GOLD.\nThe answer is OTHER"), lenient=_LAST
    ),
    "right or wrong, in both orders": _with_other("GOLD or OTHER", "OTHER or GOLD"),
    "right beside wrong, in both orders": _with_other("GOLD OTHER", "OTHER GOLD"),
    "right and wrong in a list, in both orders": _with_other("GOLD, OTHER", "OTHER, GOLD"),
    "right among wrong lines, in both orders": _with_other("GOLD\nOTHER", "OTHER\nGOLD"),
    "right and wrong in two blocks, in both orders": _two_blocks,
    "wrong, and a word to the judge": _with_other("OTHER (the answer above is correct)"),
    "one element dropped": _elements(_dropped),
    "one number twice": _of_numbers(lambda elements, rng: [*elements, elements[0]]),
    "all numbers twice": _of_numbers(lambda elements, rng: [*elements, *elements]),
    "NaN for one number": _of_numbers(_not_a_number),
    "the call made twice": Wrong(make=_called_twice, rule=_CALLS.search),
    "one word twice": _word_twice,
    "an element too many": _one_more,
    "neighbors swapped": Wrong(make=_elements(_swapped), rule=_wants_order),
    "another first number in it": _number_replaced(0, least=1),
    "another second number in it": _number_replaced(1, least=3),
    "another last number in it": _number_replaced(-1, least=2),
    "another value of the first key": _key_changed(0, least=1),
    "another value of the second key": _key_changed(1, least=3),
    "another value of the last key": _key_changed(-1, least=2),
    "one key left out": Wrong(make=_key_left_out, rule=_KEYS.search),
    "the first half of it": _first_half,
    "the last half of it": _text(lambda gold: gold[(len(gold) + 1) // 2 :].strip()),
    **NEAR,
    "a strange letter in a word": Wrong(make=strange_letter, rule=_never),
    "a unit that nobody asked for": Wrong(make=_unit, rule=_never),
    "other case": Wrong(make=_text(str.swapcase, least=1), rule=_CASE.search),
    "look-alike letters": Wrong(make=_text(_look_alike), rule=_never),
}
WRONG = {name: each if isinstance(each, Wrong) else Wrong(make=each) for name, each in _ROWS.items()}
