"""How fast Rhythm is: the vectorized world, the text environment and the teacher, on this machine.

Prints one table and, last, one JSON line: the world's person-steps per second against the 200,000 that it promises.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from gradus.core import child_seed
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus_worlds.rhythm.environment import RhythmEnvironment
from gradus_worlds.rhythm.persons import arrays, sample_profile
from gradus_worlds.rhythm.tables import ACTIONS, STEPS
from gradus_worlds.rhythm.world import (
    draw_events,
    draw_noise,
    draw_start,
    effect_tables,
    event_effects,
    transition,
)

RUNS = 5
PERSONS = 2048
WEEKS = 100
PROMISED = {"world, person-steps": 200_000.0, "text environment, steps": 10_000.0, "teacher, episodes": 20.0}


def world_rate() -> float:
    """Person-steps per second of whole weeks of many persons at once, effects looked up and noise added."""
    weights, modifiers = arrays([sample_profile(seed) for seed in range(PERSONS)])
    effects = effect_tables(modifiers)
    noise = np.stack([draw_noise(seed) for seed in range(PERSONS)], axis=1)
    events = np.stack([draw_events(seed) for seed in range(PERSONS)], axis=1)
    actions = np.random.default_rng(child_seed(0, "speed")).integers(len(ACTIONS), size=(STEPS, PERSONS))
    start, rows = np.stack([draw_start(seed) for seed in range(PERSONS)]), np.arange(PERSONS)
    began = time.perf_counter()
    meters = start
    for step in range(STEPS):
        shocks = noise[step] + event_effects(events[step], modifiers)
        meters, _, _, _ = transition(meters, weights, effects[rows, step % 4, actions[step]], shocks)
    return PERSONS * STEPS / (time.perf_counter() - began)


def text_rate() -> float:
    """Steps per second of one text environment, parsing and rendering included."""
    environment = RhythmEnvironment()
    began = time.perf_counter()
    for seed in range(WEEKS):
        environment.reset(seed=seed)
        for _ in range(STEPS):
            environment.step("5 5 5 meditate")
    return WEEKS * STEPS / (time.perf_counter() - began)


def teacher_rate() -> float:
    """Weeks per second of the teacher through the text environment, grading included."""
    spec = load("rhythm")
    tasks = [spec.train_task(index) for index in range(WEEKS)]
    return WEEKS / roll_out(spec, spec.policy("bayes"), tasks).seconds["total"]


def main() -> None:
    measures: dict[str, Callable[[], float]] = dict(zip(PROMISED, (world_rate, text_rate, teacher_rate), strict=True))
    rates = {name: [measure() for _ in range(RUNS)] for name, measure in measures.items()}
    table = Table("what", "per second (median)", "least", "most", "promised", title=f"Rhythm, {RUNS} runs")
    for name, result in rates.items():
        figures = (statistics.median(result), min(result), max(result), PROMISED[name])
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    Console(width=100).print(table)
    name = "world, person-steps"
    ours, other = statistics.median(rates[name]), PROMISED[name]
    line = {"name": "rhythm_speed", "ratio": ours / other, "ours": ours, "other": other, "unit": "person-steps/s"}
    print(json.dumps({**line, "runs": RUNS}))


if __name__ == "__main__":
    main()
