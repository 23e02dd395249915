"""A tiny real evaluation of Rhythm's scripted policies, played once for all tests of reports."""

from dataclasses import dataclass
from typing import Any

import pytest

from gradus import environments
from gradus.core import EnvironmentSpec, Group
from gradus.evidence.evaluation import evaluate
from gradus.evidence.reports import environment_words, shown_episodes
from gradus.rollouts import roll_out


@dataclass(frozen=True, kw_only=True)
class StepRollout:
    spec: EnvironmentSpec
    results: dict[str, Any]
    groups: list[Group]
    episodes: dict[str, Any]
    about: dict[str, Any]


def reward_to_go(group: Group) -> list[list[float]]:
    """Turn credit by its definition: reward-to-go minus the mean of the other members'."""
    paid = [list(episode.reward.turn_rewards) if episode.reward else [] for episode in group.episodes]
    togo = [[sum(rewards[turn:]) for turn in range(len(rewards))] for rewards in paid]
    return [
        [value - sum(row[turn] for row in togo if row is not mine) / (len(togo) - 1) for turn, value in enumerate(mine)]
        for mine in togo
    ]


@pytest.fixture(scope="session")
def played() -> StepRollout:
    spec = environments.load("rhythm")
    names = ("random", "heuristic", "heuristic+constant")
    evaluation = evaluate(
        spec,
        {name: spec.policy(name) for name in names},
        conditions=["in-distribution", "held-out"],
        graders=["v3", "v2"],
        episodes=8,
    )
    tasks = spec.tasks("in-distribution", 2)
    groups = [
        *roll_out(spec, spec.policy("random"), tasks, group_size=3).groups,
        *roll_out(spec, spec.policy("heuristic+constant"), tasks).groups,
    ]
    payload = shown_episodes(spec, groups, advantages=reward_to_go)
    return StepRollout(
        spec=spec, results=evaluation.to_json(), groups=groups, episodes=payload, about=environment_words(spec)
    )
