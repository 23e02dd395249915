"""`gradus envs`: what there is to train on."""

from __future__ import annotations

import typer

from gradus.cli.options import JSON
from gradus.cli.output import next_command, note, print_json


def command(
    name: str | None = typer.Argument(None, help="Show everything about one environment."),
    json_file: str | None = JSON,
) -> None:
    """List the environments, those of a suite (`gradus envs reasoning-gym:`), or show one: graders, conditions, policies."""
    if name is not None and not name.endswith(":"):
        _one(name, json_file)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gradus import api

    if not print_json(rows := api.list_environments(name), json_file):
        return
    table = Table(title="environments", box=None, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("what it is")
    for row in rows:
        table.add_row(Text(row["name"]), Text(row["summary"]))
    Console().print(table)
    note("Your own: rows.jsonl, rows.csv, FILE.py:NAME, or module:attribute of an installed package")
    next_command("envs", "rhythm")


def _one(name: str, json_file: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from gradus import api

    about = api.describe(name)
    if not print_json(about, json_file):
        return
    console = Console()
    console.print(Text.assemble((about["name"], "bold"), f"  {about['summary']}"))
    teacher = about["teacher"] or "none"
    turns = "one turn" if about["turns"] == 1 else f"at most {about['turns']} turns"
    console.print(Text(f"true reward: {about['true_reward']}; {turns}; teacher: {teacher}"))
    for title in ("graders", "conditions"):
        console.print(f"[bold]{title}[/bold]")
        for key, text in about[title].items():
            console.print(f"  {key:<18}{text}", highlight=False, markup=False)
    console.print("[bold]policies[/bold]")
    console.print("  " + ", ".join(about["policies"]), highlight=False, markup=False)
    next_command("play", name)
