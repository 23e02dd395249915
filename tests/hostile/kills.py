"""Ends a run at random moments by kill -9 and by SIGTERM, lets it go on, and compares what it leaves with an unbroken run, byte by byte.

    python -m tests.hostile.kills [--kills 25] [--terms 25] [--seed 0]

The stages take turns; the moment within a stage comes from the seed and from how long the stage took unbroken.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hostile.cases import Case
from tests.hostile.commands import HALF, load_everything, run_inside

__all__ = ["broken_off", "difference", "write_recipe"]

SETTINGS = ["model.nano.hidden_size=32", "model.nano.layers=1", "model.nano.intermediate_size=64", "audit.enabled=true", "audit.episodes=6",
            "audit.budget=30", "teach.episodes=300", "sft.threads=1", "sft.max_steps=16", "sft.checkpoint_every=3", "sft.validation_every=4",
            "grpo.threads=1", "grpo.max_steps=6", "grpo.checkpoint_every=2", "grpo.validation_every=2", "grpo.store_every=2", "stage=[]",
            'eval.policies=["sft", "grpo", "grpo-greedy"]', 'eval.pairs=["grpo-sft"]', 'eval.conditions=["held-out"]', "eval.episodes=24",
            "promises=[]"]  # fmt: skip
COMMAND = Case(name="run", words=("run", "--recipe", "recipe.toml", "--out", "run", "--anyway"))
STAGES = ("model", "audit", "teach", "sft", "grpo", "eval", "doctor")
CLOCKS = {"seconds", "tokens_per_second"}  # figures of a clock, which differ from run to run
LIMIT = 300


def write_recipe(folder: Path) -> None:
    """The recipe of a run of a few seconds that has every stage."""
    import tomli_w

    from gradus.runs.recipe.load import load_recipe

    recipe = load_recipe("arithmetic", quick=True, changes=SETTINGS)
    table = json.loads(json.dumps(recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True)))
    (folder / "recipe.toml").write_text(tomli_w.dumps(table), encoding="utf-8")


def _begin(work: Path) -> int:
    child = os.fork()
    if child == 0:
        os._exit(run_inside(COMMAND, work, work / "said", LIMIT))
    return child


def _stage(work: Path) -> str:
    """The stage that is at work, or what comes before and after all of them."""
    file = work / "run" / "manifest.json"
    stages: Mapping[str, Any] = json.loads(file.read_text())["stages"] if file.exists() else {}
    undone = [name for name, stage in stages.items() if not stage["done"]]
    return undone[0] if undone else "between stages" if len(stages) < len(STAGES) else "report"


def broken_off(work: Path, stage: str, delay: float, sign: int) -> str:
    """Start the run in ``work``, end it ``delay`` seconds into ``stage``, and finish it; returns where it was."""
    child = _begin(work)
    until = time.monotonic() + LIMIT
    running = True
    while running and _stage(work) != stage and time.monotonic() < until:
        time.sleep(0.0005)
        running = os.waitpid(child, os.WNOHANG) == (0, 0)
    time.sleep(delay)
    hit = _stage(work)
    if running:
        os.kill(child, sign)
        running = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -sign
    finish(work)
    return hit if running else "had ended"


def finish(work: Path) -> None:
    """Run to the end. Raises AssertionError with what was said if it cannot."""
    _, status = os.waitpid(_begin(work), 0)
    assert os.waitstatus_to_exitcode(status) == 0, (work / "said").read_text()[-1500:]


def results(run: Path) -> dict[str, str]:
    """File -> checksum of all that does not hold a clock's figures; metrics without those."""
    plain = [file for file in run.rglob("*") if file.suffix in (".safetensors", ".pt")]
    plain += [*run.glob("grpo/episodes/*"), *run.glob("report/*"), *run.glob("*/splits.json"), *run.glob("model/*")]
    plain += [run / name for name in ("results.json", "doctor.json", "audit.json", "recipe.toml")]
    stored = {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in plain}
    for file in run.rglob("episodes.jsonl.gz"):  # where its blocks end depends on the kill, what they say does not
        stored[str(file.relative_to(run))] = hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest()
    for file in [*run.glob("*/metrics.jsonl"), *run.glob("*/checkpoints/*/state.json")]:
        text = file.read_text(encoding="utf-8")
        records = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
        stored[str(file.relative_to(run))] = json.dumps(_without_clocks(records))
    return stored


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clocks(each) for key, each in value.items() if key not in CLOCKS | {"offset"}}
    return [_without_clocks(each) for each in value] if isinstance(value, list) else value


def difference(whole: Path, broken: Path) -> list[str]:
    """The files that are not the same, and those that were left half-written."""
    one, other = results(whole), results(broken)
    half = [path.name for path in broken.rglob(".*") if path.name.endswith(HALF)]
    return [*sorted(name for name in {*one, *other} if one.get(name) != other.get(name)), *half]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--kills", 25), ("--terms", 25), ("--seed", 0)):
        arguments.add_argument(name, type=int, default=default)
    given = arguments.parse_args()
    load_everything()
    rng = random.Random(given.seed)
    hits: dict[str, Counter[str]] = {"kill -9": Counter(), "SIGTERM": Counter()}
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        write_recipe(whole)
        finish(whole)
        took = {
            each["stage"]: each["seconds"] for each in json.loads((whole / "run" / "costs.json").read_text())["stages"]
        }
        signs = [signal.SIGKILL] * given.kills + [signal.SIGTERM] * given.terms
        rng.shuffle(signs)
        for number, sign in enumerate(signs):
            work = Path(name) / f"try-{number}"
            work.mkdir()
            write_recipe(work)
            stage = STAGES[(number + given.seed) % len(STAGES)]
            hit = broken_off(work, stage, rng.random() * took[stage], sign)
            different = difference(whole / "run", work / "run")
            bad += bool(different)
            kind = "kill -9" if sign == signal.SIGKILL else "SIGTERM"
            hits[kind][hit] += 1
            print(f"{number} {kind} aimed at {stage}, hit {hit}: {different or 'equal'}", flush=True)
    places = sorted({place for each in hits.values() for place in each}, key=lambda each: (*STAGES, each).index(each))
    print(f"\n{len(signs)} runs broken off, {bad} not equal to the unbroken run\n\n| signal | {' | '.join(places)} |")
    print("|---|" + "---:|" * len(places))
    for kind, counts in hits.items():
        print(f"| {kind} | {' | '.join(str(counts[place]) for place in places)} |")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
