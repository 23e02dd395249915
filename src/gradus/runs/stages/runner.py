"""`gradus run`: the stages of a recipe, one after another. What is there already is not done again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch
from rich.console import Console
from rich.text import Text

from gradus.core import ConfigError
from gradus.core.documents import SCHEMA, Results, read_document
from gradus.core.files import write_json, write_text
from gradus.core.printing import quiet, verbose
from gradus.core.terminal import Terminal
from gradus.evidence.reports import run_figures, show_results, write_report
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.stages import Stage, stages_of
from gradus.sandbox.locks import FolderLock
from gradus.stats import format_money, format_number
from gradus.training.run.trackers import check_trackers

_MOST_MISSED, _MOST_COSTS = 3, 3  # lines of the end of a run
SEEDS = "seeds.json"  # in the folder of a run of several training seeds


def run_recipe(
    recipe: Recipe, *, out: Path | None = None, redo: bool = False, anyway: bool = False, console: Console | None = None
) -> Path:
    """Do all stages of a recipe in a run folder and return it. Stages whose output is there already are skipped.

    A failed audit stops the run, unless ``anyway``.
    """
    folder = out or recipe.default_folder()
    require_folder(folder)
    check_trackers(recipe.trackers)
    lock = FolderLock(folder)
    try:
        run = RunContext(recipe, folder, redo=redo, console=console or Terminal(quiet=quiet()), anyway=anyway)
        do_stages(run, stages_of(recipe))
        store_costs(run)
        return finish(run, run.state.costs(), console or Terminal())
    finally:
        lock.release()


def require_folder(folder: Path, *, several: bool = False) -> None:
    """Raises ConfigError if a run of one seed, or of ``several``, cannot be in a folder: a file, or a run of the other kind, is there."""
    there = next((each for each in (folder, *folder.parents) if each.exists() or each.is_symlink()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{there} is not a folder, and a run needs one; choose another with --out")
    if not several and (folder / SEEDS).is_file():
        raise ConfigError(
            f"{folder} holds a run of several seeds; go on with --seeds, or choose another folder with --out"
        )
    if several and (folder / "grpo").exists():
        raise ConfigError(f"{folder} holds a run of one seed; choose another folder with --out")


def do_stages(run: RunContext, stages: Mapping[str, Stage]) -> None:
    """Do the stages that are not done yet, and store the recipe."""
    recipe, folder = run.recipe, run.folder
    made = {name: run.made_from(select) for name, (_, select) in stages.items()}
    run.state.leave_out(stages)
    for name, (do, _) in stages.items():
        if run.state.done(name, made[name]):
            run.console.print(f"{name}: there already", style="dim")
            continue
        run.console.rule(Text(name, style="bold"), align="left")
        threads = torch.get_num_threads()
        try:
            with run.state.doing(name, made[name]) as cost:
                do(run, cost)
        finally:  # the next stage computes with as many threads as in a run that was broken off before it
            torch.set_num_threads(threads)
        gc.collect()  # a model and its trainer refer to each other: they would stay in memory beside the next stage's
        run.console.print(f"{name}: {cost['seconds']:.0f} s", style="dim")
    write_text(
        folder / "recipe.toml",
        tomli_w.dumps(_without_none(recipe.model_dump(mode="json", exclude_unset=True) | {"quick": recipe.quick})),
    )


def store_costs(run: RunContext) -> None:
    """Write what the stages cost; a run ends with it."""
    write_json(run.folder / "costs.json", {"schema": SCHEMA, "stages": run.state.costs()})
    run.state.keep("costs.json", "recipe.toml")


def remaining(recipe: Recipe, folder: Path) -> list[str]:
    """Returns the stages that a run in this folder would still do. Raises ConfigError if it holds a run with other settings."""
    run = RunContext(recipe, folder, redo=False, console=Console(quiet=True))
    stages = stages_of(recipe)
    run.state.leave_out(stages)
    return [name for name, (_, select) in stages.items() if not run.state.done(name, run.made_from(select))]


def finish(run: RunContext, costs: Sequence[Mapping[str, Any]], console: Console) -> Path:
    """Write the report, and print the end of the run."""
    if not run.recipe.quick:  # there is nothing to see in them
        run_figures(run.folder)
    show_end(console, read_document(run.folder / "results.json", Results), costs, write_report(run.folder))
    return run.folder


def _without_none(value: Any) -> Any:
    """TOML has no null: what is unset is left out."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return value


def show_end(console: Console, results: Mapping[str, Any], costs: Sequence[Mapping[str, Any]], report: Path) -> None:
    """Print what a run has shown in at most 24 lines; with ``--verbose`` all conditions, graders, promises and costs."""
    console.print(show_results(results, every=verbose()))
    if not results.get("quick"):
        for line in promise_lines(results.get("promises", []), every=verbose()):
            console.print(line, highlight=False)
    console.print(_cost_line(costs, every=verbose()), highlight=False)
    console.print(Text.assemble("report, with all conditions, graders and differences: ", (str(report), "bold")))


def promise_lines(promises: Sequence[Mapping[str, Any]], *, every: bool = False) -> Iterator[str]:
    """Yields what the recipe promised and what came."""
    firm = [each for each in promises if not each["aim"]]
    missed = [each for each in firm if each["met"] is False]
    kept = sum(each["met"] is True for each in firm)
    if firm:
        yield f"promises of the recipe: {kept} of {len(firm)} kept"
    listed = list(promises) if every else [*missed[:_MOST_MISSED], *(each for each in promises if each["aim"])]
    for each in listed:
        kind = "aim" if each["aim"] else "promise"
        met = {
            True: "reached" if each["aim"] else "kept",
            False: "not reached" if each["aim"] else "missed",
            None: "not measured",
        }
        wanted = f"{each['direction']} {each['threshold']:g}"
        yield f"  {kind} {met[each['met']]}: {each['text']} ({format_number(each['value'])}, wanted {wanted})"


def _cost_line(costs: Sequence[Mapping[str, Any]], *, every: bool) -> str:
    """Time and money of a run, and of the stages that took longest."""
    stages = costs if every else sorted(costs, key=lambda row: -row["seconds"])[:_MOST_COSTS]
    parts = ", ".join(f"{row['stage']} {row['seconds']:.0f} s" for row in stages if row["seconds"] >= 0.5)
    money = [row["cost"] for row in costs if row.get("cost") is not None]
    spent = f"; {format_money(sum(money))}" if money else ""
    return f"it took {_duration(sum(row['seconds'] for row in costs))}{f' ({parts})' if parts else ''}{spent}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
