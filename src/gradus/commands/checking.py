"""Foresees the faults of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gradus.commands.options import DataOrRecipe, RunOptions
from gradus.commands.output import Shown, next_command, same
from gradus.commands.signature import command
from gradus.commands.training import fixed_keys, make_recipe, split_options
from gradus.core import GradusError
from gradus.core.documents import SCHEMA
from gradus.core.errors import require_training

if TYPE_CHECKING:
    from gradus.runs.checks import Finding


_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


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
        return {"schema": SCHEMA, "status": self.status, "checks": [vars(finding) for finding in self.findings]}

    def tables(self) -> Sequence[Any]:
        """One line a finding, and the status."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("", "check", "result", "remedy"):
            table.add_column(title, overflow="fold")
        for each in self.findings:
            line = (Text(each.message), Text(each.remedy))
            table.add_row(Text(each.status, style=_STYLES[each.status]), each.check, *line)
        return [table, Text(self.status, style=f"bold {_STYLES[self.status]}")]


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
    return next_command("run", *([data] if data else []), *same(*RunOptions.__annotations__))


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
    from gradus.runs.checks import Circumstances, check_recipe, from_error

    of_recipe, whole = split_options(options)
    try:
        chosen = make_recipe(data, online=online, **of_recipe)
    except GradusError as error:
        return Checklist((from_error(error, "recipe", "correct the recipe"),))
    time = whole.get("time")
    given = Circumstances(
        online=online,
        time=time,
        fixed=fixed_keys(chosen, data, of_recipe, time),
        memory=of_recipe.get("memory"),
    )
    return Checklist(check_recipe(chosen, given))
