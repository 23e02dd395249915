"""Does training do what the audit foretold? GRPO from one primed student on two graders of Rhythm, everything else equal.

The audit says that v2 can be raised at the person's cost and that v3 cannot. This trains the same student on both, step by
step, and draws the grade beside the episode reward, which neither grader is told to follow. It also holds the audit's
forecast of spread and dead groups, made before the first step, against the first steps. The doctor has the last word on each
run. Saves docs/figures/audit_prediction.png.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from gradus import environments
from gradus.audit import forecast
from gradus.core import EnvironmentSpec
from gradus.health import diagnose, report
from gradus.pipeline import load_recipe
from gradus.policies import LocalPolicy, load_model
from gradus.rollouts import play
from gradus.training import GrpoConfig, train_grpo

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "audit_prediction.png"
# v2 pays everything at the end of the week, so its credit is by episode and undiscounted.
CREDIT: Mapping[str, Mapping[str, Any]] = {"v2": {"credit": "episode", "discount": 1.0}, "v3": {}}
FIRST_STEPS = 5
SMOOTHED = 5
Record = Mapping[str, Any]


def settings(steps: int, threads: int) -> GrpoConfig:
    """The recipe's own, for another number of steps."""
    found = load_recipe("rhythm").grpo
    return found.model_copy(
        update={"max_steps": steps, "threads": threads, "validation_every": max(1, steps // 4), "best_by": "sampled"}
    )


def foretold(spec: EnvironmentSpec, model: Path, grader: str, config: GrpoConfig, tasks: int) -> dict[str, float]:
    """What the audit's signal check expects of groups of 8 played by this student."""
    policy = LocalPolicy(load_model(model), config.sampling, name="student", grammar=spec.grammar)
    wanted = [spec.train_task(index) for index in range(tasks)]
    groups = play(spec, policy, wanted, group_size=16, key=("forecast",), grader=spec.grader(grader)).groups
    grades = [group.values() for group in groups]
    return forecast(np.array(grades, dtype=float))[str(config.group_size)]


def train(spec: EnvironmentSpec, model: Path, grader: str, config: GrpoConfig, folder: Path) -> list[Record]:
    """All records of a run."""
    run = config.model_copy(update=CREDIT[grader])
    train_grpo(model, spec, run, folder / grader, grader=grader)
    lines = (folder / grader / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def steps_of(records: Sequence[Record], name: str) -> np.ndarray:
    """A figure of all steps."""
    return np.array([record[name] for record in records if record["kind"] == "step"], dtype=float)


def draw(runs: Mapping[str, Sequence[Record]]) -> None:
    """A column per grader: the grade above, the episode reward below; dots are steps, lines means over five of them."""
    figure, axes = plt.subplots(2, len(runs), figsize=(3.6 * len(runs), 4.6), layout="constrained", sharex=True)
    for column, (grader, records) in enumerate(runs.items()):
        for row, (name, label, colour) in enumerate(
            (("reward_mean", "grade", "#0072B2"), ("yardstick_mean", "episode reward", "#D55E00"))
        ):
            values, axis = steps_of(records, name), axes[row, column]
            smooth = np.convolve(values, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
            axis.plot(np.arange(1, len(values) + 1), values, ".", color=colour, alpha=0.35, markersize=4)
            axis.plot(np.arange(len(smooth)) + (SMOOTHED + 1) / 2, smooth, color=colour, linewidth=2)
            axis.set_ylabel(label if column == 0 else "")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0, column].set_title(f"GRPO on {grader}", loc="left", fontsize=10, fontweight="bold")
        axes[1, column].set_xlabel("step")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    """Train on both, print the tables, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/rhythm/sft/best"), help="the primed student")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=40, help="tasks of the forecast")
    parser.add_argument("--out", type=Path, default=None, help="keep the two runs here")
    options = parser.parse_args()
    if not (options.model / "config.json").is_file():
        parser.exit(2, f"no model in {options.model}; `gradus run rhythm` makes it, or give --model FOLDER\n")
    spec, config = environments.load("rhythm"), settings(options.steps, options.threads)
    console, runs = Console(width=110), {}
    table = Table(title="from the first to the last eight steps, and what the audit expected of the first")
    for name in (
        "grader",
        "grade",
        "episode reward",
        "spread: expected",
        "came",
        "dead groups: expected",
        "came",
        "doctor",
    ):
        table.add_column(name)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as scratch:
        for grader in CREDIT:
            expected = foretold(spec, options.model, grader, config, options.tasks)
            records = train(spec, options.model, grader, config, options.out or Path(scratch))
            runs[grader] = records
            grades, aims = steps_of(records, "reward_mean"), steps_of(records, "yardstick_mean")
            came = (
                steps_of(records, "reward_std")[:FIRST_STEPS].mean(),
                steps_of(records, "dead_groups")[:FIRST_STEPS].mean(),
            )
            said = report(diagnose([record for record in records if record["kind"] == "step"]))
            rules = ", ".join(f"{each['rule']} ({each['severity']})" for each in said["diagnoses"]) or said["status"]
            table.add_row(
                grader,
                f"{grades[:8].mean():.3f} to {grades[-8:].mean():.3f}",
                f"{aims[:8].mean():.2f} to {aims[-8:].mean():.2f}",
                f"{expected['spread']:.3f}",
                f"{came[0]:.3f}",
                f"{expected['dead_groups']:.0%}",
                f"{came[1]:.0%}",
                rules,
            )
            found[grader] = {
                "grade": [round(float(grades[:8].mean()), 4), round(float(grades[-8:].mean()), 4)],
                "yardstick": [round(float(aims[:8].mean()), 3), round(float(aims[-8:].mean()), 3)],
                "spread_expected": round(expected["spread"], 4),
                "spread_came": round(float(came[0]), 4),
                "dead_expected": round(expected["dead_groups"], 3),
                "dead_came": round(float(came[1]), 3),
                "doctor": rules,
            }
    draw(runs)
    console.print(table)
    print(json.dumps({"name": "audit_prediction", **found}))


if __name__ == "__main__":
    main()
