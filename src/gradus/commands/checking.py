"""Foresees a run: its faults (check), and its memory, time and money (plan)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gradus.commands.options import DataOrRecipe, RunOptions
from gradus.commands.output import Shown, next_command, same
from gradus.commands.signature import command
from gradus.commands.training import fixed_keys, gradients, make_recipe, split_options
from gradus.core import ConfigError, GradusError
from gradus.core.errors import require_training

if TYPE_CHECKING:
    from gradus.runs.checks import Finding
    from gradus.runs.planning.forecast import Plan


@dataclass(frozen=True, repr=False)
class Checklist(Shown):
    """The faults of a run that has not begun, with a remedy for each. ``status`` is ``pass``, ``warn`` or ``fail``."""

    findings: Sequence[Finding]

    @property
    def status(self) -> str:
        """The worst of the findings."""
        from gradus.runs.checks import status_of

        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The status and the findings."""
        from gradus.runs.checks import to_json

        return to_json(self.findings)

    def tables(self) -> Sequence[Any]:
        """The table, and the status."""
        from gradus.runs.checks import findings_table

        return findings_table(self.findings, self.status)


def _again(data: str | None, *without: str) -> list[str]:
    """The data and the options of a run that were typed."""
    return [*([data] if data else []), *same(*(name for name in RunOptions.__annotations__ if name not in without))]


def _offline_unless(online: bool) -> bool:
    """Keeps the hub's client, which is not imported yet, from asking: this process is the command's alone."""
    if not online:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    return online


_ONLINE = typer.Option(
    "--online", callback=_offline_unless, help="Ask servers and hubs too; nothing is asked otherwise."
)


def _after_check(result: Checklist, *, data: str | None) -> int | None:
    if result.status == "fail":
        return 1
    return next_command("run", *_again(data))


@command("check", _after_check, shown=True)
def check(
    data: DataOrRecipe = None,
    *,
    online: Annotated[bool, _ONLINE] = False,
    **options: Unpack[RunOptions],
) -> Checklist:
    """Say what would go wrong in a run of the same options, with a remedy for each. Exit code 1 if anything would fail.

    Nothing is trained.

    >>> import gradus
    >>> gradus.check("arithmetic", quick=True).status in ("pass", "warn")
    True
    """
    require_training()
    from gradus.runs.checks import check_recipe, from_error

    of_recipe, whole = split_options(options)
    out = whole.get("out")
    try:
        chosen = make_recipe(data, online=online, **of_recipe)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    several, time = whole.get("seeds") not in (None, 1), whole.get("time")
    fixed = fixed_keys(chosen, data, of_recipe, time)
    with gradients():
        found = check_recipe(
            chosen, out=None if out is None else Path(out), online=online, several=several, time=time, fixed=fixed
        )
    return Checklist(found)


@dataclass(frozen=True, repr=False)
class Forecast(Shown):
    """Memory, time and money of a run. ``plan`` holds the figures; ``problem`` says why it cannot fit, or is None.

    ``changes``: the settings that make it fit into the memory that was asked for, as ``key=value``.
    """

    plan: Plan
    problem: str | None
    changes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """The hardware, the figures, the problem and the changes."""
        plan = self.plan
        return {
            "hardware": plan.hardware.name, "memory": dict(plan.memory), "peak": plan.peak, "seconds": dict(plan.seconds),
            "steps": plan.steps, "hours": plan.hours, "cost": plan.cost, "problem": self.problem, "changes": list(self.changes),
        }  # fmt: skip

    def tables(self) -> Sequence[Any]:
        """The figures, the problem, and the settings that make it fit."""
        from rich.table import Table
        from rich.text import Text

        from gradus.runs.planning.forecast import as_rows

        title = Text(f"{self.plan.model.name} on {self.plan.hardware.name}")
        table = Table(title=title, box=None, show_header=False, title_justify="left")
        for row in as_rows(self.plan):
            table.add_row(*row)
        fits = [Text("it fits with: " + " ".join(f"--set {each}" for each in self.changes))] if self.changes else []
        return [table, *fits, *([Text(self.problem, style="red")] if self.problem else [])]


def _after_plan(result: Forecast, *, data: str | None) -> None:
    if result.problem:
        raise ConfigError(result.problem)
    next_command("check", *_again(data, "memory"), *(word for each in result.changes for word in ("--set", each)))


@command("plan", _after_plan, shown=True)
def plan(data: DataOrRecipe = None, **options: Unpack[RunOptions]) -> Forecast:
    """Forecast memory, time and money of a run of the same options; what cannot fit is refused with the setting to change.

    Nothing is trained.

    >>> import gradus
    >>> gradus.plan("arithmetic").problem is None
    True
    """
    require_training()
    from gradus.runs.checks.plan import fitted_plan
    from gradus.runs.planning.forecast import check_fits

    of_recipe, _ = split_options(options)
    memory = of_recipe.pop("memory", None)
    if memory is not None and not isinstance(memory, str):
        raise ConfigError(f"memory is a text, as in '24GB', got {memory!r}")
    chosen = make_recipe(data, **of_recipe)
    made, config, changes = fitted_plan(chosen, preset=of_recipe.get("preset"), memory=memory, online=True)
    try:
        check_fits(made, config)
    except ConfigError as error:
        return Forecast(made, str(error), changes)
    return Forecast(made, None, changes)
