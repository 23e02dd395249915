"""Rolling out held-out tasks with the current weights, sampled and greedily."""

from __future__ import annotations

from collections.abc import Sequence

from gradus.core import EnvironmentSpec, Grader, StopReason, Task, child_seed
from gradus.core.metrics import ValidationRecord
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.rollouts import MAX_CONCURRENT, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import gather, share
from gradus.training.run.step_metrics import episode_metrics


def sampling_policy(
    loaded: LoadedModel, spec: EnvironmentSpec, config: GrpoConfig, *, name: str = "grpo", greedy: bool = False
) -> LocalPolicy:
    """Returns the policy that samples by the settings of a run."""
    return LocalPolicy(
        loaded,
        config.sampling.changed(temperature=0) if greedy else config.sampling,
        name=name,
        batch_size=config.batch_size,
        grammar=spec.language.grammar,
    )


def validate(
    loaded: LoadedModel, spec: EnvironmentSpec, tasks: Sequence[Task], config: GrpoConfig, grader: Grader, *, step: int
) -> list[ValidationRecord]:
    """One record of docs/metrics.md per decoding. Every validation of a run meets the same tasks and the same noise.

    Each process rolls out its share of them.
    """
    records: list[ValidationRecord] = []
    mine = share(len(tasks))
    for decoding in ("sampled", "greedy"):
        policy = sampling_policy(loaded, spec, config, name=decoding, greedy=decoding == "greedy")
        result = roll_out(
            spec,
            policy,
            tasks[mine.start : mine.stop],
            first_group=mine.start,
            seed=child_seed(config.seed, "validation"),
            grader=grader,
            max_turns=config.max_turns,
            max_concurrent=config.batch_size or MAX_CONCURRENT,
        )
        groups = gather(result.groups)
        figures = episode_metrics(groups)
        episodes = [episode for group in groups for episode in group.episodes]
        completed = sum(episode.stop is not StopReason.FAILED for episode in episodes)
        records.append(
            {
                "kind": "validation",
                "step": step,
                "decoding": decoding,
                "condition": tasks[0].condition,
                "reward_mean": figures["reward_mean"],
                "true_reward_mean": figures["true_reward_mean"],
                "components": figures["components"],
                "metrics": figures["metrics"],
                "rewards": [_rounded(episode.reward.value if episode.reward else None) for episode in episodes],
                "true_rewards": [_rounded(episode.metrics.get("true_reward")) for episode in episodes],
                "episodes": completed,
                "best": False,
            }
        )
    return records


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def chosen_reward(records: Sequence[ValidationRecord], best_by: str) -> float | None:
    """The figure that the best checkpoint is chosen by; None if it could not be computed."""
    rewards = {record["decoding"]: record["reward_mean"] for record in records}
    wanted = list(rewards) if best_by == "both" else [best_by]
    values = [value for name in wanted if (value := rewards[name]) is not None]
    return sum(values) / len(values) if len(values) == len(wanted) else None
