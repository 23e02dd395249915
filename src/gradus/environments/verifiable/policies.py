"""Scripted policies of verifiable tasks: floors, reflexes, exploits, teachers and the ceiling.

Each is a function from an episode's start and its question to an answer. Those that look at the gold answer (gold, teacher,
noisy, careless) are privileged: they ask the environment for its outcome before it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from gradus.core import ConfigError, EpisodeStart, Policy
from gradus.environments.verifiable.arithmetic import guesses, one_short, solve, work
from gradus.policies.scripted import FunctionPolicy

Answerer = Callable[[EpisodeStart, str, Random], str]
Writer = Callable[[str, str], str]


def text_policy(name: str, answer: Answerer) -> Policy:
    """Makes a policy that answers each question by a function; its randomness comes from the episode's key."""
    return FunctionPolicy(name, lambda seen, script: answer(script.start, seen.text, script.rng))


def in_format(reasoning: str, answer: str) -> str:
    """Writes the strict format.

    >>> in_format("1 + 1 = 2", "2")
    '<reasoning> 1 + 1 = 2 </reasoning> <answer> 2 </answer>'
    """
    return f"<reasoning> {reasoning} </reasoning> <answer> {answer} </answer>"


def make_policies(
    sample_answer: Callable[[Random], str],
    common_answer: str,
    *,
    sums: bool = False,
    worked: bool = True,
    write: Writer = in_format,
) -> dict[str, Callable[[str | None], Policy]]:
    """Makes factories of policies by name. ``sample_answer`` draws a plausible answer, ``common_answer`` is the most frequent one.

    ``sums``: the columns hold a sum, so that a pupil's policies can be offered. ``worked``: there are worked solutions.
    ``write``: an answer as a completion, from reasoning and answer. Without worked solutions ``noisy`` writes gold answers, and
    another task's at random.
    """

    def random(_: EpisodeStart, __: str, rng: Random) -> str:
        return write("a guess", sample_answer(rng))

    def shotgun(_: EpisodeStart, __: str, rng: Random) -> str:
        return write("many guesses", " or ".join(sample_answer(rng) for _ in range(20)))

    policies: dict[str, Callable[[str | None], Policy]] = {
        "random": _plain("random", random),
        "constant": lambda argument: text_policy(
            f"constant:{argument or common_answer}",
            lambda _, __, ___: write("always the same", argument or common_answer),
        ),
        "format-only": _plain("format-only", lambda _, __, ___: write("let me think", "the answer")),
        "silence": _plain("silence", lambda _, __, ___: ""),
        "copy": _plain(
            "copy",
            lambda _, question, ___: write(
                "see the question", question.removeprefix("What is ").removesuffix("?").strip()
            ),
        ),
        "shotgun": _plain("shotgun", shotgun),
        "spam": _plain("spam", lambda _, __, ___: " ".join([write("so", common_answer)] * 8)),
        "gold": _plain("gold", lambda start, _, __: write("known", start.environment.outcome()["answer"])),
    }
    policies["noisy"] = lambda argument: text_policy(
        f"noisy:{argument or 0.5}", _noisy(_share("noisy", argument), sample_answer, sums, write)
    )
    if worked:
        policies["teacher"] = _plain("teacher", _teach)
    if sums:
        policies["no-carry"] = _plain("no-carry", _without_carry)
        policies["careless"] = lambda argument: text_policy(
            f"careless:{argument or 0.5}", _careless(_share("careless", argument))
        )
    return policies


def _plain(name: str, answer: Answerer) -> Callable[[str | None], Policy]:
    def make(argument: str | None) -> Policy:
        if argument is not None:
            raise ConfigError(f"policy {name!r} takes nothing after a colon, got {argument!r}")
        return text_policy(name, answer)

    return make


def _teach(start: EpisodeStart, _: str, __: Random) -> str:
    outcome = start.environment.outcome()
    return in_format(outcome["worked"] or "known", outcome["answer"])


def _noisy(slip: float, sample_answer: Callable[[Random], str], sums: bool, write: Writer) -> Answerer:
    """A teacher who slips: in a sum in each column and carries it on, elsewhere in the final answer."""

    def answer(start: EpisodeStart, _: str, rng: Random) -> str:
        outcome = start.environment.outcome()
        if sums:
            return in_format(*work(*_sum_of(outcome), slip=guesses(rng, slip)))
        wrong = rng.random() < slip
        return write(outcome["worked"] or "known", sample_answer(rng) if wrong else outcome["answer"])

    return answer


def _careless(chance: float) -> Answerer:
    """A teacher who knows the form and is one short in a column by ``chance``."""

    def answer(start: EpisodeStart, _: str, rng: Random) -> str:
        return in_format(*work(*_sum_of(start.environment.outcome()), slip=one_short(rng, chance)))

    return answer


def _without_carry(start: EpisodeStart, question: str, __: Random) -> str:
    """Honest and half able: adds, subtracts or multiplies each column and forgets what is carried."""
    left, operation, right = question.removeprefix("What is ").removesuffix(" ?").split()
    size = max(len(left), len(right))
    tops, bottoms = left.zfill(size), (right * size if operation == "*" else right.zfill(size))
    digits = [str(solve(int(a), operation, int(b)) % 10) for a, b in zip(tops, bottoms, strict=True)]
    return in_format("column by column", str(int("".join(digits))))


def _sum_of(outcome: Mapping[str, Any]) -> tuple[int, str, int]:
    columns = outcome["columns"]
    return columns["left"], columns["operation"], columns["right"]


def _share(name: str, argument: str | None) -> float:
    try:
        share = float(argument or 0.5)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} takes a share between 0 and 1 after the colon, got {argument!r}")
    return share
