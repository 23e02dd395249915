"""`gradus rewards`: reward functions on their own, before anything is trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gradus.rewards import Completion, Tryout

__all__ = ["app"]

app = typer.Typer(help="Try reward functions without training.", no_args_is_help=True)


@app.command("list")
def list_rewards() -> None:
    """The built-in reward functions and what they pay for."""
    import inspect

    from rich.console import Console
    from rich.table import Table

    from gradus.rewards import BUILT_IN

    table = Table(box=None)
    for title in ("name", "settings", "what it pays"):
        table.add_column(title)
    for name, function in BUILT_IN.items():
        parameters = inspect.signature(function).parameters
        makes = "prompts" not in parameters
        settings = ", ".join(parameters) if makes else ""
        first = (inspect.getdoc(function) or "").split("\n")[0]
        table.add_row(name, settings, first)
    Console().print(table)


@app.command("try")
def try_(
    file: Path | None = typer.Argument(
        None, help="JSONL of {prompt, completion, answer, ...}, or stored episodes; - reads standard input."
    ),
    reward: list[str] = typer.Option(
        ["correctness=2", "format=0.5", "incremental_format=0.5"],
        "--reward",
        "-r",
        help="NAME, module:function or file.py:function, with =WEIGHT; repeat it for each.",
    ),
    completion: list[str] = typer.Option([], "--completion", "-c", help="A completion to score, instead of a file."),
    prompt: str = typer.Option("", "--prompt", help="The prompt of typed completions."),
    answer: str | None = typer.Option(None, "--answer", "-a", help="The gold answer of typed completions."),
    messages: bool = typer.Option(False, "--messages", help="Hand prompts and completions over as chat messages."),
    limit: int = typer.Option(20, "--limit", min=0, help="Completions to show; all are scored."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, one line a completion."),
) -> None:
    """Score stored or typed completions. Exit code 1 if a reward function failed on any."""
    import json

    from gradus.core import ConfigError
    from gradus.rewards import load_rewards, parse_reward, try_rewards

    if (file is None) == (not completion):
        raise ConfigError("give a file of completions, or --completion TEXT, and not both")
    rows = _typed(completion, prompt, answer) if file is None else _stored(file)
    tried = try_rewards(load_rewards([parse_reward(text) for text in reward], messages=messages), rows)
    if as_json:
        for row in tried.rows():
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        _show(tried, limit)
    if tried.errors:
        raise typer.Exit(1)


def _typed(completions: list[str], prompt: str, answer: str | None) -> list[Completion]:
    from gradus.rewards import Completion

    columns = {} if answer is None else {"answer": answer}
    return [Completion(prompt=prompt, completion=text, columns=columns) for text in completions]


def _stored(file: Path) -> list[Completion]:
    import sys

    from gradus.core import ConfigError
    from gradus.rewards import parse_completions, read_completions

    if str(file) == "-":
        return parse_completions(sys.stdin.read(), "standard input")
    if not file.is_file():
        raise ConfigError(f"no file {file}; expected JSONL with a completion a line")
    return read_completions(file)


def _show(tried: Tryout, limit: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = list(tried.component_means())
    table = Table(box=None)
    table.add_column("completion", overflow="ellipsis", no_wrap=True, max_width=28)
    table.add_column("answer read", overflow="ellipsis", no_wrap=True, max_width=16)
    for name in [*names, "reward"]:  # long names are folded, so that narrow terminals show the figures whole
        table.add_column(name.replace("_", " "), justify="right", min_width=7, overflow="fold")
    for row in tried.rows()[:limit]:
        figures = [_figure(row["components"][name]) for name in names]
        text = Text(" ".join(row["completion"].split()) or "(empty)")
        table.add_row(text, Text(row["read"] or "–"), *figures, _figure(row["value"]))
    means = [_figure(value) for value in tried.component_means().values()]
    table.add_row(f"mean of {len(tried.scored)}", "", *means, _figure(tried.mean), style="bold")
    Console().print(table)
    for name, count in tried.errors.items():
        typer.secho(f"failed: {name} on {count} of {len(tried.scored)} completions", fg="red", err=True)
    for scored in tried.scored:
        if scored.error:
            typer.secho(f"the first: {scored.error}", fg="red", err=True)
            break


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
