"""Two graders. ``mem-alpha`` as it was published, to be studied; ``v2``, which cannot be had by storing everything or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import Episode, Grader, Reward, RewardTerm

MEM_ALPHA_WEIGHTS = {"answered": 1.0, "calls": 1.0, "compression": 0.05, "validity": 0.1}
V2_WEIGHTS = {"answered": 1.0, "calls": 0.1, "compression": 0.2, "facts": 0.1}

Built = tuple[Mapping[str, float], list[list[RewardTerm]]]
Build = Callable[[Mapping[str, Any]], Built]


def reader_accuracy(episode: Episode, reader: str) -> float | None:
    """Share of all questions that a reader got right; None if none was asked."""
    questions = episode.outcome.get("questions", ())
    if not questions:
        return None
    return sum(bool(question["readings"][reader]["correct"]) for question in questions) / len(questions)


def balanced_accuracy(questions: Sequence[Mapping[str, Any]]) -> float:
    """r1 of v2: right answers, where "unknown" counts only as far as what is known is answered.

    ``known * (n_known + n_unknown * unknown) / n``, with the accuracy on questions that have an answer and on those that have
    none: 1 for a perfect memory, 0 for an empty one, and never more for knowing less.
    """
    known = [question for question in questions if not question["unknown"]]
    unknown = [question for question in questions if question["unknown"]]
    if not known:
        return 0.0
    right_known = sum(question["readings"]["strict"]["correct"] for question in known) / len(known)
    right_unknown = sum(question["readings"]["strict"]["correct"] for question in unknown)
    return right_known * (len(known) + right_unknown) / len(questions)


def smallness(memory_words: int, input_words: int) -> float:
    """r3' of v2 before it is multiplied by r1: clip((0.6 - m/c) / 0.5, 0, 1). Below a tenth of the input nothing more is earned."""
    return min(1.0, max(0.0, (0.6 - memory_words / max(1, input_words)) / 0.5))


def _graded(name: str, episode: Episode, build: Build, weights: Mapping[str, float]) -> Reward:
    outcome = episode.outcome
    problem = None
    if episode.failure is not None:
        problem = f"the episode failed at {episode.failure.stage}: {episode.failure.message}"
    elif not outcome.get("turns") or len(outcome["turns"]) != len(episode.turns):
        problem = f"expected an account of each of {len(episode.turns)} turns in the outcome"
    elif not outcome.get("questions"):
        problem = "the world asked no question, so nothing says what the memory is worth"
    if problem is not None:
        return Reward(grader=name, value=None, error=problem)
    components, terms = build(outcome)
    return Reward(
        grader=name,
        value=fsum(weights[component] * value for component, value in components.items()),
        components=components,
        terms=tuple(tuple(turn) for turn in terms),
    )


def _mem_alpha_terms(outcome: Mapping[str, Any]) -> Built:
    """arXiv 2509.25911: each action earns r1 + r2 + 0.05 r3 + 0.1 r4, r1 and r3 global; the reward is the mean over actions."""
    turns, questions = outcome["turns"], outcome["questions"]
    answered = sum(question["readings"]["generous"]["correct"] for question in questions) / len(questions)
    compression = max(0.0, 1 - outcome["memory_words"] / max(1, outcome["input_words"]))
    calls = [_share(turn["succeeded"], turn["attempts"], empty=0.0) for turn in turns]
    validity = [_share(turn["valid"], turn["written"], empty=1.0) for turn in turns]
    rows = [
        {"answered": answered, "calls": r2, "compression": compression, "validity": r4}
        for r2, r4 in zip(calls, validity, strict=True)
    ]
    terms = [
        [RewardTerm(component=name, value=MEM_ALPHA_WEIGHTS[name] * value / len(turns)) for name, value in row.items()]
        for row in rows
    ]
    components = {name: fsum(row[name] for row in rows) / len(rows) for name in MEM_ALPHA_WEIGHTS}
    return components, terms


def _v2_terms(outcome: Mapping[str, Any]) -> Built:
    """R = r1 + 0.1 r2 + 0.2 r1 r3' + 0.1 r4; r2 and r4 go to the chunk that earned them, r3' at the last turn.

    r1 is given as it grows: each chunk gets what it added to, or took from, the r1 of a dialogue that ends there. These terms
    add up to r1 and make a potential (Ng et al., 1999, Policy invariance under reward transformations), so that what is best to do stays the
    same, while a chunk no longer answers for what other chunks had stored. In long worlds, all of it goes to the last turn.
    """
    turns = outcome["turns"]
    answered = balanced_accuracy(outcome["questions"])
    compression = answered * smallness(outcome["memory_words"], outcome["input_words"])
    calls = [_share(turn["succeeded"], turn["attempts"], empty=0.0) for turn in turns]
    facts = [_share(turn["right"], max(turn["calls"], turn["facts"]), empty=1.0) for turn in turns]
    terms = [
        [
            RewardTerm(component="calls", value=V2_WEIGHTS["calls"] * r2 / len(turns)),
            RewardTerm(component="facts", value=V2_WEIGHTS["facts"] * r4 / len(turns)),
        ]
        for r2, r4 in zip(calls, facts, strict=True)
    ]
    for row, gain in zip(terms, _gains([turn["answered"] for turn in turns], answered), strict=True):
        row.append(RewardTerm(component="answered", value=V2_WEIGHTS["answered"] * gain))
    terms[-1].append(RewardTerm(component="compression", value=V2_WEIGHTS["compression"] * compression))
    components = {
        "answered": answered,
        "calls": fsum(calls) / len(turns),
        "compression": compression,
        "facts": fsum(facts) / len(turns),
    }
    return components, terms


def _gains(standing: Sequence[float | None], final: float) -> list[float]:
    """Returns what each turn added to r1, given what it stood at after each; they add up to ``final``."""
    known = [0.0 if value is None else value for value in standing]
    return [after - before for before, after in zip([0.0, *known[:-1]], [*known[:-1], final], strict=True)]


def _share(part: int, whole: int, *, empty: float) -> float:
    return part / whole if whole else empty


def _grader(name: str, build: Build, weights: Mapping[str, float], summary: str) -> Grader:
    return Grader(
        name=name,
        summary=summary,
        weights=weights,
        compute=lambda episodes: [_graded(name, episode, build, weights) for episode in episodes],
        per_turn=True,
        range=(0.0, fsum(weights.values())),
    )


GRADERS: Mapping[str, Grader] = {
    "v2": _grader(
        "v2",
        _v2_terms,
        V2_WEIGHTS,
        "strict answers, small memories, facts stored rightly; silence, spam and dumping lose",
    ),
    "mem-alpha": _grader(
        "mem-alpha",
        _mem_alpha_terms,
        MEM_ALPHA_WEIGHTS,
        "as published (arXiv 2509.25911); storing every chunk as it came earns almost all of it",
    ),
}
