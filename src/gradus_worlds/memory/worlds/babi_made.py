"""bAbI stories that are made: the shape of a story that was read, with other people, places and things, so that none is learnt by heart."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradus_worlds.memory.worlds.babi_story import read_sentence

Line = tuple[int, str]
"""A line's number and its text; a question has its answer and the numbers of its evidence behind tabs (or bars)."""

_ASKED = re.compile(r"(Where is the|Where is|What is) \w+( carrying)?\?")


@dataclass(frozen=True, kw_only=True)
class Cast:
    """The people, places and things of a task's stories. ``sayings``: kind of a sentence -> every way in which one was said, as often as it was."""

    people: tuple[str, ...]
    places: tuple[str, ...]
    things: tuple[str, ...]
    sayings: Mapping[str, tuple[str, ...]]


def cast_of(stories: Sequence[Sequence[Line]]) -> Cast:
    """Everybody and everything that moves or is moved in some stories, and how that is said."""
    read = [(text, sentence) for story in stories for _, text in story if (sentence := read_sentence(text))]
    sayings: dict[str, list[str]] = {}
    for text, (kind, who, what) in read:
        sayings.setdefault(kind, []).append(text.replace(who, "{who}", 1).replace(f"the {what}", "the {what}"))
    return Cast(
        people=tuple(sorted({who for _, (_, who, _) in read})),
        places=tuple(sorted({what for _, (kind, _, what) in read if kind == "move"})),
        things=tuple(sorted({what for _, (kind, _, what) in read if kind != "move"})),
        sayings={kind: tuple(said) for kind, said in sayings.items()},
    )


def can_be_made(shape: Sequence[Line], cast: Cast) -> bool:
    """Says whether everything that happens is understood, and all questions are of now: where somebody or something is, or what somebody carries."""
    asked = [re.split(r"[\t|]", text)[0].strip() for _, text in shape if "?" in text]
    told = [text for _, text in shape if "?" not in text]
    return len(cast.places) > 1 and all(map(_ASKED.fullmatch, asked)) and all(map(read_sentence, told))


def made_story(shape: Sequence[Line], cast: Cast, rng: random.Random) -> list[Line]:
    """A story with as many sentences between questions as ``shape``, and the same kinds of both where the state allows them.

    A question that has no answer yet is left out.
    """
    state, lines = _State(cast=cast, rng=rng), list[Line]()
    for _, text in shape:
        sentence, number = read_sentence(text), len(lines) + 1
        made = state.happens(sentence[0], number) if sentence else state.asked(text)
        lines += [(number, made)] if made else []
    return lines


@dataclass(kw_only=True)
class _State:
    """The places of people and things, each with the numbers of the lines that say so."""

    cast: Cast
    rng: random.Random
    where: dict[str, tuple[str, int]] = field(default_factory=dict)  # of people
    held: dict[str, tuple[str, int]] = field(default_factory=dict)  # thing -> who has it
    lies: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # thing -> where it was left

    def happens(self, kind: str, number: int) -> str:
        """A sentence of a kind if it is possible now, else somebody moves."""
        choices: list[tuple[str, str]] = []
        if kind == "take":
            choices = [
                (who, what)
                for who, (place, _) in self.where.items()
                for what in self.cast.things
                if what not in self.held and self.lies.get(what, (place,))[0] == place
            ]
        elif kind == "drop":
            choices = [(who, what) for what, (who, _) in self.held.items() if who in self.where]
        kind = kind if choices else "move"
        who, what = self.rng.choice(choices) if choices else self._way()
        if kind == "move":
            self.where[who] = what, number
        elif kind == "take":
            self.held[what] = who, number
            self.lies.pop(what, None)
        else:
            del self.held[what]
            self.lies[what] = (self.where[who][0], number, self.where[who][1])
        return self.rng.choice(self.cast.sayings[kind]).format(who=who, what=what)

    def _way(self) -> tuple[str, str]:
        who = self.rng.choice(self.cast.people)
        here = self.where.get(who, ("", 0))[0]
        return who, self.rng.choice([place for place in self.cast.places if place != here])

    def asked(self, text: str) -> str | None:
        """A question of the kind of ``text``, with its answer and evidence."""
        if text.startswith("What is"):
            who = self.rng.choice(list(self.where) or self.cast.people)
            has = [(what, number) for what, (holder, number) in self.held.items() if holder == who]
            answer = ",".join(what for what, _ in has) or "nothing"
            return _row(f"What is {who} carrying?", answer, [number for _, number in has])
        things = text.startswith("Where is the")
        known = self._known_things() if things else {who: (at, [n]) for who, (at, n) in self.where.items()}
        if not known:
            return None
        name = self.rng.choice(list(known))
        return _row(f"Where is {'the ' if things else ''}{name}?", *known[name])

    def _known_things(self) -> dict[str, tuple[str, list[int]]]:
        known = {what: (place, [left, moved]) for what, (place, left, moved) in self.lies.items()}
        for what, (who, taken) in self.held.items():
            place, moved = self.where[who]
            known[what] = place, [taken, moved]
        return known


def _row(question: str, answer: str, evidence: Sequence[int]) -> str:
    return f"{question}\t{answer}\t{' '.join(map(str, evidence))}"
