"""`gradus envs`: what there is to train on."""

from __future__ import annotations

from typing import Any

import typer

from gradus.cli.options import JSON
from gradus.cli.output import next_command, note, print_json

__all__ = ["command"]


def command(
    name: str | None = typer.Argument(None, help="Show everything about one environment."),
    json_file: str | None = JSON,
) -> None:
    """List the environments, those of a suite (`gradus envs reasoning-gym:`), or show one: graders, conditions, policies."""
    if name is not None and not name.endswith(":"):
        _one(name, json_file)
        return
    if not print_json(rows := _rows(name), json_file):
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="environments", box=None, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("what it is")
    for row in rows:
        table.add_row(row["name"], row["summary"])
    Console().print(table)
    note("Your own: rows.jsonl, rows.csv, FILE.py:NAME, or module:attribute of an installed package")
    next_command("envs", "rhythm")


def _rows(suite: str | None) -> list[dict[str, str]]:
    """All environments, or those of one suite."""
    from gradus import environments
    from gradus.interop.suites.naming import list_suite

    if suite is None:
        return [{"name": each, "summary": _summary(each)} for each in environments.names()]
    return [{"name": suite + each, "summary": text} for each, text in list_suite(suite[:-1]).items()]


def _summary(name: str) -> str:
    from gradus import environments
    from gradus.core import GradusError

    try:
        return environments.load(name).summary
    except GradusError as error:  # some want a file after the colon, and say so
        return f"{name}:… — {error}"


def _one(name: str, json_file: str | None) -> None:
    import gradus

    spec = gradus.load_environment(name)
    about: dict[str, Any] = {
        "name": spec.name,
        "summary": spec.summary,
        "true_reward": spec.true_reward_name,
        "turns": spec.max_turns,
        "graders": {each.name: each.summary for each in spec.graders.values()},
        "default_grader": spec.default_grader,
        "conditions": {each.name: f"{len(each.seeds)} seeds; {each.summary}" for each in spec.conditions.values()},
        "policies": [*spec.policies, "remote:MODEL", "a model folder or a run folder"],
        "teacher": spec.teacher,
    }
    if not print_json(about, json_file):
        return
    from rich.console import Console

    console = Console()
    console.print(f"[bold]{spec.name}[/bold]  {spec.summary}", highlight=False)
    console.print(
        f"true reward: {spec.true_reward_name}; at most {spec.max_turns} turns; teacher: {spec.teacher or 'none'}"
    )
    for title in ("graders", "conditions"):
        console.print(f"[bold]{title}[/bold]")
        for key, text in about[title].items():
            console.print(f"  {key:<18}{text}", highlight=False, markup=False)
    console.print("[bold]policies[/bold]")
    console.print("  " + ", ".join(about["policies"]), highlight=False, markup=False)
    next_command("play", name)
