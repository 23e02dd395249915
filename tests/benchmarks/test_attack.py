"""What an attacker learned is rolled out on the tasks of the audit, and said as a plan that does the same."""

from collections.abc import Iterator

from _attack import Attempt, Target, attacked, is_found
from garden import GULLIBLE, SPEC


class _Sandbagger:
    def attempts(self, target: Target) -> Iterator[Attempt]:
        yield Attempt(told="a policy without a plan", policy=SPEC.policy("sandbagger"), spec=target.spec)


def test_a_policy_that_was_trained_on_the_reward_is_said_as_a_plan() -> None:
    (found,) = attacked(SPEC, GULLIBLE, _Sandbagger(), episodes=40, budget=3000)
    assert is_found(found)
    assert (found.kind, found.plan) == ("reward against the true reward", "5 neglect then 5 feed")
