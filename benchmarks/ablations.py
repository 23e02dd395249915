"""What matters, one setting at a time: each row is a `gradus run` over several training seeds, held against the first with `gradus compare`.

    python benchmarks/ablations.py --out runs/ablations --page docs/results/ablations.md

The recipe is examples/higher_lower.toml, which one core trains in a minute or two a seed. Runs that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECIPE = "examples/higher_lower.toml"
ROWS: Mapping[str, Sequence[str]] = {
    "as the recipe has it": (),
    "credit: turn": ("grpo.credit=turn",),
    "scale: none": ("grpo.scale=none",),
    "scale: group": ("grpo.scale=group",),
    "8 groups of 16": ("grpo.groups=8", "grpo.group_size=16"),
    "32 groups of 4": ("grpo.groups=32", "grpo.group_size=4"),
    "algorithm: grpo, as published": ("grpo.algorithm=grpo",),
    "algorithm: rloo, its baseline without oneself": ("grpo.algorithm=rloo",),
    "half of the SFT": ("sft.epochs=3",),
    "one step off the policy": ("grpo.async_level=1", "grpo.correction=truncate"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--page", type=Path, help="Write the table into this page, between its marks.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=len(ROWS), help="Only the first so many.")
    parser.add_argument("--set", action="append", default=[], help="A setting of all runs.")
    given = parser.parse_args()
    chosen = dict(list(ROWS.items())[: given.rows])
    folders = {name: given.out / f"{place:02d}" for place, name in enumerate(chosen)}
    commands = {name: _command(given, folders[name], changes) for name, changes in chosen.items()}
    for command in commands.values():
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    lines = [
        f"| setting | after SFT | after GRPO, each seed | GRPO minus SFT | minus the first row | p (Holm, {len(chosen) - 1} rows) |",
        "|---" * 6 + "|",
    ]
    compared = _compared(folders)
    for name, folder in folders.items():
        lines.append("| " + " | ".join([name, *_figures(folder, compared.get(name))]) + " |")
    lines += ["", "```", *(f"{shlex.join(command)}" for command in commands.values()), "```"]
    text = "\n".join(lines)
    print(text)
    if given.page:
        before, _, rest = given.page.read_text(encoding="utf-8").partition("<!-- table -->")
        after = rest.partition("<!-- end -->")[2]
        given.page.write_text(f"{before}<!-- table -->\n\n{text}\n\n<!-- end -->{after}", encoding="utf-8")


def _command(given: argparse.Namespace, folder: Path, changes: Sequence[str]) -> list[str]:
    settings = [word for change in (*given.set, *changes) for word in ("--set", change)]
    return ["gradus", "run", RECIPE, "--seeds", str(given.seeds), "--out", str(folder), *settings]


def _compared(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Each row's difference to the first, with p corrected over the rows."""
    from gradus.pipeline.compare import compare_runs
    from gradus.stats import holm

    first, *others = folders
    differences = {
        name: next(iter(compare_runs({"a": folders[first], "b": folders[name]})["conditions"].values()))["pairs"][
            "b - a"
        ]["reward"]
        for name in others
    }
    corrected = holm([each["p"] for each in differences.values()])
    return {name: {**each, "p": p} for (name, each), p in zip(differences.items(), corrected, strict=True)}


def _figures(folder: Path, difference: Mapping[str, Any] | None) -> list[str]:
    from gradus.stats import format_p

    condition = next(iter(json.loads((folder / "results.json").read_text(encoding="utf-8"))["conditions"].values()))
    grpo = condition["policies"]["grpo"]["reward"]
    shown = [
        f"{condition['policies']['sft']['reward']['mean']:.3f}",
        ", ".join(f"{each:.3f}" for each in grpo["by_seed"]),
    ]
    shown.append(_interval(condition["pairs"]["grpo - sft"]["reward"]))
    p = None if difference is None else difference["p"]
    return [*shown, "" if difference is None else _interval(difference), "" if p is None else format_p(p)]


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return f"{figure['mean']:+.3f}"
    return f"{figure['mean']:+.3f} [{figure['low']:+.3f}, {figure['high']:+.3f}]"


if __name__ == "__main__":
    main()
