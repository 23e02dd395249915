"""Playing held-out tasks with the current weights, sampled and greedily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradus.core import EnvironmentSpec, Grader, StopReason, Task, child_seed
from gradus.policies.loading import LoadedModel
from gradus.policies.local import LocalPolicy
from gradus.rollouts import play
from gradus.training.grpo_config import GrpoConfig
from gradus.training.step_metrics import episode_metrics

__all__ = ["chosen_grade", "validate"]


def validate(
    loaded: LoadedModel, spec: EnvironmentSpec, tasks: Sequence[Task], config: GrpoConfig, grader: Grader, *, step: int
) -> list[dict[str, Any]]:
    """One record of docs/metrics.md per decoding. Every validation of a run meets the same tasks and the same noise."""
    records: list[dict[str, Any]] = []
    for decoding, sampling in (("sampled", config.sampling), ("greedy", config.sampling.as_greedy())):
        policy = LocalPolicy(loaded, sampling, name=decoding, batch_size=config.batch_size, grammar=spec.grammar)
        played = play(
            spec,
            policy,
            tasks,
            seed=child_seed(config.seed, "validation"),
            grader=grader,
            max_turns=config.max_turns,
        )
        found = episode_metrics(played.groups)
        episodes = played.episodes
        whole = sum(episode.stop is not StopReason.FAILED for episode in episodes)
        records.append(
            {
                "kind": "validation",
                "step": step,
                "decoding": decoding,
                "condition": tasks[0].condition,
                "grade_mean": found["reward_mean"],
                "yardstick_mean": found["yardstick_mean"],
                "components": found["components"],
                "metrics": found["metrics"],
                "grades": [_rounded(episode.grade.value if episode.grade else None) for episode in episodes],
                "yardsticks": [_rounded(episode.metrics.get("yardstick")) for episode in episodes],
                "episodes": whole,
                "best": False,
            }
        )
    return records


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def chosen_grade(records: Sequence[dict[str, Any]], best_by: str) -> float | None:
    """The figure that the best checkpoint is chosen by; None if it could not be computed."""
    grades = {record["decoding"]: record["grade_mean"] for record in records}
    wanted = list(grades) if best_by == "both" else [best_by]
    values = [grades[name] for name in wanted]
    return None if any(value is None for value in values) else sum(values) / len(values)
