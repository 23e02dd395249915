"""Reward functions on their own, before anything is trained on them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.given import as_list
from gradus.commands.shown import Shown
from gradus.core import ConfigError

if TYPE_CHECKING:
    from gradus.rewards import Completion, Tryout


class RewardList(Shown, list[dict[str, str]]):
    """The built-in reward functions: name, settings, and what it rewards."""

    def tables(self) -> Sequence[Any]:
        """One row a function."""
        from rich.table import Table

        table = Table(*self[0], box=None)
        for row in self:
            table.add_row(*row.values())
        return [table]


def list_rewards() -> RewardList:
    """The built-in reward functions."""
    from gradus.rewards import BUILT_IN

    rows = RewardList()
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
    """Scores of completions. ``tryout`` holds them; ``limit``: how many are shown."""

    def __init__(self, tryout: Tryout, limit: int = 20) -> None:
        self.tryout, self.limit = tryout, limit

    def rows(self) -> list[dict[str, Any]]:
        """One record a completion."""
        return self.tryout.rows()

    def problems(self) -> list[str]:
        """Which functions failed on how many completions, and the first error."""
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
        for name in [*names, "reward"]:
            words = name.replace("_", " ")
            table.add_column(
                words, justify="right", width=max(7, *map(len, words.split()))
            )  # it breaks between words alone
        for row in self.rows()[: self.limit]:
            figures = [format_number(row["components"][name], 2) for name in names]
            text = Text(" ".join(row["completion"].split()) or "(empty)")
            table.add_row(text, Text(row["read"] or "–"), *figures, format_number(row["value"], 2))
        means = [format_number(value, 2) for value in self.tryout.component_means().values()]
        scored = len(self.tryout.scored)
        table.add_row(f"mean of {scored}", "", *means, format_number(self.tryout.mean, 2), style="bold")
        return [table]


def try_rewards(
    completions: str | Path | Sequence[str | Completion],
    rewards: Sequence[Any],
    *,
    prompt: str = "",
    answer: str | None = None,
    messages: bool | None = None,
    limit: int = 20,
) -> TriedRewards:
    """Score completions: a file (JSONL of completions, or stored episodes; ``-`` is standard input), or texts with a ``prompt`` and a gold ``answer``.

    ``messages``: whether the functions get chat messages; None, as in a run: if the rows are chats.

    >>> from gradus import commands
    >>> commands.try_rewards(["<answer> 2 </answer>"], ["correctness"], answer="2").rows()[0]["value"]
    1.0
    """
    from gradus.commands.environments import reward_entries
    from gradus.rewards import Completion, load_rewards, read_completions
    from gradus.rewards import try_rewards as score
    from gradus.rollouts.storage import decode

    if not isinstance(completions, str | Path):
        completions = as_list("completions", completions, example="['a completion']")
        if other := [each for each in completions if not isinstance(each, str | Completion)]:
            raise ConfigError(f"a completion is a text or a gradus.rewards.Completion, got {other[0]!r}")
    if isinstance(completions, str | Path):
        if prompt or answer is not None:
            raise ConfigError(
                "a prompt and an answer are for typed completions; leave them out, the rows of a file have their own"
            )
        rows = read_completions(completions, decode=decode)
    else:
        columns = {} if answer is None else {"answer": answer}
        rows = [
            Completion(prompt=prompt, completion=each, columns=columns) if isinstance(each, str) else each
            for each in completions
        ]
    messages = any(row.chat for row in rows) if messages is None else messages
    return TriedRewards(score(load_rewards(reward_entries(rewards), messages=messages), rows), limit)
