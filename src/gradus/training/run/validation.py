"""Rolling out held-out tasks with the current weights, sampled and greedily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gradus.core import EnvironmentSpec, Grader, Policy, StopReason, Task, child_seed
from gradus.core.metrics import ValidationRecord
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.rollouts import MAX_CONCURRENT, episodes_of, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups
from gradus.training.distributed.processes import gather, share
from gradus.training.run.step_metrics import episode_metrics

Decoding = Literal["sampled", "greedy"]


def sampling_policy(
    loaded: LoadedModel,
    spec: EnvironmentSpec,
    config: GrpoConfig,
    *,
    name: str = "grpo",
    greedy: bool = False,
) -> LocalPolicy:
    """Returns the policy that samples by the settings of a run."""
    sampling = config.sampling.changed(temperature=0) if greedy else config.sampling
    return LocalPolicy(
        loaded,
        sampling,
        name=name,
        batch_size=config.batch_size,
        grammar=spec.language.grammar,
    )


def validate(
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    config: GrpoConfig,
    grader: Grader,
    policies: Mapping[Decoding, Policy],
    *,
    step: int,
) -> list[tuple[ValidationRecord, Groups]]:
    """Rolls out the held-out tasks; returns one record of docs/metrics.md for each of ``policies``, by decoding, and its groups.

    Every validation of a run meets the same tasks and the same noise. Each process rolls out its share of them.
    """
    validations: list[tuple[ValidationRecord, Groups]] = []
    local = share(len(tasks))
    for decoding, policy in policies.items():
        result = roll_out(
            spec,
            policy,
            tasks[local.start : local.stop],
            first_group=local.start,
            seed=child_seed(config.seed, "validation"),
            grader=grader,
            max_turns=config.max_turns,
            max_concurrent=config.batch_size or MAX_CONCURRENT,
        )
        groups = gather(result.groups)
        figures = episode_metrics(groups)
        episodes = episodes_of(groups)
        rewards = [episode.reward_value for episode in episodes]
        record: ValidationRecord = {
            "kind": "validation",
            "step": step,
            "decoding": decoding,
            "condition": tasks[0].condition,
            "reward_mean": figures["reward_mean"],
            "true_reward_mean": figures["true_reward_mean"],
            "components": figures["components"],
            "metrics": figures["metrics"],
            "rewards": [_rounded(reward) for reward in rewards],
            "true_rewards": [_rounded(episode.metrics.get("true_reward")) for episode in episodes],
            "episodes": sum(episode.stop is not StopReason.FAILED for episode in episodes),
            "best": False,
        }
        validations.append((record, groups))
    return validations


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def chosen_reward(records: Sequence[ValidationRecord], best_by: str) -> float | None:
    """The figure that the best checkpoint is chosen by; None if it could not be computed."""
    rewards = {record["decoding"]: record["reward_mean"] for record in records}
    decodings = list(rewards) if best_by == "both" else [best_by]
    values = [rewards[decoding] for decoding in decodings]
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if len(defined) == len(values) else None
