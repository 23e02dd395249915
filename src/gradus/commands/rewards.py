"""Reward functions on their own, before anything is trained on them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradus.commands.options import Json, Line, as_list
from gradus.commands.output import Listing, Shown, json_text, next_command, print_json, problem, same
from gradus.commands.signature import command
from gradus.core import ConfigError

if TYPE_CHECKING:
    from gradus.rewards import Tryout


_SHOWN = 20  # completions in the table; all are scored


def _after_list(result: Listing) -> None:
    next_command("rewards", "try", "-c", "<reasoning> 2 + 2 </reasoning> <answer> 4 </answer>", "--answer", 4)


@command("rewards list", _after_list, shown=True)
def list_rewards() -> Listing:
    """The built-in reward functions and what they reward."""
    from gradus.rewards import BUILT_IN

    rows = Listing()
    for name, function in BUILT_IN.items():
        parameters = inspect.signature(function).parameters
        settings = "" if "prompts" in parameters else ", ".join(parameters)
        rows.append(
            {
                "name": name,
                "settings": settings,
                "what it rewards": (inspect.getdoc(function) or "").split("\n")[0].replace("``", ""),
            }
        )
    return rows


class TriedRewards(Shown):
    """Scores of completions. ``tryout`` holds them; the first of them are shown."""

    def __init__(self, tryout: Tryout) -> None:
        self.tryout = tryout

    def rows(self) -> list[dict[str, Any]]:
        """One record a completion."""
        return self.tryout.rows()

    def to_json(self) -> list[dict[str, Any]]:
        """The rows."""
        return self.rows()

    def problems(self) -> list[str]:
        """Says which functions failed on how many completions, and the first error."""
        tried = self.tryout
        failed = [
            f"failed: {name} on {count} of {len(tried.scored)} completions" for name, count in tried.errors.items()
        ]
        return failed + [f"the first: {each.error}" for each in tried.scored if each.error][:1]

    def tables(self) -> Sequence[Any]:
        """One row a completion, and the means."""
        from rich.table import Table
        from rich.text import Text

        from gradus.stats import format_number

        names = list(self.tryout.component_means())
        table = Table(box=None, expand=True)  # the completion takes the room that the figures leave
        table.add_column("completion", overflow="ellipsis", no_wrap=True, ratio=1)
        table.add_column("answer read", overflow="ellipsis", no_wrap=True, max_width=16)
        for name in [*names, "total"]:  # a function may be called reward
            table.add_column(name.replace("_", " "), justify="right", min_width=7)
        for row in self.rows()[:_SHOWN]:
            figures = [format_number(row["components"][name], 2) for name in names]
            text = Text(" ".join(row["completion"].split()) or "(empty)")
            table.add_row(text, Text(row["read"] or "–"), *figures, format_number(row["value"], 2))
        means = [format_number(value, 2) for value in self.tryout.component_means().values()]
        scored = len(self.tryout.scored)
        table.add_row(f"mean of {scored}", "", *means, format_number(self.tryout.mean, 2), style="bold")
        return [table]


def _after_try(tried: TriedRewards, *, completion: list[str], answer: str | None, json_file: Json = None) -> int | None:
    """One line a completion if JSON is printed, else the table."""
    rows = tried.rows()
    if json_file == "-":
        for row in rows:
            typer.echo(json_text(row))
        return 1 if tried.tryout.errors else None
    tried.show()
    print_json(rows, json_file)
    for each in tried.problems():
        problem(each)
    if completion and answer is None and any("it takes answer" in each for each in tried.problems()):
        typer.echo("give it with --answer", err=True)
    if tried.tryout.errors:
        return 1
    return next_command("audit", "arithmetic", *same("rewards"), why="or your own rows.jsonl")


_FILE = typer.Argument(
    metavar="FILE", help="JSONL of {prompt, completion, answer, ...}, or stored episodes; - reads standard input."
)
_REWARDS = typer.Option("--reward", help="NAME, module:function or file.py:function, with =WEIGHT; repeat it for each.")


@command("rewards try", _after_try)
def try_rewards(
    completions: Annotated[str | Path | Sequence[Any] | None, _FILE, Line(kind=Path | None)] = None,
    rewards: Annotated[Sequence[Any], _REWARDS, Line(kind=list[str])] = (
        "correctness=2",
        "format=0.5",
        "incremental_format=0.5",
    ),
    *,
    completion: Annotated[
        Sequence[str],
        typer.Option("--completion", "-c", help="A completion to score, instead of a file."),
        Line(kind=list[str]),
    ] = (),
    answer: Annotated[str | None, typer.Option("--answer", "-a", help="The gold answer of typed completions.")] = None,
) -> TriedRewards:
    """Score stored or typed completions; printed JSON has a line for each. Exit code 1 if a reward function failed on any.

    >>> from gradus import commands
    >>> commands.try_rewards(["<answer> 2 </answer>"], ["correctness"], answer="2").rows()[0]["value"]
    1.0
    """
    from gradus.rewards import Completion, choose_rewards, load_rewards, read_completions
    from gradus.rewards import try_rewards as score
    from gradus.rollouts.storage import decode
    from gradus.runs.sources import forget_changed_files

    forget_changed_files()

    if (completions is None) == (not completion):
        raise ConfigError("give a file of completions, or --completion TEXT, and not both")
    completions = completion if completions is None else completions
    if not isinstance(completions, str | Path):
        completions = as_list(completions)
    if isinstance(completions, str | Path):
        if answer is not None:
            raise ConfigError("an answer is for typed completions; leave it out, the rows of a file have their own")
        rows = read_completions(completions, decode=decode)
    else:
        columns = {} if answer is None else {"answer": answer}
        rows = [
            Completion(prompt="", completion=each, columns=columns) if isinstance(each, str) else each
            for each in completions
        ]
    messages = any(row.chat for row in rows)  # the functions get what the rows have, as in TRL
    choice = choose_rewards(rewards)
    return TriedRewards(score(load_rewards(choice.entries, functions=choice.functions, messages=messages), rows))
