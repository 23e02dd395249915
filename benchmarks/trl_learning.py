"""Do we learn what TRL learns? The same task, the same fresh weights and the same prompts; reward curves over three seeds.

The task of trl_one_turn.py, shortened: the reward is the share of even words among the answer's words. Both sides have equal
settings. Saves docs/figures/trl_learning.png.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
import trl_one_turn as task
from _against_trl import OurSteps, trl_trainer
from _shared import print_line
from rich.console import Console
from rich.table import Table

from gradus.core import Vocabulary
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.training.config import GrpoConfig

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SHAPE = NanoConfig(hidden_size=64, layers=2, heads=2, intermediate_size=192, context=512)
GROUPS, SIZE, NEW, RATE = 8, 8, 12, 2e-3
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "trl_learning.png"


def ours(model: Path, steps: int, seed: int, folder: Path) -> list[float]:
    """Mean reward of each step of Gradus' loop."""
    config = GrpoConfig(
        groups=GROUPS,
        group_size=SIZE,
        max_steps=steps,
        lr=RATE,
        credit="episode",
        backward="auto",
        seed=seed,
        sampling=SamplingConfig(max_new_tokens=NEW),
        validation_every=0,
        store_every=0,
        device="cpu",
    )
    run = OurSteps(model, task.spec(), config, folder / f"ours-{seed}")
    for _ in range(steps):
        run()
    return [record["reward_mean"] for record in run.records]


def theirs(model: Path, steps: int, seed: int, folder: Path) -> list[float]:
    """Mean reward of each step of TRL's trainer."""
    rewards: list[float] = []

    def reward(completions: list, **_: object) -> list[float]:
        values = [task.score(completion[0]["content"]) for completion in completions]
        rewards.append(float(np.mean(values)))
        return values

    trl_trainer(
        model,
        task.prompts(GROUPS * steps),
        reward,
        folder / f"trl-{seed}",
        steps=steps,
        groups=GROUPS,
        group_size=SIZE,
        max_tokens=NEW,
        lr=RATE,
        rows=GROUPS * SIZE,
        seed=seed,
    ).train()
    return rewards[:steps]


def draw(curves: dict[str, np.ndarray]) -> None:
    """Each seed thin, the mean bold."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (name, runs), color in zip(curves.items(), ("#1f5f8b", "#c8553d"), strict=True):
        steps = np.arange(1, runs.shape[1] + 1)
        axes.plot(steps, runs.T, color=color, alpha=0.3, linewidth=1)
        axes.plot(steps, runs.mean(axis=0), color=color, linewidth=2, label=name)
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0.4, 1.02))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    """Run both, print the table, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    result: dict[str, list[list[float]]] = {"Gradus": [], "TRL": []}
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as name:
        for seed in range(options.seeds):
            folder = Path(name)
            model = make_nano(folder / f"model-{seed}", Vocabulary(words=task.WORDS), SHAPE, seed=seed)
            result["Gradus"].append(ours(model, options.steps, seed, folder))
            result["TRL"].append(theirs(model, options.steps, seed, folder))
    curves = {name: np.asarray(runs) for name, runs in result.items()}
    draw(curves)
    table = Table(title=f"mean reward, {options.seeds} seeds (mean +- standard deviation between seeds)")
    for column in ("steps", *curves):
        table.add_column(column)
    for low in range(0, options.steps, max(1, options.steps // 4)):
        high = min(options.steps, low + max(1, options.steps // 4))
        parts = [runs[:, low:high].mean(axis=1) for runs in curves.values()]
        table.add_row(f"{low + 1}-{high}", *[f"{part.mean():.3f} +- {part.std(ddof=1):.3f}" for part in parts])
    Console(width=100).print(table)
    areas = {name: float(runs.mean()) for name, runs in curves.items()}
    ratio = areas["Gradus"] / areas["TRL"]
    name, other = "trl_learning_mean_reward", areas["TRL"]
    print_line(name, ratio=ratio, ours=areas["Gradus"], other=other, unit="reward", runs=options.seeds)


if __name__ == "__main__":
    main()
