"""Chooses the single episodes that a report shows: a few of each policy, and groups of the trained one side by side."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from gradus.core import Grader, Group, Policy, Renderer
from gradus.evidence.evaluation import Evaluation
from gradus.evidence.reports import prepare_report
from gradus.policies.local.shelf import ShelvedPolicy
from gradus.rollouts import roll_out
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.evaluation import shown_groups
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups

_GROUPS = 2  # groups of the trained policy whose members the report shows side by side


def write_report_episodes(run: RunContext, evaluation: Evaluation, policies: Mapping[str, Policy]) -> None:
    """Write what the report browses. The shown advantages follow the credit of the recipe's GRPO."""
    config, spec = run.recipe.grpo, run.spec
    groups = shown_groups(evaluation.episodes, run.recipe.eval.shown)
    trained = policies.get("grpo")
    facts: dict[str, Any] = {"model": run.recipe.model.path or "nano"}
    advantages = None
    if isinstance(trained, ShelvedPolicy):
        facts["parameters"] = f"{sum(each.numel() for each in trained.loaded.model.parameters()):,}"
        advantages = _advantages(config, run.grader, trained.loaded.renderer)
        tasks = [spec.train_task(config.first_task + index) for index in range(_GROUPS)]
        rolled_out = roll_out(
            spec,
            trained,
            tasks,
            group_size=config.group_size,
            seed=run.recipe.seed,
            key=("report",),
            grader=run.grader,
        )
        groups = [*rolled_out.groups, *groups]
    cpu = f"{platform.machine()}, {os.cpu_count()} cores"
    facts |= {"seed": run.recipe.seed, "date": datetime.now(UTC).date().isoformat()}
    facts["hardware"] = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    pieces = {name: _pieces(policy.tokenizer) for name, policy in policies.items() if isinstance(policy, ShelvedPolicy)}
    prepare_report(
        run.folder, spec, groups, facts=facts, advantages=advantages, pieces=pieces, evaluated=evaluation.flat
    )


def _pieces(tokenizer: Any) -> Any:
    """Token ids to the text of each."""
    return lambda ids: [tokenizer.decode([token]) for token in ids]


def _advantages(config: GrpoConfig, grader: Grader, renderer: Renderer) -> Callable[[Group], list[list[float]]]:
    """A group to one advantage per turn of each member: the mean over the turn's tokens, by the run's own credit."""
    config = config.resolved(grader)

    def of_group(group: Group) -> list[list[float]]:
        sums = [[0.0] * len(episode.turns) for episode in group.episodes]
        counts = [[0] * len(episode.turns) for episode in group.episodes]
        graded = [
            index
            for index, each in enumerate(group.episodes)
            if each.reward and each.reward.value is not None and each.turns
        ]
        for credited in credit_groups([group], config, renderer, weights=grader.weights):
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
