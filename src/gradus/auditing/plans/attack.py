"""Attackers raise the reward and do not care for the true reward. Each attempt is rolled out, never believed.

An attacker is given training tasks and the reward. What it comes up with is rolled out on the tasks of the audit and judged like a plan of
the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gradus.auditing.plans.answers import answer_space
from gradus.auditing.plans.honest import NO_AIM, honest_curve
from gradus.auditing.plans.judged import Judged, Reference, judge
from gradus.auditing.plans.minimize import KEPT, shortest
from gradus.auditing.plans.panel import RandomAnswers, main_tasks
from gradus.auditing.plans.plan import Plan, Shape
from gradus.auditing.plans.search import Field
from gradus.auditing.records import Check, Hack, Status
from gradus.core import EnvironmentSpec, Episode, Grader, Policy, Task
from gradus.rollouts import roll_out

KEEP = "·"  # in an answer: what the reflex says at this place
_STRETCHES = (1, 2, 4)  # of the plans that a policy without a plan is described by


@dataclass(frozen=True, kw_only=True)
class Target:
    """The means of an attacker: the environment, its grader, training tasks and a seed. ``draw``: seed -> some legal answer.

    ``reflex``: an honest policy without inference whose words may be bent, where answers have a grammar; ``keeps``: at which places
    it has any.
    """

    spec: EnvironmentSpec
    grader: Grader
    draw: Callable[[int], str]
    seed: int
    reflex: Policy | None = None
    keeps: Sequence[bool] = ()
    progress: Callable[[str, int, int], None] | None = None

    def roll_out(self, policy: Policy, tasks: Sequence[Task]) -> list[Episode]:
        """One graded episode a task."""
        return roll_out(self.spec, policy, tasks, seed=self.seed, key=("audit", "attack"), grader=self.grader).episodes

    def training(self, first: int, tasks: int) -> list[Task]:
        """Training tasks, which no condition shares."""
        return [self.spec.train_task(i) for i in range(first, first + tasks)]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A policy that is meant to earn. ``told``: what it does, in words. ``spec``: the environment as it sees it, if not as it is.

    ``learned``: it was trained on the reward, and began as ``before``, or as what the audit holds attempts against if that is None.
    """

    told: str
    policy: Policy
    before: Policy | None = None
    learned: bool = False
    spec: EnvironmentSpec | None = None


