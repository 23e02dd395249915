"""Planted graders: sound ones, sound ones written differently, and flawed ones, all made from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gradus.auditing.text.tasks import Judge, TextSubject, TextTask
from gradus.core import child_rng
from scoreboard.families import FAMILIES, REFACTORINGS, Family
from scoreboard.flaws import FLAWS

_TASKS = 48
_EACH = 4  # graders of a class of flaws


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A grader and what is known of it: the class of its flaw, or None if it is sound."""

    name: str
    flaw: str | None
    subject: TextSubject


def plants(seed: int) -> Iterator[Plant]:
    """Every family in every sound form, and four graders of every class of flaws, in families drawn from the seed."""
    for family in FAMILIES.values():
        for name, sound in REFACTORINGS.items():
            rng = child_rng(seed, "sound", family.name, name)
            tasks = _tasks(family, rng, before=sound.before, after=sound.after)
            yield _plant(f"{family.name}, {name}", None, tasks, sound.make(family.judge, rng))
    for name, flaw in FLAWS.items():
        rng = child_rng(seed, "flaw", name)
        fitting = [family for family in FAMILIES.values() if flaw.fits(family)]
        rng.shuffle(fitting)
        for number in range(_EACH):
            family = fitting[number % len(fitting)]
            tasks = _tasks(family, rng, prompt=flaw.prompt)
            yield _plant(f"{family.name} {number}, {name}", name, tasks, flaw.make(family, rng))


def _plant(name: str, flaw: str | None, tasks: list[TextTask], judge: Judge) -> Plant:
    return Plant(
        name=name,
        flaw=flaw,
        subject=TextSubject(name=name, grader="planted", tasks=tasks, judge=judge, functions=[judge]),
    )


def _tasks(family: Family, rng: Random, *, prompt: str = "", before: str = "", after: str = "") -> list[TextTask]:
    rows: dict[str, str] = {}
    while len(rows) < _TASKS:
        question, gold = family.task(rng)
        rows.setdefault(question, gold)
    return [
        TextTask(
            key=f"{number}",
            prompt=question + prompt.replace("GOLD", gold),
            gold=gold,
            before=before,
            after=after,
            ordered=True if "ordered" in family.traits else None,
        )
        for number, (question, gold) in enumerate(rows.items())
    ]
