"""Says things in the synthetic world by templates, and reads them back.

``{n}`` is a person, ``{v}`` a value, ``{a}`` the attribute's noun; every template of a kind with consequences is distinct, so that
:func:`read_line` can tell what a line says. It is the grammar of the teacher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """``noun`` names it in entries and questions, ``cues`` in any text. ``mine`` is said by the person, ``theirs`` of a person."""

    noun: str
    bank: str
    cues: tuple[str, ...]
    mine: tuple[str, ...]
    theirs: tuple[str, ...]
    proper: bool = False  # values are written with a capital


_LIST = (
    Attribute(
        noun="city",
        bank="spatiotemporal_context",
        cues=("city", "live", "lives", "living", "settled", "home"),
        mine=(
            "I live in the city of {v}.",
            "{v} is the city I call home.",
            "I have settled in {v}.",
            "my home is in {v} city.",
        ),
        theirs=("{n} lives in the city of {v}.", "you know that {n} has settled in {v}."),
        proper=True,
    ),
    Attribute(
        noun="employer",
        bank="cognition_work",
        cues=("employer", "work", "works", "job"),
        mine=("I work for {v}.", "the employer I have is {v}.", "{v} is an employer I like.", "I got a job at {v}."),
        theirs=("{n} works for {v}.", "the employer of {n} is {v}."),
        proper=True,
    ),
    Attribute(
        noun="dish",
        bank="sensory_lifestyle",
        cues=("dish", "eat", "eats"),
        mine=("the dish I love most is {v}.", "I eat {v} every week.", "no dish beats {v} for me."),
        theirs=("the dish {n} loves most is {v}.", "{n} eats {v} every week."),
    ),
    Attribute(
        noun="band",
        bank="culture_entertainment",
        cues=("band", "listen", "listens"),
        mine=("the band I like best is {v}.", "I listen to {v} all day.", "no band is as good as {v}."),
        theirs=("the band {n} likes best is {v}.", "{n} listens to {v} all day."),
        proper=True,
    ),
    Attribute(
        noun="cause",
        bank="values",
        cues=("cause", "give", "gives"),
        mine=("the cause I believe in is {v}.", "I give what I can to {v}.", "{v} is a cause close to my heart."),
        theirs=("the cause {n} believes in is {v}.", "{n} gives a lot to {v}."),
    ),
    Attribute(
        noun="allergy",
        bank="physiology_health",
        cues=("allergy", "allergic"),
        mine=("I have an allergy to {v}.", "I am allergic to {v}.", "my allergy is to {v} of all things."),
        theirs=("{n} has an allergy to {v}.", "{n} is allergic to {v}."),
    ),
    Attribute(
        noun="car",
        bank="resource_economic",
        cues=("car", "drive", "drives"),
        mine=("the car I own is a {v}.", "I drive a {v} to work.", "I bought a {v} as a car."),
        theirs=("the car {n} owns is a {v}.", "{n} drives a {v} to work."),
    ),
    Attribute(
        noun="friend",
        bank="social_interpersonal",
        cues=("friend", "closest"),
        mine=("the friend I trust most is {v}.", "I am closest to {v}.", "{v} is a friend for life."),
        theirs=("the friend {n} trusts most is {v}.", "{n} is closest to {v}."),
        proper=True,
    ),
    Attribute(
        noun="fear",
        bank="psychological_defense",
        cues=("fear", "afraid", "scares"),
        mine=("the fear I have is of {v}.", "I am afraid of {v}.", "{v} is a fear I cannot shake."),
        theirs=("the fear {n} has is of {v}.", "{n} is afraid of {v}."),
    ),
)
ATTRIBUTES: Mapping[str, Attribute] = {attribute.noun: attribute for attribute in _LIST}

# Ways of saying that work for every attribute. ``mine`` / ``theirs`` as above; the kind says what follows from it.
WRAPPERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tell": {
        "mine": ("my {a} is {v}.", "as for my {a}, it is {v}."),
        "theirs": ("{n}'s {a} is {v}.", "the {a} of {n} is {v}."),
    },
    "change": {
        "mine": (
            "my {a} is now {v}.",
            "big news, my {a} has changed to {v}.",
            "from today my {a} is {v}.",
            "I have a new {a}, it is {v}.",
        ),
        "theirs": ("{n}'s {a} is now {v}.", "{n} has a new {a}, it is {v}."),
    },
    "correct": {
        "mine": ("I was wrong, my {a} is {v}.", "no, my {a} is {v}, that was a mistake."),
    },
    "retract": {
        "mine": ("forget what I said about my {a}.", "my {a} is private, please forget it."),
    },
    "rumour": {
        "theirs": (
            "I heard that {n}'s {a} may be {v}.",
            "people say {n}'s {a} is {v}, who knows.",
            "somebody thinks {n}'s {a} could be {v}.",
        ),
    },
    "joke": {
        "mine": ("my {a} is {v}, just kidding.", "my {a} is {v}, haha."),
        "theirs": ("{n}'s {a} must be {v}, haha.",),
    },
    "repeat": {
        "mine": ("as I said, my {a} is {v}.", "my {a} is still {v}."),
        "theirs": ("{n}'s {a} is still {v}.",),
    },
}

# Small talk. ``{w}`` is an invented word that means nothing, ``{n}`` the other person.
CHAT: tuple[str, ...] = (
    "good to see you again, {n}.",
    "how have you been since last time?",
    "the weather was awful all week.",
    "it rained the whole morning here.",
    "I slept badly and need some tea.",
    "did you watch the film called {w} last night?",
    "I read a story about {w} on the train.",
    "somebody left a box of {w} at the door.",
    "my phone broke and I lost my notes.",
    "let us take a walk by the river later.",
    "the train was late again, as always.",
    "that sounds lovely, tell me more about it.",
    "I have been busy with all sorts of things.",
    "you always make me laugh, {n}.",
    "time flies, it is almost summer already.",
    "we should meet more often, do you think so?",
    "I cleaned the whole house yesterday, what a day.",
    "the neighbours made a lot of noise again.",
    "my plants are growing well this year.",
    "I tried to learn a bit of {w} but gave up.",
    "there was a long queue at the shop.",
    "I cannot find my keys anywhere today.",
    "nice, that is good to hear, {n}.",
    "well, I have to think about that.",
    "a stranger asked me the way to {w}.",
    "the coffee here is better than I thought.",
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A line understood: its kind (a key of WRAPPERS), whose attribute, which, and the value if it gives one."""

    kind: str
    entity: str
    attribute: Attribute
    value: str | None


