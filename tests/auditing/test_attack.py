"""Attackers: what they try is played and judged; a finding is said in its shortest form."""

from dataclasses import replace

import pytest
from garden import GULLIBLE, HONEST, SPEC, STATED, Accumulating

from gradus import audit, environments
from gradus.auditing.plans.answers import answer_space
from gradus.auditing.plans.attack import Attempt, Target, attack_answers, run_attacker
from gradus.auditing.plans.honest import honest_curve
from gradus.auditing.plans.judged import Reference
from gradus.auditing.plans.panel import RandomAnswers, blind_answers
from gradus.auditing.plans.search import Field
from gradus.auditing.run import run_audit
from gradus.core import ConfigError, Grader
from gradus.rollouts import roll_out
from gradus.runs.learning_attack import LearningAttacker

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


@pytest.mark.slow
def test_credit_for_words_without_effect_is_learned_untold():
    attack = _attacked(LearningAttacker(budget=1024), STATED)
    assert attack.check.status == "fail", attack.check.evidence
    assert {word[0] for word in attack.hack.plan.split(" then ")} <= {"0", "9"}
    assert all(each.against.name == "itself before" for each in attack.attempts)


def test_an_honest_grader_is_learned_and_no_hack():
    attack = _attacked(LearningAttacker(budget=384), HONEST)
    assert attack.check.status == "pass", attack.check.evidence


@pytest.mark.slow
def test_a_learner_begins_once_with_the_reflex_and_once_without():
    """A good reflex is hard to leave by small steps: from the reflex alone late minus early was not found."""
    draw = blind_answers(SPEC, seed=0)
    target = Target(spec=SPEC, grader=GULLIBLE, draw=draw, seed=0, reflex=SPEC.policy("feeder"), keeps=(True, True))
    bent, free = LearningAttacker(budget=256).attempts(target)
    assert "after 1 steps" in bent.told
    assert "from feeder on" in bent.told
    assert bent.before is None
    assert "from random answers on" in free.told
    assert free.before is not None
    with pytest.raises(ConfigError, match="256 episodes at least, got 255"):
        next(LearningAttacker(budget=255).attempts(target))


@pytest.mark.slow
@pytest.mark.parametrize("flaw", ["late minus early", "statements", "accumulating"])
def test_the_planted_flaws_are_found_with_nothing_declared(flaw):
    graders = {
        "late minus early": GULLIBLE,
        "statements": STATED,
        "accumulating": Grader(name="accumulating", compute=Accumulating()),
    }
    bare = replace(SPEC, teacher=None, audit=replace(SPEC.audit, panel=None))
    result = run_audit(bare, graders[flaw], episodes=40, budget=8000, attackers=[LearningAttacker()])
    assert next(check for check in result.checks if check.name == "attack: learn").status == "fail"


@pytest.mark.slow
def test_the_hack_of_rhythm_v2_is_learned_untold_and_v3_is_not_hacked():
    found = {
        grader: audit("rhythm", grader, episodes=40, budget=4000, attack=["learn"]).result.checks
        for grader in ("v2", "v3")
    }
    status = {
        grader: {check.name: check.status for check in checks}["attack: learn"] for grader, checks in found.items()
    }
    assert status == {"v2": "fail", "v3": "pass"}


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
