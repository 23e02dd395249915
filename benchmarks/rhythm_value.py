"""What it is worth to know the person: (clairvoyant - best blind policy) / (clairvoyant - random), in episode reward.

Blind policies know the world and the average person, but not whom they have. They are the constants and reflexes that come
with Rhythm, the planner for the average person, and an open-loop week found by cross-entropy search on persons of training.
The interval is a paired bootstrap over persons. Prints a table per condition and, last, one JSON line for in-distribution
against the 0.25 that is promised.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from gradus.core import EnvironmentSpec, child_seed
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus_worlds.rhythm.persons import arrays, sample_profile
from gradus_worlds.rhythm.scripted import reflex_policy
from gradus_worlds.rhythm.tables import ACTIONS, STEPS
from gradus_worlds.rhythm.world import (
    draw_events,
    draw_noise,
    draw_start,
    effect_tables,
    event_effects,
    transition,
)

Array = NDArray[np.float64]

PROMISED = 0.25
BLIND = ("heuristic", "profile-blind", *(f"constant:{action}" for action in ACTIONS))
CONDITIONS = ("in-distribution", "held-out", "ood")
RESAMPLES = 10_000


def open_loop_week(persons: int = 48, plans: int = 120, rounds: int = 40, elite: int = 16) -> list[str]:
    """28 actions for everybody, found on persons of training (Rubinstein's cross-entropy method)."""
    seeds = [1_000_000 + index for index in range(persons)]
    weights, modifiers = arrays([sample_profile(seed) for seed in seeds])
    effects, rows = effect_tables(modifiers), np.arange(persons)
    noise = np.stack([draw_noise(seed) for seed in seeds], axis=1)
    events = np.stack([draw_events(seed) for seed in seeds], axis=1)
    start = np.stack([draw_start(seed) for seed in seeds])
    rng = np.random.default_rng(child_seed(0, "open-loop"))
    chances, best = np.full((STEPS, len(ACTIONS)), 1 / len(ACTIONS)), np.zeros(STEPS, dtype=np.int64)
    for _ in range(rounds):
        tried = np.stack([rng.choice(len(ACTIONS), plans, p=chance) for chance in chances], axis=1)
        meters, total = np.broadcast_to(start, (plans, *start.shape)), np.zeros((plans, persons))
        for step in range(STEPS):
            shocks = noise[step] + event_effects(events[step], modifiers)
            table = effects[rows[None, :], step % 4, tried[:, step, None]]
            meters, _, reward, _ = transition(meters, weights, table, shocks)
            total += reward
        order = np.argsort(-total.mean(axis=1))[:elite]
        best = tried[order[0]]
        result = np.stack([np.bincount(tried[order, step], minlength=len(ACTIONS)) for step in range(STEPS)]) / elite
        chances = 0.6 * chances + 0.4 * result
        chances /= chances.sum(axis=1, keepdims=True)
    return [ACTIONS[index] for index in best]


def returns(spec: EnvironmentSpec, condition: str, week: list[str]) -> dict[str, Array]:
    """Episode rewards by policy, (episodes,)."""
    policies = {name: spec.policy(name) for name in ("clairvoyant", "bayes", "random", *BLIND)}
    policies["open-loop week"] = reflex_policy("open-loop week", lambda data, start: week[data["step"]])
    tasks = spec.tasks(condition)
    return {
        name: np.array([episode.env_return for episode in roll_out(spec, policy, tasks).episodes], dtype=float)
        for name, policy in policies.items()
    }


def value(clairvoyant: Array, blind: Array, random: Array) -> tuple[float, float, float]:
    """The ratio with its 95 % interval, persons drawn again."""
    rng = np.random.default_rng(child_seed(0, "bootstrap"))
    picks = rng.integers(len(random), size=(RESAMPLES, len(random)))
    drawn = (clairvoyant - blind)[picks].mean(axis=1) / (clairvoyant - random)[picks].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float((clairvoyant - blind).mean() / (clairvoyant - random).mean()), float(low), float(high)


def main() -> None:
    spec, week, console = load("rhythm"), open_loop_week(), Console(width=100)
    main_value = 0.0
    for condition in CONDITIONS:
        result = returns(spec, condition, week)
        blind = max((*BLIND, "open-loop week"), key=lambda name: float(result[name].mean()))
        table = Table("policy", "episode reward", title=f"{condition}, {len(result['random'])} episodes")
        for name in sorted(result, key=lambda name: -float(result[name].mean())):
            table.add_row(name + (" (best blind)" if name == blind else ""), f"{result[name].mean():.2f}")
        console.print(table)
        ratio, low, high = value(result["clairvoyant"], result[blind], result["random"])
        learned = float((result["bayes"] - result[blind]).mean() / (result["clairvoyant"] - result[blind]).mean())
        console.print(
            f"value of knowing the person: {ratio:.3f} [{low:.3f}, {high:.3f}]; the teacher gets {learned:.0%} of it\n"
        )
        main_value = main_value or ratio
    line = {"name": "rhythm_value", "ratio": main_value / PROMISED, "ours": main_value, "other": PROMISED}
    print(json.dumps({**line, "unit": "share of the gain over random", "runs": 1}))


if __name__ == "__main__":
    main()