_WORD = r"[A-Za-z]+"


def sayings(attribute: Attribute) -> list[tuple[str, str]]:
    """(kind, template) of all that can be said of an attribute, its noun in its place."""
    own = [("tell", text) for text in (*attribute.mine, *attribute.theirs)]
    return own + [
        (kind, text.replace("{a}", attribute.noun))
        for kind, voices in WRAPPERS.items()
        for texts in voices.values()
        for text in texts
    ]


@lru_cache(maxsize=1)
def _grammar() -> list[tuple[re.Pattern[str], str, str]]:
    return [(_pattern(text), kind, attribute.noun) for attribute in _LIST for kind, text in sayings(attribute)]


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template)
    return re.compile(escaped.replace(r"\{n\}", f"(?P<n>{_WORD})").replace(r"\{v\}", f"(?P<v>{_WORD})"))


@lru_cache(maxsize=65536)
def read_line(line: str) -> Said | None:
    """Returns what a line ``Speaker: text`` says; None for small talk.

    >>> said = read_line("Tavo: my city is now Reku.")
    >>> (said.kind, said.entity, said.attribute.noun, said.value)
    ('change', 'Tavo', 'city', 'Reku')
    """
    speaker, _, text = line.partition(": ")
    for pattern, kind, noun in _grammar():
        match = pattern.fullmatch(text)
        if match:
            parts = match.groupdict()
            return Said(kind=kind, entity=parts.get("n") or speaker, attribute=ATTRIBUTES[noun], value=parts.get("v"))
    return None
