"""What the scripted policies of the memory environment earn, on any world: grades, accuracy of both readers, F1, recall, size.

Without arguments: the synthetic world's conditions. Otherwise names of environments, such as ``memory:locomo:conversations.json``
or ``memory:babi:FOLDER``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import fmean

from gradus.core import EnvironmentSpec, Episode
from gradus.environments import load
from gradus.rollouts import roll_out

EPISODES = 200
FIGURES = {
    "strict": "strict_accuracy",
    "generous": "generous_accuracy",
    "F1 strict": "strict_f1",
    "F1 gen.": "generous_f1",
    "recall": "evidence_recall",
    "memory": "memory_share",
}


def main(names: Sequence[str]) -> None:
    last: dict[str, dict[str, float]] = {}
    for name in names or ("memory",):
        spec = load(name)
        for condition, of_condition in spec.conditions.items():
            episodes = min(EPISODES, len(of_condition.seeds))
            print(f"\n{name}, {condition}: {episodes} worlds")
            last = table(spec, {policy: rolled_out(spec, policy, condition, episodes) for policy in spec.policies})
    best = "teacher" if "teacher" in last else "append-only"
    ours, other = last[best]["strict"], last["dump"]["strict"]
    ratio = ours / other if other else None
    print(
        json.dumps(
            {
                "name": "memory_worlds",
                "ratio": ratio,
                "ours": ours,
                "other": other,
                "unit": "strict accuracy",
                "runs": 1,
            }
        )
    )


def rolled_out(spec: EnvironmentSpec, policy: str, condition: str, episodes: int) -> list[Episode]:
    return list(roll_out(spec, spec.policy(policy), spec.tasks(condition, episodes)).episodes)


def table(spec: EnvironmentSpec, by_policy: dict[str, list[Episode]]) -> dict[str, dict[str, float]]:
    """Print two tables, overall and by kind of question; returns the figures of the first."""
    rows = {policy: overall(spec, episodes) for policy, episodes in by_policy.items()}
    columns = [*spec.graders, *FIGURES]
    print(f"{'':12}" + "".join(f"{column:>11}" for column in columns))
    for policy, row in rows.items():
        print(f"{policy:12}" + "".join(f"{row[column]:11.3f}" for column in columns))
    for figure in ("strict_accuracy", "generous_accuracy", "strict_f1", "generous_f1", "evidence_recall"):
        by_kind(figure, by_policy)
    return rows


def overall(spec: EnvironmentSpec, episodes: list[Episode]) -> dict[str, float]:
    row = {name: mean([reward.value for reward in grader.compute(episodes)]) for name, grader in spec.graders.items()}
    return row | {label: mean([episode.metrics.get(key) for episode in episodes]) for label, key in FIGURES.items()}


def by_kind(figure: str, by_policy: dict[str, list[Episode]]) -> None:
    episodes = [episode for group in by_policy.values() for episode in group]
    kinds = sorted(
        {key.partition("/")[2] for episode in episodes for key in episode.metrics if key.startswith(f"{figure}/")}
    )
    if len(kinds) < 2:
        return
    print(f"{figure}\n{'':12}" + "".join(f"{kind[:13]:>14}" for kind in kinds))
    for policy, group in by_policy.items():
        values = [mean([episode.metrics.get(f"{figure}/{kind}") for episode in group]) for kind in kinds]
        print(f"{policy:12}" + "".join(f"{value:14.3f}" for value in values))


def mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else float("nan")


if __name__ == "__main__":
    main(sys.argv[1:])
