"""`gradus rewards`: reward functions on their own, before anything is trained on them."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import JSON, Command
from gradus.commands.output import json_text, next_command, print_json, problem, same

app = typer.Typer(help="Try reward functions without training.", no_args_is_help=True)


@app.command("list", cls=Command)
def list_rewards() -> None:
    """The built-in reward functions and what they reward."""
    from gradus import commands

    commands.list_rewards().show()
    next_command("rewards", "try", "-c", "<reasoning> 2 + 2 </reasoning> <answer> 4 </answer>", "--answer", 4)


@app.command("try", cls=Command)
def try_(
    file: Path | None = typer.Argument(
        None, help="JSONL of {prompt, completion, answer, ...}, or stored episodes; - reads standard input."
    ),
    reward: list[str] = typer.Option(
        ["correctness=2", "format=0.5", "incremental_format=0.5"],
        "--reward",
        help="NAME, module:function or file.py:function, with =WEIGHT; repeat it for each.",
    ),
    completion: list[str] = typer.Option([], "--completion", "-c", help="A completion to score, instead of a file."),
    prompt: str = typer.Option("", "--prompt", help="The prompt of typed completions."),
    answer: str | None = typer.Option(None, "--answer", "-a", help="The gold answer of typed completions."),
    messages: bool | None = typer.Option(
        None,
        "--messages/--texts",
        help="Hand prompts and completions over as chat messages; as the rows are if left out.",
    ),
    limit: int = typer.Option(20, "--limit", min=0, help="Completions to show; all are scored."),
    json_file: str | None = JSON,
) -> None:
    """Score stored or typed completions; printed JSON has a line for each. Exit code 1 if a reward function failed on any."""
    from gradus import commands
    from gradus.core import ConfigError

    if (file is None) == (not completion):
        raise ConfigError("give a file of completions, or --completion TEXT, and not both")
    tried = commands.try_rewards(
        file or completion, reward, prompt=prompt, answer=answer, messages=messages, limit=limit
    )
    rows = tried.rows()
    if json_file == "-":  # one line a completion
        for row in rows:
            typer.echo(json_text(row))
    else:
        tried.show()
        print_json(rows, json_file)
        for each in tried.problems():
            problem(each)
        if completion and answer is None and any("it takes answer" in each for each in tried.problems()):
            typer.echo("give it with --answer", err=True)
    if tried.tryout.errors:
        raise typer.Exit(1)
    if json_file != "-":
        next_command("audit", "arithmetic", *same("reward"), why="or your own rows.jsonl")
