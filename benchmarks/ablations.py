"""What matters, one setting at a time: each row is a `gradus run` over several training seeds, held against the first with `gradus compare`.

    python benchmarks/ablations.py legs --out runs/ablations --page docs/log/ablations.md

The recipes are examples/higher_lower.toml and those in benchmarks/ablations. What a row has in common with the first, the teacher's episodes
and mostly SFT, is copied from there: the same settings and seeds would make the same files. The page is written after every row, and
runs that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gradus


@dataclass(frozen=True, kw_only=True)
class Table:
    """An environment's rows: name -> what it changes. ``common``: settings of all rows. ``students``: runs whose SFT the rows begin with."""

    recipe: str
    rows: Mapping[str, Sequence[str]]
    common: Sequence[str] = ()
    students: Mapping[str, Sequence[str]] = field(default_factory=dict)


TABLES = {
    "higher_lower": Table(
        recipe="examples/higher_lower.toml",
        common=("grpo.max_steps=60",),
        rows={
            "as the recipe has it": (),
            "credit: turn": ("grpo.credit=turn",),
            "scale: none": ("grpo.scale=none",),
            "scale: group": ("grpo.scale=group",),
            "8 groups of 16": ("grpo.groups=8", "grpo.group_size=16"),
            "32 groups of 4": ("grpo.groups=32", "grpo.group_size=4"),
            "algorithm: grpo, as published": ("grpo.algorithm=grpo",),
            "algorithm: rloo, its baseline without oneself": ("grpo.algorithm=rloo",),
            "half of the SFT": ("sft.epochs=3",),
        },
    ),
    "null": Table(
        recipe="examples/higher_lower.toml",
        common=(
            "audit.enabled=false",
            "teach.episodes=300",
            "sft.epochs=3",
            "grpo.max_steps=12",
            "grpo.groups=8",
            "grpo.validation_every=0",
            'eval.policies=["sft", "grpo"]',
            'eval.pairs=["grpo-sft"]',
            "eval.episodes=100",
        ),
        rows={"as the recipe has it": (), "nothing: other training tasks": ("grpo.first_task=50000",)},
    ),
    "legs": Table(
        recipe="benchmarks/ablations/legs.toml",
        rows={
            "as the recipe has it": (),
            "scale: none": ("grpo.scale=none",),
            "scale: group": ("grpo.scale=group",),
            "8 groups of 16": ("grpo.groups=8", "grpo.group_size=16"),
            "32 groups of 4": ("grpo.groups=32", "grpo.group_size=4"),
            "baseline: mean of the batch (reinforce++)": ("grpo.algorithm=reinforce++",),
            "baseline: the other members (rloo)": ("grpo.algorithm=rloo",),
            "half of the SFT": ("sft.epochs=3",),
            "nothing: other training tasks": ("grpo.first_task=50000",),
        },
    ),
    "rhythm": Table(
        recipe="benchmarks/ablations/rhythm.toml",
        students={"student": ("grpo.max_steps=1",)},
        common=(
            "model.path=runs/ablations/rhythm/student/sft/best",
            "teach.enabled=false",
            'eval.policies=["base", "grpo"]',
            'eval.pairs=["grpo-base"]',
        ),
        rows={
            "as the recipe has it: credit by span": (),
            "credit: turn": ("grpo.credit=turn",),
            "credit: episode": ("grpo.credit=episode", "grpo.discount=1"),
            "4 groups of 16": ("grpo.groups=4", "grpo.group_size=16"),
            "16 groups of 4": ("grpo.groups=16", "grpo.group_size=4"),
            "scale: group": ("grpo.scale=group",),
            "credit: episode, baseline: mean of the batch (reinforce++)": (
                "grpo.algorithm=reinforce++",
                "grpo.credit=episode",
                "grpo.discount=1",
            ),
            "scale: none": ("grpo.scale=none",),
            "nothing: other training tasks": ("grpo.first_task=200000",),
        },
    ),
    "memory": Table(
        recipe="benchmarks/ablations/memory.toml",
        students={"student": ("grpo.max_steps=1",), "student-half": ("grpo.max_steps=1", "sft.max_steps=80")},
        common=(
            "model.path=runs/ablations/memory/student/sft/best",
            "teach.enabled=false",
            'eval.policies=["base", "grpo"]',
            'eval.pairs=["grpo-base"]',
        ),
        rows={
            "as the recipe has it: credit by turn": (),
            "credit: episode": ("grpo.credit=episode",),
            "4 groups of 16": ("grpo.groups=4", "grpo.group_size=16"),
            "16 groups of 4": ("grpo.groups=16", "grpo.group_size=4"),
            "scale: group": ("grpo.scale=group",),
            "half of the SFT": ("model.path=runs/ablations/memory/student-half/sft/best",),
            "credit: episode, baseline: mean of the batch (reinforce++)": (
                "grpo.algorithm=reinforce++",
                "grpo.credit=episode",
            ),
            "scale: none": ("grpo.scale=none",),
            "nothing: other training tasks": ("grpo.first_task=200000",),
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--page", type=Path, help="Write the table into this page, between its marks.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="Only the first so many.")
    parser.add_argument("--redo", action="store_true", help="Do stages again whose settings have changed.")
    given = parser.parse_args()
    table = TABLES[given.table]
    for name, settings in table.students.items():
        gradus.run(recipe=table.recipe, settings=list(settings), out=given.out / given.table / name)
    done: dict[str, Path] = {}
    for place, (name, changes) in enumerate(list(table.rows.items())[: given.rows]):
        folder = given.out / given.table / f"{place:02d}"
        if done:
            _share(next(iter(done.values())), folder, changes)
        _train(table, changes, folder, given)
        done[name] = folder
        text = _text(given, done)
        if given.page:
            _write(given.page, given.table, text)
    print(text)


def _train(table: Table, changes: Sequence[str], folder: Path, given: argparse.Namespace) -> None:
    gradus.run(
        recipe=table.recipe,
        settings=[*table.common, *changes],
        seeds=given.seeds,
        out=folder,
        redo=given.redo,
    )


def _share(first: Path, folder: Path, changes: Sequence[str]) -> None:
    """Copy the stages that the row's settings leave as they are in the first row."""
    if folder.exists() or any(change.startswith("model.") for change in changes):
        return
    own_sft = any(change.startswith("sft.") for change in changes)
    copy_stages(first, folder, ["audit", "eval"])
    for member in first.glob("seed-*"):
        copy_stages(member, folder / member.name, ["model", "audit", "teach", *([] if own_sft else ["sft"])])


def copy_stages(source: Path, target: Path, names: Sequence[str]) -> None:
    state = json.loads((source / "state.json").read_text(encoding="utf-8"))
    stages = {name: state["stages"][name] for name in names if name in state["stages"]}
    for written in (Path(name) for stage in stages.values() for name in stage["files"]):
        (target / written).parent.mkdir(parents=True, exist_ok=True)
        if written.name == "SHA256SUMS":  # it stands for a model
            shutil.copytree(source / written.parent, target / written.parent, dirs_exist_ok=True)
        else:
            shutil.copy2(source / written, target / written)
    target.mkdir(parents=True, exist_ok=True)
    (target / "state.json").write_text(json.dumps({"schema": state["schema"], "stages": stages}), encoding="utf-8")


def _text(given: argparse.Namespace, folders: Mapping[str, Path]) -> str:
    """A table for each condition of the rows that are done, and the command of each row."""
    lines: list[str] = []
    results = {
        name: json.loads((folder / "results.json").read_text(encoding="utf-8")) for name, folder in folders.items()
    }
    conditions = list(next(iter(results.values()))["conditions"])
    for condition in conditions:
        lines += [f"`{condition}`:", ""] if len(conditions) > 1 else []
        lines += [
            f"| setting | after SFT | after GRPO, each seed | GRPO minus SFT | minus the first row | p (Holm, {len(folders) - 1} rows) |",
            "|---" * 6 + "|",
        ]
        compared = _compared(folders, condition)
        for name, each in results.items():
            cells = _figures(each["conditions"][condition], compared.get(name))
            lines.append("| " + " | ".join([name, *cells]) + " |")
        lines.append("")
    table = TABLES[given.table]
    commands = [_command(given, name, settings, seeds=None) for name, settings in table.students.items()]
    for name, folder in folders.items():
        commands.append(_command(given, folder.name, [*table.common, *table.rows[name]], seeds=given.seeds))
    return "\n".join([*lines, "```", *commands, "```"])


def _command(given: argparse.Namespace, folder: str, settings: Sequence[str], *, seeds: int | None) -> str:
    words = ["gradus", "run", TABLES[given.table].recipe, *([] if seeds is None else ["--seeds", str(seeds)])]
    changes = [word for change in settings for word in ("--set", change)]
    return shlex.join([*words, "--out", f"runs/ablations/{given.table}/{folder}", *changes])


def _write(page: Path, table: str, text: str) -> None:
    """Put the text between the table's marks."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(f"<!-- table {table} -->")
    if not mark:
        raise SystemExit(f"expected the mark <!-- table {table} --> in {page}; add it, and <!-- end --> after it")
    after = rest.partition("<!-- end -->")[2]
    page.write_text(f"{before}{mark}\n\n{text}\n\n<!-- end -->{after}", encoding="utf-8")


def _compared(folders: Mapping[str, Path], condition: str) -> dict[str, Any]:
    """Each row's difference to the first, with p corrected over the rows."""
    from gradus.stats import holm

    first, *others = folders
    differences = {name: _difference(folders[first], folders[name])[condition] for name in others}
    corrected = holm([each["p"] for each in differences.values()])
    return {name: {**each, "p": p} for (name, each), p in zip(differences.items(), corrected, strict=True)}


@cache
def _difference(first: Path, other: Path) -> dict[str, Any]:
    """Other minus first in reward, by condition."""
    from gradus.runs.comparison import compare_runs

    conditions = compare_runs({"a": first, "b": other})["conditions"]
    return {name: each["pairs"]["b - a"]["reward"] for name, each in conditions.items()}


def _figures(condition: Mapping[str, Any], difference: Mapping[str, Any] | None) -> list[str]:
    from gradus.stats import format_p

    grpo = condition["policies"]["grpo"]["reward"]
    before = "sft" if "sft" in condition["policies"] else "base"  # the model that was given
    shown = [
        f"{condition['policies'][before]['reward']['mean']:.3f}",
        ", ".join(f"{each:.3f}" for each in grpo["by_seed"]),
    ]
    shown.append(_interval(condition["pairs"][f"grpo - {before}"]["reward"]))
    p = None if difference is None else difference["p"]
    return [*shown, "" if difference is None else _interval(difference), "" if p is None else format_p(p)]


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return f"{figure['mean']:+.3f}"
    return f"{figure['mean']:+.3f} [{figure['low']:+.3f}, {figure['high']:+.3f}]"


if __name__ == "__main__":
    main()
