"""Does training do what the audit foretold? GRPO from one warm-started student on two graders of Rhythm, everything else equal.

The audit says that v2 can be raised at the person's cost and that v3 cannot. `gradus run rhythm` has trained its student on
v3; this trains the same student on v2 and compares what became of the reward and of the episode reward, which neither
grader sees, on the same held-out persons. The doctor has the last word on each run. Saves docs/figures/audit_prediction.png.
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
from gradus.core.metrics import read_metrics
from gradus.evidence.health import diagnose, report
from gradus.runs.recipe.load import load_recipe
from gradus.stats import Interval, mean_interval
from gradus.training.grpo import train_grpo
from gradus.training.run.options import GrpoOptions

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "audit_prediction.png"
# v2 pays everything at the end of the week, so its credit is by episode and undiscounted.
BY_EPISODE: Mapping[str, Any] = {"credit": "episode", "discount": 1.0}
MEASURES = (("rewards", "reward, change", "#0072B2"), ("true_rewards", "episode reward, change", "#D55E00"))
Records = Sequence[Mapping[str, Any]]


def changes(records: Records, name: str) -> tuple[list[int], list[Interval]]:
    """Steps of the validations, and what ``name`` moved by since the first, paired by task, sampled decoding."""
    validations = [record for record in records if record["kind"] == "validation" and record["decoding"] == "sampled"]
    first = np.array(validations[0][name])
    return [record["step"] for record in validations], [
        mean_interval((np.array(record[name]) - first).tolist()) for record in validations
    ]


def draw(runs: Mapping[str, Records]) -> None:
    """A column per grader: change of the reward above, of the episode reward below, with 95 % intervals."""
    figure, axes = plt.subplots(2, len(runs), figsize=(7.2, 4.6), layout="constrained", sharex=True, sharey="row")
    for column, (grader, records) in enumerate(runs.items()):
        for row, (name, label, color) in enumerate(MEASURES):
            steps, result = changes(records, name)
            axis = axes[row, column]
            axis.axhline(0.0, color="#999999", linewidth=0.8)
            low, high = [each.low or 0.0 for each in result], [each.high or 0.0 for each in result]
            axis.fill_between(steps, low, high, color=color, alpha=0.15)
            axis.plot(steps, [each.mean for each in result], "o-", color=color, linewidth=2, markersize=4)
            axis.set_ylabel(label if column == 0 else "")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0, column].set_title(f"GRPO on {grader}", loc="left", fontsize=10, fontweight="bold")
        axes[1, column].set_xlabel("step")
    figure.savefig(FIGURE, dpi=150)


def said(result: Interval, digits: int) -> str:
    """A change with its interval."""
    return f"{result.mean:+.{digits}f} [{result.low:+.{digits}f}, {result.high:+.{digits}f}]"


def main() -> None:
    """Train on v2, print the tables, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, default=Path("runs/rhythm"), help="folder of a finished `gradus run rhythm`"
    )
    parser.add_argument("--out", type=Path, default=None, help="keep the run on v2 here")
    options = parser.parse_args()
    if not (options.run / "grpo" / "metrics.jsonl").is_file():
        parser.exit(2, f"no finished run in {options.run}; `gradus run rhythm` makes it, or name another with --run\n")
    model = options.run / "sft" / "best"
    spec, config = environments.load("rhythm"), load_recipe(None, path=options.run / "recipe.toml").grpo
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as scratch:
        folder = options.out or Path(scratch) / "v2"
        train_grpo(model, spec, config.model_copy(update=BY_EPISODE), folder, options=GrpoOptions(grader="v2"))
        runs = {"v2": read_metrics(folder), "v3": read_metrics(options.run / "grpo")}
    table = Table(title="change on the same held-out persons")
    for name in ("grader", "reward", "episode reward", "doctor"):
        table.add_column(name)
    document: dict[str, Any] = {"name": "audit_prediction"}
    for grader, records in runs.items():
        reward, true_reward = (changes(records, name)[1][-1] for name, _, _ in MEASURES)
        verdict = report(diagnose(records))
        rules = ", ".join(f"{each['rule']} ({each['severity']})" for each in verdict["diagnoses"]) or verdict["status"]
        table.add_row(grader, said(reward, 3), said(true_reward, 2), rules)
        document[grader] = {"reward": reward.mean, "true_reward": true_reward.mean, "doctor": rules}
    draw(runs)
    Console(width=120).print(table)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
