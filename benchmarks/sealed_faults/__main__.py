"""Faults of one wrong line each, put into a copy of the library: which of them a short run names, notices, or says nothing of.

`faults_third.toml`, `faults_fourth.toml` and `faults_fifth.toml` were written from the training code alone and are not changed; what names a fault (`place`) is frozen with it. The first two sets are in the history. Each fault runs its
recipes (`recipes.py`) with the copy. A finding counts if a sound run of the same recipe has no finding of that rule. *named*: one leads to the place;
*noticed*: there is one; *silent*: there is none; *excluded*: all weights (or files, for faults of storing) are those of the sound run; *gone*: the library no
longer has its line.

    python -m benchmarks.sealed_faults --out build/sealed     # goes on where it was; --only WORDS takes some faults
    python -m benchmarks.sealed_faults --set third            # those of faults_third.toml
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARY = HERE.parents[1] / "src"
LIMIT = 600  # seconds of a run, which takes five on a machine that does nothing else
SETS = ("third", "fourth", "fifth")
Outcome = dict[str, Any]


def run(source: Path, folder: Path, *args: str) -> Outcome:
    """Runs the recipes' script with the library in ``source``; returns its findings, or its last words."""
    paths = os.pathsep.join(map(str, (source, HERE.parent, LIBRARY)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "recipes.py"), *args],
            capture_output=True,
            text=True,
            env=environment,
            timeout=LIMIT,
        )
        words = (done.stderr.strip() or "no output").splitlines()[-1]
    except subprocess.TimeoutExpired:
        words = f"no end within {LIMIT} s"
    outcome = folder / "outcome.json"
    if outcome.is_file():
        return json.loads(outcome.read_text())
    return {"findings": [["crash", words]], "weights": "", "artefacts": "", "files": ""}


def faulty_copy(fault: Outcome, folder: Path) -> Path:
    """Copies the library with the fault in it, in its file or where its line has moved to. Raises ValueError unless one file has it, once."""
    package = LIBRARY / "gradus"
    named = package / fault["file"]
    holders = [path for path in package.rglob("*.py") if path.read_text().count(fault["old"]) == 1]
    path = named if named in holders else next(iter(holders), None)
    if path is None:
        raise ValueError("its line is no longer in the library")
    shutil.copytree(package, folder / "gradus", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "gradus" / path.relative_to(package)).write_text(path.read_text().replace(fault["old"], fault["new"]))
    return folder


def judge(fault: Outcome, pairs: list[tuple[Outcome, Outcome]]) -> tuple[str, str]:
    """Says what became of a fault, of (sound, faulty) outcomes of its recipes, and the finding that decides."""
    measure = fault.get("judge", "weights")
    news: list[str] = []
    for sound, faulty in pairs:
        usual = {rule for rule, _ in sound["findings"]}
        news += [f"{rule}: {text}" for rule, text in faulty["findings"] if rule not in usual]
    if all(sound[measure] == faulty[measure] for sound, faulty in pairs):
        return "excluded", news[0] if news else ""
    for text in news:
        if re.search(fault["place"], text, re.IGNORECASE):
            return "named", text
    return ("noticed", news[0]) if news else ("silent", "")


def outcome_of(fault: Outcome, models: Path, sound: dict[str, Outcome]) -> tuple[str, str]:
    """Runs a fault's recipes, and the sound library's where that was not done yet."""
    settings = json.dumps(fault.get("settings", {}))
    pairs: list[tuple[Outcome, Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="sealed-") as name:
        copy = faulty_copy(fault, Path(name) / "copy")
        for recipe in fault.get("recipes", ["rows", "turns"]):
            key = f"{recipe} {settings}"
            if key not in sound:
                folder = Path(name) / f"sound-{recipe}"
                sound[key] = run(LIBRARY, folder, recipe, settings, str(models), str(folder))
            folder = Path(name) / recipe
            pairs.append((sound[key], run(copy, folder, recipe, settings, str(models), str(folder))))
    return judge(fault, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/sealed"), help="folder of what was measured")
    parser.add_argument("--only", default="", help="faults whose ids have this")
    parser.add_argument("--set", choices=SETS, default="fourth", help="which faults")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    models, stored = args.out / "models", args.out / f"rows_{args.set}.json"
    if not models.is_dir():
        run(LIBRARY, args.out, "models", str(models))
    state = json.loads(stored.read_text()) if stored.is_file() else {"sound": {}, "rows": {}}
    faults = tomllib.loads((HERE / f"faults_{args.set}.toml").read_text())["fault"]
    print("| area | fault | outcome | what the run said |\n|---|---|---|---|")
    for fault in faults:
        if args.only not in fault["id"]:
            continue
        if fault["id"] not in state["rows"]:
            try:
                state["rows"][fault["id"]] = outcome_of(fault, models, state["sound"])
            except ValueError as error:
                state["rows"][fault["id"]] = ("gone", str(error))
            stored.write_text(json.dumps(state))
        outcome, text = state["rows"][fault["id"]]
        print(f"| {fault['area']} | {fault['id']} | {outcome} | {text[:160].replace('|', '/')} |", flush=True)
    alarms = {key: entry["findings"] for key, entry in state["sound"].items() if entry["findings"]}
    for key, findings in alarms.items():
        print(f"sound run {key}: {findings[0]}", file=sys.stderr)
    counts = Counter(outcome for outcome, _ in state["rows"].values())
    counted = sum(counts.values()) - counts["excluded"] - counts["gone"]
    figures = {"counted": counted, **counts, "sound": len(state["sound"]), "sound_alarms": len(alarms)}
    print(json.dumps({"name": "sealed_faults", **figures}))


if __name__ == "__main__":
    main()
