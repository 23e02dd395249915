"""Two graders. ``mem-alpha`` as it was published, to be studied; ``v2``, which cannot be had by storing everything or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import fsum
from typing import Any

from gradus.core import Episode, Grader, Reward, RewardTerm

MEM_ALPHA_WEIGHTS = {"answered": 1.0, "calls": 1.0, "compression": 0.05, "validity": 0.1}
V2_WEIGHTS = {"answered": 1.0, "calls": 0.1, "compression": 0.2, "facts": 0.1}

Json = Mapping[str, Any]
Mark = tuple[bool, bool]
"""Of one question: whether its answer is unknown, and whether it was answered right."""
Values = Mapping[str, float]
"""By component."""
TurnTerms = list[RewardTerm]
"""Of one turn."""


def strict_accuracy(episode: Episode) -> float | None:
    """Share of all questions that the strict reader got right; None if none was asked."""
    questions = episode.outcome.get("questions", ())
    return _right_share(questions, "strict") if questions else None


def _right_share(questions: Sequence[Json], reader: str) -> float:
    return sum(question["readings"][reader]["correct"] for question in questions) / len(questions)


def marks_of(questions: Sequence[Json], reader: str) -> list[Mark]:
    """The marks of questions as a reader answered them."""
    return [(question["unknown"], question["readings"][reader]["correct"]) for question in questions]


def balanced_accuracy(marks: Sequence[Mark]) -> float:
    """r1 of v2: right answers, where "unknown" counts only as far as what is known is answered.

    ``known * (n_known + n_unknown * unknown) / n``, with the accuracy on questions that have an answer and on those that have
    none: 1 for a perfect memory, 0 for an empty one, and never more for knowing less.
    """
    # Without this factor an empty memory would earn all questions whose answer is unknown.
    answerable = [right for unknown, right in marks if not unknown]
    if not answerable:
        return 0.0
    accuracy = sum(answerable) / len(answerable)
    right_unknown = sum(right for unknown, right in marks if unknown)
    return accuracy * (len(answerable) + right_unknown) / len(marks)


def smallness(memory_words: int, input_words: int) -> float:
    """r3' of v2 before it is multiplied by r1: clip((0.6 - m/c) / 0.5, 0, 1). Below a tenth of the input nothing more is earned."""
    share = memory_words / max(1, input_words)
    return min(1.0, max(0.0, (0.6 - share) / 0.5))


def _mem_alpha(outcome: Json, weights: Values) -> tuple[Values, list[TurnTerms]]:
    """arXiv 2509.25911: each action earns r1 + r2 + 0.05 r3 + 0.1 r4, r1 and r3 global; the reward is the mean over actions.

    r2 and r4 stand at the call that earned them, which credit by span keeps.
    """
    answered = _right_share(outcome["questions"], "reader" if outcome["counted"] == "reader" else "generous")
    compression = max(0.0, 1 - outcome["memory_words"] / max(1, outcome["input_words"]))
    rows: list[TurnTerms] = []
    for turn in outcome["turns"]:
        terms = [
            RewardTerm(component="answered", value=answered),
            RewardTerm(component="compression", value=compression),
        ]
        terms += _by_call("calls", turn["succeeded"], empty=0.0)
        rows.append(terms + _by_call("validity", turn["valid"], empty=1.0))
    return {name: _mean(rows, name) for name in weights}, _mean_terms(rows, weights)


