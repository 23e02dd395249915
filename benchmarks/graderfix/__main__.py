"""Audits graders as they were before and after their own project changed them: `python benchmarks/graderfix`.

It clones the projects, which are not part of this repository, takes their files at pinned commits, and prints how often the audit is right.
Beside the extra `suites` it needs `pip install math-verify pylatexenc mathruler`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graderfix.rivals import RIVALS
from graderfix.side import SHARE
from gradus.core.documents import SCHEMA
from gradus.core.files import read_toml, write_text
from gradus.runs.progress import progress_bar
from gradus.stats import format_interval, wilson

_HERE = Path(__file__).parent
_FAILS = ("exploit", "crash", "refused")
_PASSES = ("strict", "sound")
_SECONDS = 300


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/graderfix", description=__doc__)
    parser.add_argument(
        "--part",
        choices=("open", "held", "fresh"),
        default="open",
        help="those that are held or fresh are for one look",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clones", type=Path, help="folder of clones, as OWNER+NAME/repo; cloned from GitHub otherwise"
    )
    parser.add_argument("--only", action="append", help="names of graders; repeatable")
    parser.add_argument("--by", default="gradus", choices=("gradus", *RIVALS), help="who audits")
    parser.add_argument("--out", type=Path, help="file for the rows as JSON")
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_rows(told, Path(folder)))
    _show(rows)
    if told.out is not None:
        write_text(
            told.out, json.dumps({"schema": SCHEMA, "part": told.part, "seed": told.seed, "rows": rows}, indent=1)
        )


def _rows(told: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    asked = [
        (grader, pair)
        for grader, pair in pairs_of(read_toml(_HERE / "pairs.toml"))
        if _part(pair) == told.part and (not told.only or grader["name"] in told.only)
    ]
    with progress_bar(f"graderfix {told.part}", 2 * len(asked), "graders") as advance:
        for number, (grader, pair) in enumerate(asked):
            clone = _clone(grader["repository"], folder, told.clones)
            for side, when in enumerate(("before", "after")):
                commit = pair["commit"] + ("^" if when == "before" else "")
                version = {**grader, **(pair.get("was", {}) if when == "before" else {})}
                said = _audited(clone, commit, version, told, folder)
                advance(2 * number + side + 1, 2 * len(asked), grader["name"])
                yield {
                    "name": grader["name"],
                    "repository": grader["repository"],
                    "commit": commit,
                    "label": pair[when],
                    "why": pair.get("why", ["", ""])[side],
                    **said,
                    "right_reason": any(word in text for word in pair.get("shows", []) for text in said["evidence"]),
                }


def _part(pair: Mapping[str, Any]) -> str:
    return pair.get("part") or ("held" if pair.get("held") else "open")


def pairs_of(data: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """What is audited, and its commit and labels. A pair's own call, rows and form come before those of its grader."""
    for grader in data["grader"]:
        for pair in grader["pairs"]:
            own = {key: pair[key] for key in ("name", "call", "rows", "form") if key in pair}
            named = {"name": grader.get("module", "").split(".")[-1], **grader, **own}
            yield {key: value for key, value in named.items() if key != "pairs"}, pair


def _clone(repository: str, folder: Path, clones: Path | None) -> Path:
    if clones is not None:
        return clones / repository.replace("/", "+") / "repo"
    place = folder / "clones" / repository
    if not place.is_dir():
        address = f"https://github.com/{repository}"
        subprocess.run(["git", "clone", "--quiet", "--bare", address, str(place)], check=True)
    return place


def take_files(clone: Path, commit: str, under: str, place: Path) -> None:
    """Writes the files of a folder as they were at a commit. Data files that a clone leaves out are left out."""
    git = ["git", "-C", str(clone)]
    tree = subprocess.run(
        [*git, "ls-tree", "-r", "-z", commit, under], check=True, capture_output=True, text=True
    ).stdout
    for line in filter(None, tree.split("\0")):
        told, path = line.split("\t")
        content = subprocess.run([*git, "cat-file", "blob", told.split()[2]], check=False, capture_output=True)
        if content.returncode == 0:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content.stdout)


def _audited(
    clone: Path, commit: str, grader: Mapping[str, Any], told: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """The audit of one version, in a process that imports it."""
    place = folder / grader["repository"] / grader["name"] / commit.replace("^", "-before")
    for path in grader.get("files") or [grader["module"].replace(".", "/") + ".py"]:
        take_files(clone, commit, path, place)
    out = folder / "said.json"
    out.unlink(missing_ok=True)
    words = (_HERE / "side.py", place, json.dumps(grader), told.seed, out, told.by)
    command = [sys.executable, *map(str, words)]
    try:
        subprocess.run(command, timeout=_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return {"verdict": "not run", "evidence": [f"took more than {_SECONDS} s"]}
    return json.loads(out.read_text()) if out.is_file() else {"verdict": "not run", "evidence": ["the process died"]}


def _is_find(row: Mapping[str, Any]) -> bool:
    """Returns True if the audit fails, or says that an answer earns much which is wrong."""
    return row["verdict"] == "fail" or max(row.get("shares", {}).values(), default=0.0) >= SHARE


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    ran = [row for row in rows if row["verdict"] != "not run"]
    flawed = [row for row in ran if row["label"] in _FAILS]
    passing = [row for row in ran if row["label"] in _PASSES]
    found = [row for row in flawed if _is_find(row)]
    shares = {
        "failed": wilson(sum(row["verdict"] == "fail" for row in flawed), len(flawed)),
        "failed of the sound": wilson(sum(row["verdict"] == "fail" for row in passing), len(passing)),
        "found": wilson(len(found), len(flawed)),
        "for the right reason": wilson(sum(row["right_reason"] for row in found), len(flawed)),
        "false alarms": wilson(sum(map(_is_find, passing)), len(passing)),
    }
    for name, share in shares.items():
        print(f"{name}: {format_interval({'mean': share.mean, 'low': share.low, 'high': share.high})} of {share.n}")
    print(
        f"seconds: {median(row['seconds'] for row in ran):.1f} in the median, {max(row['seconds'] for row in ran):.1f} at most"
    )
    for row in rows:
        wrong = not row["right_reason"] if row in found else row in flawed or (row in passing and _is_find(row))
        if wrong or row["verdict"] == "not run":
            print(
                f"{row['name']}@{row['commit']} ({row['label']}: {row['why']}): {row['verdict']} {row.get('shares')}. {'; '.join(row['evidence'])[:160]}"
            )
    print(json.dumps({"name": "graderfix", **{name: asdict(share) for name, share in shares.items()}}))


if __name__ == "__main__":
    main()