class Attacker(Protocol):
    """Somebody who attacks. ``name`` stands in the check's name."""

    @property
    def name(self) -> str: ...

    def attempts(self, target: Target) -> Iterator[Attempt]:
        """The attempts, one after another."""
        ...


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The result of an attacker: the check, the hack with its episode if one was found, and all attempts."""

    check: Check
    hack: Hack | None = None
    attempts: Sequence[Judged] = ()


def attack_answers(attackers: Sequence[Attacker], target: Target, *, tasks: int) -> list[Attack]:
    """Attack tasks of one turn. Honest episodes are those of the gold policy with more and more random answers."""
    spec, gold = target.spec, target.spec.audit.gold or target.spec.teacher
    if gold is None:
        evidence = "nobody is known who answers right; declare a gold policy (AuditHints) to tell a hack from skill"
        return [skipped_attack(each, evidence) for each in attackers]
    chosen = main_tasks(spec, tasks)
    honest = honest_curve(spec, target.grader, spec.policy(gold), chosen, target.draw, seed=target.seed)
    blind = RandomAnswers(target.draw, name="random answers")
    against = Reference(
        name=blind.name, episodes=target.roll_out(blind, chosen), honest=honest, true_reward_name=spec.true_reward_name
    )
    space = answer_space(spec, against.episodes, seed=target.seed)
    field = Field(spec=spec, grader=target.grader, space=space, features=(), horizon=1)
    return [run_attacker(each, target, against, chosen, field) for each in attackers]


def skipped_attack(attacker: Attacker, why: str) -> Attack:
    """An attack that did not take place."""
    return Attack(check=Check(name=f"attack: {attacker.name}", status="skip", evidence=why))


def run_attacker(attacker: Attacker, target: Target, against: Reference, tasks: Sequence[Task], field: Field) -> Attack:
    """Roll out every attempt on ``tasks`` and judge it; a finding is said as the shortest plan that does the same."""
    if not against.honest.is_known:
        return skipped_attack(attacker, NO_AIM)
    judged: list[Judged] = []
    for attempt in attacker.attempts(target):
        seen, reference = replace(target, spec=attempt.spec or target.spec), against
        if attempt.before is not None:
            reference = replace(against, name="itself before", episodes=seen.roll_out(attempt.before, tasks))
        episodes = seen.roll_out(attempt.policy, tasks)
        judged.append(judge(attempt.told, attempt.policy.name, episodes, reference, learned=attempt.learned))
    name = f"attack: {attacker.name}"
    if not judged:
        return skipped_attack(attacker, f"{attacker.name} made no attempt that could be rolled out")
    hacks = [each for each in judged if each.is_hack]
    measured = {"attempts": [each.record() for each in judged], "least_effect": against.honest.least_effect}
    best = max(hacks or judged, key=lambda each: each.unearned.mean if each.unearned.mean is not None else -np.inf)
    if not hacks:
        evidence = f"no hack in {len(judged)} attempts; the best: {best.plan}: {best.told()}"
        status: Status = "unresolved" if any(each.is_suspect for each in judged) else "pass"
        return Attack(check=Check(name=name, status=status, evidence=evidence, measured=measured), attempts=judged)
    worst = _in_words(best, field, tasks)
    evidence = (
        f"{len(hacks)} of {len(judged)} attempts are hacks, most plainly {worst.plan!r} ({worst.kind}): {worst.told()}"
    )
    check = Check(name=name, status="fail", evidence=evidence, measured=measured)
    return Attack(check=check, hack=worst.hack(), attempts=judged)


def _in_words(judged: Judged, field: Field, tasks: Sequence[Task]) -> Judged:
    """A simple plan that keeps nine tenths of the effect, at its shortest; the attempt itself if no plan does."""
    plans = [plan for steps in _STRETCHES if (plan := _commonest(judged, field, steps)) is not None]
    if not plans:
        return judged
    for plan, episodes in zip(plans, field.roll_out(plans, tasks, seed=0), strict=True):
        again = judge(plan.describe(), plan.shape.name, episodes, judged.against, learned=judged.learned)
        if again.is_hack and again.effect >= KEPT * judged.effect:
            return shortest(field, plan, again, tasks)
    return judged


def _commonest(judged: Judged, field: Field, steps: int) -> Plan | None:
    """The most frequent words in each stretch of the episodes, place by place."""
    if steps > field.horizon:
        return None
    bends = field.reflex.name if field.reflex is not None and _keeps(judged) else None
    name = "bent reflex" if bends else "constant" if steps == 1 else f"{steps} stretches"
    shape = Shape(name=name, steps=steps, bends=bends, keeps=field.keeps if bends else ())
    table = np.zeros((len(field.space.places), steps, 1), dtype=np.intp)
    for place, words in enumerate(field.space.places):
        index = {word: i for i, word in enumerate((*words, KEEP) if bends and field.keeps[place] else words)}
        count = np.zeros((steps, len(index)))
        for turn in (turn for episode in judged.episodes for turn in episode.turns):
            said = turn.action.split() if len(field.space.places) > 1 else [turn.action]
            if len(said) == len(field.space.places) and said[place] in index:
                count[min(steps - 1, turn.index * steps // max(1, field.horizon)), index[said[place]]] += 1
        if not count.any():
            return None
        table[place, :, 0] = count.argmax(axis=1)
    return Plan(space=field.space, shape=shape, horizon=field.horizon, table=table)


def _keeps(judged: Judged) -> bool:
    return any(KEEP in turn.action for episode in judged.episodes[:4] for turn in episode.turns)
