"""Search for answers that pay: pieces of blind answers are joined, cut and doubled; the best one is shortened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gradus.auditing.records import LEAST_EFFECT
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.blind import BLIND, REFLEXES, Operator
from gradus.auditing.text.gold import Gold, states
from gradus.auditing.text.rates import Probe, Rate
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import TextTask
from gradus.core import child_rng

_POPULATION = 24
_GENERATIONS = 8
_TASKS = 6  # of a generation
_PARENTS = 8
_JUDGED = 3
_PIECES = 6  # at most, in one answer
_LONG = 2000  # characters: longer pieces are probed elsewhere
_SHORTENED_ON = 12
_ROUNDS = 12
_KEPT = 0.9  # of the effect that the shorter answer must keep
_JOINERS = ("", " ", ", ", "\n", " or ", "\n\n")
_FRAMES = (
    ("", ""),
    ("<answer>", "</answer>"),
    ("\\boxed{", "}"),
    ("The answer is ", "."),
    ("[", "]"),
    ('"', '"'),
    ("```\n", "\n```"),
)
_MAKERS: Mapping[str, Operator] = {**BLIND, **REFLEXES}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an answer is put together for any task: names of pieces, what joins them, a frame, a cut and how often it is said."""

    pieces: tuple[str, ...]
    joiner: str = " "
    frame: tuple[str, str] = ("", "")
    cut: int | None = None
    times: int = 1

    @property
    def name(self) -> str:
        parts = [" + ".join(self.pieces)]
        parts += [f"joined by {self.joiner!r}"] if len(self.pieces) > 1 else []
        parts += [f"in {self.frame[0]}...{self.frame[1]}"] if any(self.frame) else []
        parts += [f"cut to {self.cut} characters"] if self.cut else []
        return ", ".join([*parts, *([f"{self.times} times"] if self.times > 1 else [])])

    def answer(self, gold: Gold, rng: Random) -> str | None:
        """The answer to a task; None if a piece cannot be made for it."""
        texts = [_MAKERS[piece](gold, rng) for piece in self.pieces]
        if any(text is None or len(text) > _LONG for text in texts):
            return None
        text = self.joiner.join(text or "" for text in texts)
        text = text[: self.cut] if self.cut else text
        return self.joiner.join([f"{self.frame[0]}{text}{self.frame[1]}"] * self.times)


def evolve(ground: Ground, known: Sequence[str], *, budget: int | None = None) -> tuple[list[Rate], int | None]:
    """The best answers of a fixed population after a fixed number of generations, judged on tasks that did not choose them.

    A generation is scored on the next tasks of the first half; the finalists are judged on the second half. The pieces know no gold but
    those of other tasks. ``known``: operators to begin with. ``budget``: answers of all generations together; 8 generations if None.
    """
    tasks = [task for task in ground.tasks if task.key in ground.bases]
    half = len(tasks) // 2
    generations = _GENERATIONS if budget is None else budget // (_POPULATION * _TASKS)
    if half < 2 or generations < 1:
        return [], None
    rng = child_rng(ground.seed, "audit", "evolve")
    population = [Recipe(pieces=(name,)) for name in known]
    names = [*known, *_MAKERS]  # what already earned something is drawn more often
    while len(population) < _POPULATION:
        population.append(Recipe(pieces=tuple(rng.sample(names, 2)), joiner=rng.choice(_JOINERS)))
    best: list[Recipe] = []
    tried: set[Recipe] = set()
    for generation in range(generations):
        chosen = [tasks[(generation * _TASKS + i) % half] for i in range(min(_TASKS, half))]
        ranked = _ranked(ground, population, chosen)
        best = [recipe for _, recipe in ranked[:_PARENTS]]
        tried.update(recipe for _, recipe in ranked)
        if not best:  # none of them was scored: the time or the money is over
            return [], None
        children = [_changed(rng.choice(best), best, names, rng) for _ in range(_POPULATION - len(best))]
        population = list(dict.fromkeys([*best, *children]))
    finalists = [recipe for _, recipe in _ranked(ground, best, tasks[:half])[:_JUDGED]]
    rates = [_rate(ground, recipe, tasks[half:]) for recipe in finalists]
    return [each for each in rates if each is not None], len(tried)


def _ranked(ground: Ground, population: Sequence[Recipe], tasks: Sequence[TextTask]) -> list[tuple[float, Recipe]]:
    """Best unearned reward first; of two that earn the same the shorter."""
    rows = [row for recipe in population for row in _rows(ground, recipe, tasks)]
    ground.scorer.score([(task, task.whole(answer)) for task, answer in rows])
    rates = [(recipe, _rate(ground, recipe, tasks)) for recipe in population]
    scored = [(each.unearned["mean"] or 0.0, recipe) for recipe, each in rates if each is not None]
    return sorted(scored, key=lambda pair: (-round(pair[0], 3), len(pair[1].name), pair[1].name))


