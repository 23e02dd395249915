"""What the report shows of single episodes: a few of each policy, and whole groups of the trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Grader, Group, Policy
from gradus.reports import prepare_report
from gradus.rollouts import play

__all__ = ["shown_groups", "write_payload"]

_GROUPS = 2  # groups of the trained policy whose members the report shows side by side


def shown_groups(episodes: Mapping[str, Mapping[str, Sequence[Episode]]], each: int) -> list[Group]:
    """The first ``each`` episodes of every policy and condition, as groups of one."""
    return [
        Group(task=episode.task, episodes=(episode,))
        for policies in episodes.values()
        for played in policies.values()
        for episode in played[:each]
    ]


def write_payload(
    folder: Path,
    spec: EnvironmentSpec,
    grader: Grader,
    config: Any,
    episodes: Mapping[str, Mapping[str, Sequence[Episode]]],
    policies: Mapping[str, Policy],
    *,
    each: int,
    seed: int,
) -> None:
    """Write what the report browses. ``config`` is the GrpoConfig, whose credit the shown advantages follow."""
    from gradus.policies import LocalPolicy

    groups = shown_groups(episodes, each)
    trained = policies.get("grpo")
    if trained is not None:
        tasks = [spec.train_task(config.first_task + index) for index in range(_GROUPS)]
        found = play(
            spec, trained, tasks, group_size=config.group_size, seed=seed, key=("report",), grader=grader
        )
        groups = [*found.groups, *groups]
    pieces = {
        name: _pieces(policy.loaded.tokenizer) for name, policy in policies.items() if isinstance(policy, LocalPolicy)
    }
    prepare_report(folder, spec, groups, advantages=_advantages(config), pieces=pieces)


def _pieces(tokenizer: Any) -> Any:
    """Token ids to the text of each."""
    return lambda ids: [tokenizer.decode([token]) for token in ids]


def _advantages(config: Any) -> Any:
    """A group to one advantage per turn of each member, by the run's own credit."""
    from gradus.training import group_turn_advantages

    return lambda group: group_turn_advantages(group, credit=config.credit, scale=config.scale)
