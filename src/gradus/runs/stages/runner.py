"""`gradus run`: the stages of a recipe, one after another. What is there already is not done again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import tomli_w
import torch
from rich.console import Console
from rich.text import Text

from gradus.core import ConfigError
from gradus.core.documents import Costs, PromiseOutcome, Results, read_document
from gradus.core.files import write_json, write_text
from gradus.core.printing import verbose
from gradus.core.terminal import Terminal
from gradus.core.values import Json, is_table
from gradus.evidence.reports import run_figures, show_results, write_report
from gradus.evidence.stage_files import keep_evaluated
from gradus.runs.job import Job
from gradus.runs.money import costs_document, forecast_money
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.stages import Stage, stages_of
from gradus.sandbox.locks import FolderLock
from gradus.stats import format_money, format_number, format_seconds
from gradus.training.distributed.processes import world
from gradus.training.run.trackers import check_trackers

_MOST_MISSED, _MOST_COSTS = 3, 3  # lines of the end of a run
SEEDS = "seeds.json"  # in the folder of a run of several training seeds


def run_stages(
    job: Job,
    folder: Path,
    *,
    only: Sequence[str] | None = None,
    lessons: Sequence[Path] = (),
    rolled_out: Path | None = None,
    redo: bool = False,
    anyway: bool = False,
    console: Console | None = None,
) -> Path:
    """Do the stages of a job in a run folder and return it. Stages whose output is there already are skipped.

    ``only``: the names of the stages to do, as in ``("grpo",)``; all of the recipe and the report by default. ``lessons``: files of episodes that
    SFT learns, in place of a teacher's. ``rolled_out``: episodes of policies that are not rolled out again, in one seed of a larger run. A failed
    audit stops the run, unless ``anyway``.
    """
    require_folder(folder)
    check_trackers(job.recipe.trackers)
    stages = stages_of(job.recipe, only)
    with ExitStack() as held:
        if world().main:
            held.callback(FolderLock(folder).release)
        run = RunContext(
            job,
            folder,
            redo=redo,
            console=console,
            anyway=anyway,
            rolled_out=rolled_out,
            lessons=lessons,
            stages=stages,
        )
        if only is None:
            run.manifest.leave_out(stages)
        for line in forecast_money(job):  # before anything is spent
            run.console.print(line, highlight=False)
        do_stages(run, stages)
        if only is None and world().main:
            keep_evaluated(folder)  # of the weights
            finish(run, run.ledger.costs(), shown=rolled_out is None)
    return folder


def require_folder(folder: Path, *, several: bool = False) -> None:
    """Raises ConfigError if a run of one seed, or of ``several``, cannot be in a folder: a file, or a run of the other kind, is there."""
    # A link to nothing counts: a folder cannot be made in its place.
    places = (place for place in (folder, *folder.parents) if place.exists() or place.is_symlink())
    nearest = next(places, None)
    if nearest is not None and not nearest.is_dir():
        raise ConfigError(f"{nearest} is not a folder, and a run needs one; choose another with --out")
    if not several and (folder / SEEDS).is_file():
        raise ConfigError(
            f"{folder} holds a run of several seeds; go on with --seeds, or choose another folder with --out"
        )
    if several and (folder / "grpo").exists():
        raise ConfigError(f"{folder} holds a run of one seed; choose another folder with --out")


def do_stages(run: RunContext, stages: Mapping[str, Stage]) -> None:
    """Do the stages that are not done yet, and store the recipe."""
    # All inputs before the first stage: files that are edited while the run goes on change nothing.
    inputs = {name: run.inputs(sections) for name, (_, sections) in stages.items()}
    for name, (do, _) in stages.items():
        if run.manifest.done(name, inputs[name]):
            run.console.print(f"{name}: there already", style="dim")
            continue
        run.console.rule(Text(name, style="bold"), align="left")
        threads = torch.get_num_threads()
        try:
            run.counts.clear()
            with run.manifest.doing(name, inputs[name]) as cost, run.ledger.paying(name, cost):
                do(run, cost)
                cost.update(run.counts.as_costs())
        finally:  # the next stage computes with as many threads as in a run that was broken off before it
            torch.set_num_threads(threads)
        gc.collect()  # a model and its trainer refer to each other: they would stay in memory beside the next stage's
        run.console.print(f"{name}: {run.manifest.seconds(name):.0f} s", style="dim")
    if world().main:
        table = run.recipe.model_dump(mode="json", exclude_unset=True) | {"quick": run.recipe.quick}
        write_text(run.folder / "recipe.toml", tomli_w.dumps(_without_none(table)))


def _without_none(value: Any) -> Any:
    """TOML has no null: what is unset is left out."""
    if is_table(value):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return list(map(_without_none, cast(list[Any], value)))
    return value


def finish(run: RunContext, stages: Sequence[Json], *, shown: bool = True) -> None:
    """Write ``costs.json`` and the report; if ``shown``, draw the figures too, and print the end of the run."""
    results = read_document(run.folder / "results.json", Results)
    costs = costs_document(stages, results)
    write_json(run.folder / "costs.json", costs)
    run.manifest.keep("costs.json", "recipe.toml")
    if shown and not run.recipe.quick:  # there is nothing to see in them
        run_figures(run.folder)
    report = write_report(run.folder)
    if shown:
        show_end(Terminal(), results, costs, report)


def show_end(console: Console, results: Results, costs: Costs, report: Path) -> None:
    """Print what a run has shown in at most 24 lines; with ``--verbose`` all conditions, graders, promises and costs."""
    console.print(show_results(results, every=verbose()))
    if not results.get("quick"):
        for line in promise_lines(results.get("promises", []), every=verbose()):
            console.print(line, highlight=False)
    console.print(_cost_line(costs, every=verbose()), highlight=False)
    console.print(Text.assemble("report, with all conditions, graders and differences: ", (str(report), "bold")))


# Whether it is an aim -> whether it was met -> the word for it.
_OUTCOMES = {
    True: {True: "reached", False: "not reached", None: "not measured"},
    False: {True: "kept", False: "missed", None: "not measured"},
}


def promise_lines(promises: Sequence[PromiseOutcome], *, every: bool = False) -> Iterator[str]:
    """Yields what the recipe promised and what came."""
    firm = [promise for promise in promises if not promise["aim"]]
    aims = [promise for promise in promises if promise["aim"]]
    missed = [promise for promise in firm if promise["met"] is False]
    if firm:
        kept = sum(promise["met"] is True for promise in firm)
        yield f"promises of the recipe: {kept} of {len(firm)} kept"
    for promise in promises if every else [*missed[:_MOST_MISSED], *aims]:
        kind = "aim" if promise["aim"] else "promise"
        outcome = _OUTCOMES[promise["aim"]][promise["met"]]
        bound = f"{promise['direction']} {promise['threshold']:g}"
        yield f"  {kind} {outcome}: {promise['text']} ({format_number(promise['value'])}, wanted {bound})"


def _cost_line(costs: Costs, *, every: bool) -> str:
    """Time and money of a run, and of the stages that took longest."""
    rows = costs["stages"]
    longest = rows if every else sorted(rows, key=lambda row: -row["seconds"])[:_MOST_COSTS]
    stages: list[str] = []
    for row in longest:
        if row["seconds"] >= 0.5:  # less is written as 0 s
            planned = f" of {row['planned']:.0f} planned" if "planned" in row else ""
            stages.append(f"{row['stage']} {row['seconds']:.0f} s{planned}")
    line = f"it took {format_seconds(sum(row['seconds'] for row in rows))}"
    if stages:
        line += f" ({', '.join(stages)})"
    total = costs.get("total")
    return line if total is None else f"{line}; {format_money(total)}"
