"""Scripted policies of verifiable tasks: floors, reflexes, exploits, teachers and the ceiling.

Each is a function from an observation and a script to an answer. Those that look at the gold answer (gold, teacher, noisy, careless) are
privileged: they ask the environment for its outcome before it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from gradus.core import Observation, Policy
from gradus.core.values import Json
from gradus.environments.verifiable.arithmetic import guesses, one_short, solve, work
from gradus.policies.scripted import Answer, FunctionPolicy, Script, policy_factory, read_share

Writer = Callable[[str, str], str]


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
    worked: bool = True,
    write: Writer = in_format,
) -> dict[str, Callable[[str | None], Policy]]:
    """Makes factories of policies by name. ``sample_answer`` draws a plausible answer, ``common_answer`` is the most frequent one.

    ``worked``: there are worked solutions. ``write``: an answer as a completion, from reasoning and answer. ``noisy`` writes gold
    answers, and another task's at random.
    """

    # Exploits come first: none of these looks at the gold answer, so none may earn anything.
    def copied(seen: Observation, _: Script) -> str:
        return write("see the question", seen.text.removeprefix("What is ").removesuffix("?").strip())

    def shotgun(_: Observation, script: Script) -> str:
        return write("many guesses", " or ".join(sample_answer(script.rng) for _ in range(20)))

    def constant(argument: str | None) -> Policy:
        answer = argument or common_answer
        return FunctionPolicy(f"constant:{answer}", lambda _, __: write("always the same", answer))

    def noisy(slip: float) -> Answer:
        def answer(_: Observation, script: Script) -> str:
            outcome = outcome_of(script)
            # Drawn before the answer, so that a share of 0 and of 1 draw alike.
            wrong = script.rng.random() < slip
            return write(outcome["worked"] or "known", sample_answer(script.rng) if wrong else outcome["answer"])

        return answer

    answers: dict[str, Answer] = {
        "random": lambda _, script: write("a guess", sample_answer(script.rng)),
        "format-only": lambda _, __: write("let me think", "the answer"),
        "silence": lambda _, __: "",
        "copy": copied,
        "shotgun": shotgun,
        "spam": lambda _, __: " ".join([write("so", common_answer)] * 8),
        "gold": lambda _, script: write("known", outcome_of(script)["answer"]),
    }
    if worked:
        answers["teacher"] = _teach
    policies = {name: policy_factory(name, answer) for name, answer in answers.items()}
    return {**policies, "constant": constant, "noisy": by_share("noisy", noisy)}


def sum_policies(
    sample_answer: Callable[[Random], str], common_answer: str
) -> dict[str, Callable[[str | None], Policy]]:
    """Makes the policies of sums: all of :func:`make_policies`, and what pupils do. ``noisy`` slips in a column and carries it on."""

    def slipping(slips: Callable[[Random, float], Callable[[int, str], int]]) -> Callable[[float], Answer]:
        def teacher(chance: float) -> Answer:
            return lambda _, script: in_format(*work(*_operands(script), slip=slips(script.rng, chance)))

        return teacher

    return {
        **make_policies(sample_answer, common_answer),
        "noisy": by_share("noisy", slipping(guesses)),
        "no-carry": policy_factory("no-carry", _without_carry),
        "careless": by_share("careless", slipping(one_short)),
    }


def by_share(name: str, answer: Callable[[float], Answer]) -> Callable[[str | None], Policy]:
    """Makes an entry for ``EnvironmentSpec.policies`` that takes a share after the colon, a half if there is none."""

    def make(argument: str | None) -> Policy:
        return FunctionPolicy(f"{name}:{argument or 0.5}", answer(read_share(name, argument, 0.5)))

    return make


def outcome_of(script: Script) -> Json:
    """Returns what the environment knows of its task before the answer."""
    return script.start.environment.outcome()


def _teach(_: Observation, script: Script) -> str:
    outcome = outcome_of(script)
    return in_format(outcome["worked"] or "known", outcome["answer"])


def _without_carry(seen: Observation, _: Script) -> str:
    """Honest and half able: adds, subtracts or multiplies each column and forgets what is carried."""
    first, operation, second = seen.text.removeprefix("What is ").removesuffix(" ?").split()
    size = max(len(first), len(second))
    tops = first.zfill(size)
    # The one factor of a product stands below every column.
    bottoms = second * size if operation == "*" else second.zfill(size)
    digits = [str(solve(int(top), operation, int(bottom)) % 10) for top, bottom in zip(tops, bottoms, strict=True)]
    return in_format("column by column", str(int("".join(digits))))


def _operands(script: Script) -> tuple[int, str, int]:
    columns = outcome_of(script)["columns"]
    return columns["left"], columns["operation"], columns["right"]
