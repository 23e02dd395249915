"""What the report shows of single episodes: a few of each policy, and whole groups of the trained one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import EnvironmentSpec, Episode, Grader, Group, Policy, Renderer
from gradus.evidence.reports import prepare_report
from gradus.rollouts import roll_out

if TYPE_CHECKING:
    from gradus.runs.recipe.record import Recipe
    from gradus.training.config import GrpoConfig

_GROUPS = 2  # groups of the trained policy whose members the report shows side by side


def shown_groups(episodes: Mapping[str, Mapping[str, Sequence[Episode]]], each: int) -> list[Group]:
    """The first ``each`` episodes of every policy and condition, as groups of one."""
    return [
        Group(task=episode.task, episodes=(episode,))
        for policies in episodes.values()
        for several in policies.values()
        for episode in several[:each]
    ]


def write_report_episodes(
    folder: Path,
    spec: EnvironmentSpec,
    grader: Grader,
    recipe: Recipe,
    episodes: Mapping[str, Mapping[str, Sequence[Episode]]],
    policies: Mapping[str, Policy],
) -> None:
    """Write what the report browses. The shown advantages follow the credit of the recipe's GRPO."""
    from gradus.policies.local.shelf import ShelvedPolicy

    config = recipe.grpo
    groups = shown_groups(episodes, recipe.eval.shown)
    trained = policies.get("grpo")
    advantages = None
    if isinstance(trained, ShelvedPolicy):
        advantages = _advantages(config, grader, trained.loaded.renderer)
        tasks = [spec.train_task(config.first_task + index) for index in range(_GROUPS)]
        rolled_out = roll_out(
            spec, trained, tasks, group_size=config.group_size, seed=recipe.seed, key=("report",), grader=grader
        )
        groups = [*rolled_out.groups, *groups]
    pieces = {name: _pieces(policy.tokenizer) for name, policy in policies.items() if isinstance(policy, ShelvedPolicy)}
    facts = _facts(trained, recipe)
    evaluated = [each for by_policy in episodes.values() for several in by_policy.values() for each in several]
    prepare_report(folder, spec, groups, facts=facts, advantages=advantages, pieces=pieces, evaluated=evaluated)


def _facts(trained: Policy | None, recipe: Recipe) -> dict[str, Any]:
    """What stands under the headline: which model, how large, and where and when it was evaluated."""
    import os
    import platform
    from datetime import UTC, datetime

    import torch

    from gradus.policies.local.shelf import ShelvedPolicy

    facts: dict[str, Any] = {"model": recipe.model.path or "nano"}
    if isinstance(trained, ShelvedPolicy):
        facts["parameters"] = f"{sum(each.numel() for each in trained.loaded.model.parameters()):,}"
    hardware = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    return {**facts, "seed": recipe.seed, "date": datetime.now(UTC).date().isoformat(), "hardware": hardware}


def _pieces(tokenizer: Any) -> Any:
    """Token ids to the text of each."""
    return lambda ids: [tokenizer.decode([token]) for token in ids]


def _advantages(config: GrpoConfig, grader: Grader, renderer: Renderer) -> Callable[[Group], list[list[float]]]:
    """A group to one advantage per turn of each member: the mean over the turn's tokens, by the run's own credit."""
    from gradus.training.data.credit import credit_groups
    from gradus.training.run.resolved import resolve

    rule = resolve(config, grader).credit_rule

    def of_group(group: Group) -> list[list[float]]:
        sums = [[0.0] * len(episode.turns) for episode in group.episodes]
        counts = [[0] * len(episode.turns) for episode in group.episodes]
        graded = [
            index
            for index, each in enumerate(group.episodes)
            if each.reward and each.reward.value is not None and each.turns
        ]
        for credited in credit_groups([group], rule, renderer, weights=grader.weights):
            member = graded[credited.episode]
            assert credited.advantages is not None
            for turn, value in zip(credited.turns.tolist(), credited.advantages.tolist(), strict=True):
                sums[member][turn] += value
                counts[member][turn] += 1
        return [
            [total / count if count else 0.0 for total, count in zip(*row, strict=True)]
            for row in zip(sums, counts, strict=True)
        ]

    return of_group
