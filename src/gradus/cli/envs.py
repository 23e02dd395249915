"""`gradus envs`: what there is to train on."""

from __future__ import annotations

import typer

from gradus.commands.options import JSON
from gradus.commands.output import next_command, note, print_json


def command(
    name: str | None = typer.Argument(None, help="Show everything about one environment."),
    json_file: str | None = JSON,
) -> None:
    """List the environments, those of a suite (`gradus envs reasoning-gym:`), or show one: graders, conditions, policies."""
    if name is not None and not name.endswith(":"):
        _one(name, json_file)
        return
    from rich.table import Table
    from rich.text import Text

    from gradus import commands
    from gradus.core.terminal import Terminal

    if not print_json(rows := commands.list_environments(name), json_file):
        return
    table = Table(title="environments", box=None, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("what it is")
    for row in rows:
        table.add_row(Text(row["name"]), Text(row["summary"]))
    Terminal().print(table)
    note("Your own: rows.jsonl, rows.csv, FILE.py:NAME, or module:attribute of an installed package")
    next_command("envs", "rhythm")


def _one(name: str, json_file: str | None) -> None:
    from rich.text import Text

    from gradus import commands
    from gradus.core.terminal import Terminal

    about = commands.describe(name)
    if not print_json(about, json_file):
        return
    console = Terminal()
    console.print(Text.assemble((about["name"], "bold"), f"  {about['summary']}"))
    teacher = about["teacher"] or "none"
    turns = "one turn" if about["turns"] == 1 else f"at most {about['turns']} turns"
    console.print(Text(f"true reward: {about['true_reward']}; {turns}; teacher: {teacher}"))
    for title in ("graders", "conditions"):
        console.print(title, style="bold")
        for key, text in about[title].items():
            console.print(f"  {key:<18}{text}", highlight=False)
    console.print("policies", style="bold")
    console.print("  " + ", ".join(about["policies"]), highlight=False)
    next_command("play", name)