def _v2(outcome: Json, weights: Values) -> tuple[Values, list[TurnTerms]]:
    """R = r1 + 0.1 r2 + 0.2 r1 r3' + 0.1 r4; r2 goes to the call and r4 to the chunk that earned it, r3' to the last turn.

    r1 is given as it grows: each chunk gets what it added to, or took from, the r1 of a dialogue that ends there. These terms
    add up to r1 and make a potential (Ng et al., 1999, Policy invariance under reward transformations), so that what is best to do stays the
    same, while a chunk no longer answers for what other chunks had stored. In long worlds, all of it goes to the last turn.
    """
    turns = outcome["turns"]
    answered = balanced_accuracy(marks_of(outcome["questions"], outcome["counted"]))
    compression = answered * smallness(outcome["memory_words"], outcome["input_words"])
    rows: list[TurnTerms] = []
    for turn in turns:
        # By the larger of the two: calls beside the facts cost as facts that were passed over do.
        most = max(turn["calls"], turn["facts"])
        facts = turn["right"] / most if most else 1.0
        rows.append([*_by_call("calls", turn["succeeded"], empty=0.0), RewardTerm(component="facts", value=facts)])
    terms = _mean_terms(rows, weights)
    # The last level is that of the whole dialogue, so the gains add up to r1.
    levels = [turn["answered"] or 0.0 for turn in turns[:-1]] + [answered]
    for row, (before, after) in zip(terms, pairwise([0.0, *levels]), strict=True):
        row.append(RewardTerm(component="answered", value=weights["answered"] * (after - before)))
    terms[-1].append(RewardTerm(component="compression", value=weights["compression"] * compression))
    components = {
        "answered": answered,
        "calls": _mean(rows, "calls"),
        "compression": compression,
        "facts": _mean(rows, "facts"),
    }
    return components, terms


def _by_call(component: str, marks: Sequence[bool | None], *, empty: float) -> TurnTerms:
    """The share of calls that did well, in parts that stand at the calls. ``empty``: what a turn earns without such a call."""
    judged = {place: mark for place, mark in enumerate(marks) if mark is not None}
    if not judged:
        return [RewardTerm(component=component, value=empty)]
    terms: TurnTerms = []
    for place, mark in judged.items():
        terms.append(RewardTerm(component=component, value=mark / len(judged), span=f"call-{place}"))
    return terms


def _mean(rows: Sequence[TurnTerms], name: str) -> float:
    return fsum(term.value for row in rows for term in row if term.component == name) / len(rows)


def _mean_terms(rows: Sequence[TurnTerms], weights: Values) -> list[TurnTerms]:
    """The terms of components that are means over turns, with their weights."""

    def share(term: RewardTerm) -> RewardTerm:
        return replace(term, value=weights[term.component] * term.value / len(rows))

    return [list(map(share, row)) for row in rows]


def _problem(episode: Episode) -> str | None:
    """Says why an episode cannot be graded."""
    questions = episode.outcome["questions"]
    if not questions:
        return "the world asked no question, so nothing says what the memory is worth"
    return next((question["error"] for question in questions if question["error"]), None)


_Compute = Callable[[Json, Values], tuple[Values, list[TurnTerms]]]
"""(outcome, weights) -> (components, the terms of each turn)."""


def _grader(name: str, compute: _Compute, weights: Values, summary: str) -> Grader:
    def reward(episode: Episode) -> Reward:
        problem = _problem(episode)
        if problem is not None:
            return Reward(grader=name, value=None, error=problem)
        components, rows = compute(episode.outcome, weights)
        value = fsum(weights[part] * share for part, share in components.items())
        return Reward(grader=name, value=value, components=components, terms=tuple(map(tuple, rows)))

    return Grader(
        name=name,
        summary=summary,
        weights=weights,
        compute=lambda episodes: [reward(episode) for episode in episodes],
        per_turn=True,
        range=(0.0, fsum(weights.values())),
    )


GRADERS: Mapping[str, Grader] = {
    "v2": _grader(
        "v2",
        _v2,
        V2_WEIGHTS,
        "strict answers, small memories, facts stored rightly; silence, spam and dumping lose",
    ),
    "mem-alpha": _grader(
        "mem-alpha",
        _mem_alpha,
        MEM_ALPHA_WEIGHTS,
        "as published (arXiv 2509.25911); storing every chunk as it came earns almost all of it",
    ),
}
