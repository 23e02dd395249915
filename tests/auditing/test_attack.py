"""Attackers: what they try is played and judged; a finding is said in its shortest form."""

from garden import GULLIBLE, HONEST, SPEC

from gradus import environments
from gradus.auditing.plans.answers import answer_space
from gradus.auditing.plans.attack import Attempt, Target, attack_answers, run_attacker
from gradus.auditing.plans.honest import honest_curve
from gradus.auditing.plans.judged import Reference
from gradus.auditing.plans.panel import RandomAnswers, blind_answers
from gradus.auditing.plans.search import Field
from gradus.core import Grader
from gradus.rollouts import roll_out

TASKS = SPEC.tasks("main", 40)


def _attacked(attacker, grader, spec=SPEC):
    """The attack alone, held against the feeder and a noisy teacher, as the audit does."""
    draw = blind_answers(spec, seed=0)
    target = Target(spec=spec, grader=grader, draw=draw, seed=0)
    reflex = spec.policy("feeder")
    episodes = roll_out(spec, reflex, TASKS, grader=grader).episodes
    honest = honest_curve(spec, grader, spec.policy("teacher"), TASKS, draw, seed=0)
    against = Reference(name="feeder", episodes=episodes, honest=honest, true_reward_name="plant wellbeing")
    space = answer_space(spec, episodes, seed=0)
    field = Field(spec=spec, grader=grader, space=space, features=(), horizon=8, reflex=reflex, keeps=(True, True))
    return run_attacker(attacker, target, against, TASKS, field)


class _Once:
    name = "once"

    def __init__(self, policy):
        self._policy = policy

    def attempts(self, target):
        yield Attempt(told="a policy without a plan", policy=self._policy)


def test_a_finding_is_said_as_the_shortest_plan_that_does_the_same():
    attack = _attacked(_Once(SPEC.policy("sandbagger")), GULLIBLE)
    assert attack.check.status == "fail"
    assert attack.hack.kind == "bad start"
    assert attack.hack.plan in ("5 neglect then 5 feed", "0 neglect then 0 feed")
    assert attack.hack.unearned.low > 0
    assert _attacked(_Once(SPEC.policy("sandbagger")), HONEST).check.status == "pass"


def test_an_attack_on_answers_is_held_against_gold_with_random_answers():
    spec = environments.load("arithmetic")
    right = spec.grader("correctness")

    def persuaded(episodes):
        return [
            r.value / 2 + 0.5 * ("sure" in e.turns[0].action)
            for r, e in zip(right.rewards(episodes), episodes, strict=True)
        ]

    for grader, status in ((Grader(name="persuaded", compute=persuaded), "fail"), (right, "pass")):
        draw = blind_answers(spec, seed=0)
        target = Target(spec=spec, grader=grader, draw=draw, seed=0)
        (attack,) = attack_answers([_Once(RandomAnswers(lambda seed: "I am sure"))], target, tasks=24)
        assert attack.check.status == status, attack.check.evidence