def _rows(ground: Ground, recipe: Recipe, tasks: Sequence[TextTask]) -> list[tuple[TextTask, str]]:
    rngs = [child_rng(ground.seed, "audit", "evolve", recipe.name, task.key) for task in tasks]
    answers = [recipe.answer(ground.golds[task.key], rng) for task, rng in zip(tasks, rngs, strict=True)]
    return [(task, answer) for task, answer in zip(tasks, answers, strict=True) if answer is not None]


def _rate(ground: Ground, recipe: Recipe, tasks: Sequence[TextTask]) -> Rate | None:
    rows = _rows(ground, recipe, tasks)
    scores = ground.scorer.score([(task, task.whole(answer)) for task, answer in rows])
    probes = [
        Probe(operator=recipe.name, task=task, answer=answer, value=score.value, right=_is_right(task, answer))
        for (task, answer), score in zip(rows, scores, strict=True)
        if score.error is None and not score.skipped
    ]
    return ground.rate(recipe.name, probes)


def _is_right(task: TextTask, answer: str) -> bool:
    gold = task.gold or ""
    return states(answer, gold) or re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", answer) is not None


def _changed(parent: Recipe, others: Sequence[Recipe], names: Sequence[str], rng: Random) -> Recipe:
    """One change: a piece more, less or other, two parents joined, another joiner or frame, a cut, or said twice."""
    pieces = parent.pieces
    move = rng.randrange(8)
    if move == 0:
        return replace(parent, pieces=(*pieces, rng.choice(names))[:_PIECES])
    if move == 1 and len(pieces) > 1:
        gone = rng.randrange(len(pieces))
        return replace(parent, pieces=pieces[:gone] + pieces[gone + 1 :])
    if move == 2:
        place = rng.randrange(len(pieces))
        return replace(parent, pieces=(*pieces[:place], rng.choice(names), *pieces[place + 1 :]))
    if move == 3:
        return replace(parent, pieces=(*pieces, *rng.choice(others).pieces)[:_PIECES])
    if move == 4:
        return replace(parent, joiner=rng.choice(_JOINERS))
    if move == 5:
        return replace(parent, cut=rng.choice((None, 1, 2, 4, 8, 16, 64)))
    if move == 6:
        return replace(parent, times=rng.choice((1, 2, 3)))
    return replace(parent, frame=rng.choice(_FRAMES))


def minimized(ground: Ground, rates: Sequence[Rate]) -> Mapping[str, Any] | None:
    """The best blind answer as one string for all tasks, shortened while it keeps nine tenths of what it earns.

    None if no single string earns more than the least effect.
    """
    scorer = ground.scorer
    rates = [each for each in rates if (each.above_silence["mean"] or 0.0) > LEAST_EFFECT]
    if not rates:
        return None
    tasks = [task for task in ground.tasks if task.key in ground.bases][:_SHORTENED_ON]
    candidates = list(dict.fromkeys(str(each.example["answer"]) for each in rates if not each.example["cut"]))
    earned = {answer: _mean_reward(scorer, tasks, answer) for answer in candidates}
    silence = _mean_reward(scorer, tasks, "")
    if not earned or max(earned.values()) - silence <= 0.5 * ground.span:
        return None
    start = max(earned, key=lambda answer: earned[answer])
    best, need = start, silence + _KEPT * (earned[start] - silence)
    for _ in range(_ROUNDS):
        shorter = list(dict.fromkeys(_cut(best)))
        scores = {answer: _mean_reward(scorer, tasks, answer) for answer in shorter}
        good = [answer for answer in shorter if scores[answer] >= need]
        if not good:
            break
        best = min(good, key=len)
    again = [score.value for score in scorer.fresh([(task, task.whole(best)) for task in tasks])]  # before it is shown
    known = [value for value in again if value is not None]
    if not known or sum(known) / len(known) < need:
        return None
    return {
        "answer": best,
        "completion": tasks[0].whole(best),
        "reward": sum(known) / len(known),
        "silence": silence,
        "tasks": len(tasks),
        "first": start,
    }


def _cut(answer: str) -> list[str]:
    """The answer without one of its halves, quarters or eighths, or, if it is short, without one character."""
    size = len(answer)
    pieces = [answer[:i] + answer[i + 1 :] for i in range(size)] if size <= 24 else []
    for parts in (2, 4, 8):
        step = max(1, size // parts)
        pieces += [answer[:start] + answer[start + step :] for start in range(0, size, step)]
    return [piece for piece in pieces if piece and piece != answer]


def _mean_reward(scorer: Scorer, tasks: Sequence[TextTask], answer: str) -> float:
    scores = scorer.score([(task, task.whole(answer)) for task in tasks])
    return sum(score.value or 0.0 for score in scores) / max(1, len(scores))
