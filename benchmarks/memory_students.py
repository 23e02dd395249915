"""A run's students on more worlds than a run evaluates, greedily: strict accuracy, the gain of GRPO over SFT and over append-only, and which entry updates
name.

``python benchmarks/memory_students.py runs/memory --worlds 896``. The worlds are those of a condition and the seeds behind them, so none
was trained on. ``--shuffled`` shows related entries in any order.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gradus.core import Episode, Task
from gradus.environments import load
from gradus.rollouts import roll_out
from gradus.runs.policies import make_policy
from gradus.stats import format_interval, mean_interval, paired_difference

SPEC = load("memory")
PIECE = 128  # worlds rolled out at a time


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/memory"))
    parser.add_argument("--worlds", type=int, default=128)
    parser.add_argument("--condition", default="in-distribution")
    parser.add_argument("--shuffled", action="store_true")
    asked = parser.parse_args(argv)
    if not (asked.run / "grpo").is_dir():
        parser.exit(2, f"no finished run in {asked.run}; `gradus run memory` makes it, or name another\n")
    condition = SPEC.conditions[asked.condition]
    options = {**condition.options, "shuffled": True} if asked.shuffled else condition.options
    first = condition.seeds[0]
    tasks = [
        Task(environment="memory", seed=first + number, condition=asked.condition, options=options)
        for number in range(asked.worlds)
    ]
    students = {name: played(str(asked.run / name), tasks) for name in ("sft", "grpo")}
    scores = {name: [SPEC.true_reward(episode) for episode in episodes] for name, episodes in students.items()}
    for name, episodes in students.items():
        print(f"{name}: {format_interval(mean_interval(scores[name]))} over {len(episodes)} worlds")
        for place, named in which_entry(episodes).items():
            print(f"  right entry {place}: " + ", ".join(f"{count} {what}" for what, count in named.most_common()))
    gain = paired_difference(scores["grpo"], scores["sft"])
    print(f"grpo - sft: {format_interval(gain, signed=True)}")
    appended = [SPEC.true_reward(episode) for episode in roll_out(SPEC, SPEC.policy("append-only"), tasks).episodes]
    print(f"append-only: {format_interval(mean_interval(appended))}")
    print(f"grpo - append-only: {format_interval(paired_difference(scores['grpo'], appended), signed=True)}")
    record = {"name": "memory_students", "ours": gain.mean, "low": gain.low, "high": gain.high}
    print(json.dumps(record | {"unit": "strict accuracy", "runs": asked.worlds}))


def played(model: str, tasks: Sequence[Task]) -> list[Episode]:
    """Greedy episodes of a model, in pieces, so that few caches are held at once."""
    policy = make_policy(SPEC, model, temperature=0.0)
    pieces = [tasks[start : start + PIECE] for start in range(0, len(tasks), PIECE)]
    return [episode for piece in pieces for episode in roll_out(SPEC, policy, piece).episodes]


def which_entry(episodes: Sequence[Episode]) -> dict[str, Counter[str]]:
    """Where the entry stands that an update should name (the one with the name and the attribute that its new content begins with), and
    which one it names: ``refused`` if none or several."""
    counts: dict[str, Counter[str]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns):
        shown = turn.data["entries"]
        for result in turn.action_data["calls"]:
            if result["name"] != "memory_update":
                continue
            try:
                told = json.loads(turn.action[result["start"] : result["end"]])["arguments"]["new_content"].split()[:2]
            except (ValueError, KeyError, AttributeError):
                continue
            right = [entry["id"] for entry in shown if entry["content"].split()[:2] == told]
            where = _place(right, [entry["id"] for entry in shown])
            what = "refused" if not result["ok"] else "it" if result["entry_id"] in right else "another"
            counts.setdefault(where, Counter())[what] += 1
    return counts


def _place(right: Sequence[int], shown: Sequence[int]) -> str:
    if not right:
        return "not shown"
    if len(shown) == 1:
        return "alone"
    return "first" if right[0] == shown[0] else "later"


if __name__ == "__main__":
    main()
