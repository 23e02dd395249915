"""Reward functions on their own, before anything is trained on them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gradus.commands.entries import command
from gradus.commands.options import WORD, WORDS
from gradus.commands.output import CommandCall, Listing, Shown, next_command, note, problem
from gradus.core import ConfigError
from gradus.core.findings import EXIT_CODES

if TYPE_CHECKING:
    from gradus.rewards import Tryout


_SHOWN = 20  # completions in the table; all are scored


def _after_list(result: Listing, _: CommandCall) -> None:
    next_command("rewards", "try", "-c", "<reasoning> 2 + 2 </reasoning> <answer> 4 </answer>", "--answer", 4)


@command("rewards list", _after_list, shown=True)
def list_rewards() -> Listing:
    """List the built-in reward functions."""
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
        lines = [
            f"failed: {name} on {count} of {len(tried.scored)} completions" for name, count in tried.errors.items()
        ]
        first = next((row.error for row in tried.scored if row.error), None)
        return [*lines, f"the first: {first}"] if first else lines

    def tables(self) -> Sequence[Any]:
        """One row a completion, and the means."""
        from rich.table import Table
        from rich.text import Text

        from gradus.stats import format_number

        component_means = self.tryout.component_means()
        names = list(component_means)
        table = Table(box=None, expand=True)  # the completion takes the room that the figures leave
        table.add_column("completion", overflow="ellipsis", no_wrap=True, ratio=1)
        table.add_column("answer read", overflow="ellipsis", no_wrap=True, max_width=16)
        for name in [*names, "total"]:  # a function may be called reward
            table.add_column(name.replace("_", " "), justify="right", min_width=7)
        for row in self.rows()[:_SHOWN]:
            figures = [format_number(row["components"][name], 2) for name in names]
            text = Text(" ".join(row["completion"].split()) or "(empty)")
            table.add_row(text, Text(row["read"] or "–"), *figures, format_number(row["value"], 2))
        means = [format_number(value, 2) for value in component_means.values()]
        scored = len(self.tryout.scored)
        table.add_row(f"mean of {scored}", "", *means, format_number(self.tryout.mean, 2), style="bold")
        return [table]


def _after_try(tried: TriedRewards, call: CommandCall) -> int | None:
    problems = tried.problems()
    for line in problems:
        problem(line)
    needs_answer = any("it takes answer" in line for line in problems)
    if call["completion"] and call["answer"] is None and needs_answer:
        note("give it with --answer")
    if tried.tryout.errors:
        return EXIT_CODES["fail"]
    return next_command("audit", "arithmetic", *call.same("rewards"), why="or your own rows.jsonl")


@command("rewards try", _after_try, shown=True)
def try_rewards(
    completions: Annotated[
        str | Path | Sequence[Any] | None,
        WORD,
        Parameter(
            name="file",
            allow_leading_hyphen=True,
            help="JSONL of {prompt, completion, answer, ...}, or stored episodes; - reads standard input.",
        ),
    ] = None,
    *,
    rewards: Annotated[
        Sequence[Any],
        WORDS,
        Parameter(
            name="--reward",
            metavar="NAME=WEIGHT",
            help="NAME, module:function or file.py:function; correctness=2, format=0.5 and incremental_format=0.5 without it "
            "(repeatable).",
        ),
    ] = (
        "correctness=2",
        "format=0.5",
        "incremental_format=0.5",
    ),
    completion: Annotated[
        Sequence[str],
        WORDS,
        Parameter(
            name=("--completion", "-c"),
            metavar="TEXT",
            allow_leading_hyphen=True,
            help="A completion to score, instead of a file (repeatable).",
        ),
    ] = (),
    answer: Annotated[
        str | None,
        Parameter(
            alias="-a", metavar="TEXT", allow_leading_hyphen=True, help="The reference answer of typed completions."
        ),
    ] = None,
) -> TriedRewards:
    """Score stored or typed completions. Exit code 1 if a reward function failed on any.

    >>> from gradus import commands
    >>> commands.try_rewards(["<answer> 2 </answer>"], rewards=["correctness"], answer="2").rows()[0]["value"]
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
    if isinstance(completions, str | Path):
        if answer is not None:
            raise ConfigError("an answer is for typed completions; leave it out, the rows of a file have their own")
        rows = read_completions(completions, decode=decode)
    else:
        columns = {} if answer is None else {"answer": answer}
        rows: list[Completion] = []
        for row in completions:
            rows.append(Completion(prompt="", completion=row, columns=columns) if isinstance(row, str) else row)
    messages = any(row.chat for row in rows)  # the functions get what the rows have, as in TRL
    choice = choose_rewards(rewards)
    return TriedRewards(score(load_rewards(choice.entries, functions=choice.functions, messages=messages), rows))
