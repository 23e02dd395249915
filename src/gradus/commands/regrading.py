"""Grades stored episodes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gradus.commands.environments import with_rewards
from gradus.commands.episodes import environment_of, tell_problems
from gradus.commands.options import Line, OwnEnvironment, Rewards, writes
from gradus.commands.output import Shown, next_command, note, same
from gradus.commands.signature import command
from gradus.core import ConfigError, EnvironmentSpec, Episode


@dataclass(frozen=True, repr=False)
class Regraded(Shown):
    """Episodes under another grader, and as they were stored (``before``)."""

    spec: EnvironmentSpec
    grader: str
    before: Sequence[Episode]
    episodes: Sequence[Episode]

    @property
    def failed(self) -> int:
        """Number of episodes without a reward."""
        return sum(each.reward is None or each.reward.value is None for each in self.episodes)

    def to_json(self) -> dict[str, Any]:
        """The means before and after, and of each component; None if no episode has the figure."""
        from gradus.stats import mean_of

        components = {
            name: mean_of(each.reward.components.get(name) for each in self.episodes if each.reward)
            for name in self.spec.grader(self.grader).weights
        }
        means = [mean_of(each.reward.value for each in told if each.reward) for told in (self.before, self.episodes)]
        count = {"episodes": len(self.episodes), "failed": self.failed}
        return {"grader": self.grader, **count, "before": means[0], "reward": means[1], "components": components}

    def tables(self) -> Sequence[Any]:
        """The means, and a line if episodes have no reward."""
        from rich.table import Table
        from rich.text import Text

        from gradus.evidence.evaluation import first_failure
        from gradus.stats import format_number

        summary = self.to_json()
        stored = ", ".join(sorted({each.reward.grader for each in self.before if each.reward}))
        table = Table(
            "reward under", "mean", title=Text(f"{len(self.episodes)} episodes of {self.spec.name}"), box=None
        )
        table.add_row(f"{stored or 'no grader'} (as stored)", format_number(summary["before"]))
        table.add_row(self.grader, format_number(summary["reward"]), style="bold")
        for name, value in summary["components"].items():
            table.add_row(f"  {name}", format_number(value))
        why = (
            f"{self.failed} of {len(self.episodes)} episodes have no reward; the first: {first_failure(self.episodes)}"
        )
        return [table, *([Text(why, style="yellow")] if self.failed else [])]

    def save(self, path: str | Path) -> Path:
        """Writes the episodes with their new rewards as JSON lines."""
        from gradus.rollouts import write_episodes

        write_episodes(Path(path), self.episodes, environment=self.spec.name, note=f"regraded with {self.grader}")
        return Path(path)


def _after_regrade(
    result: Regraded,
    *,
    file: Path,
    out: Annotated[Path | None, writes("Write the regraded episodes here; the input is kept.")] = None,
) -> int | None:
    if out is not None:
        note(f"written: {result.save(out)}")
    if result.episodes and result.failed == len(result.episodes):
        return 1
    return next_command("show", out or file, *same("environment"))


@command("regrade", _after_regrade, shown=True)
def regrade(
    file: Annotated[str | Path, typer.Argument(help="A JSONL file of episodes."), Line(kind=Path)],
    grader: Annotated[
        str | None, typer.Option("--grader", "-g", help="The grader to apply; or give reward functions.")
    ] = None,
    *,
    rewards: Rewards = (),
    environment: OwnEnvironment = None,
) -> Regraded:
    """Grade stored episodes again; nothing is rolled out. Exit code 1 if no episode got a reward."""
    from gradus.rollouts import grade_episodes, read_episodes

    if (grader is None) == (not rewards):
        raise ConfigError("give --grader NAME or --reward NAME=WEIGHT, one of them")
    stored = read_episodes(Path(file))
    spec = environment_of(stored, environment)
    spec = with_rewards(spec, rewards) if rewards else spec
    chosen = spec.grader(grader)
    tell_problems(stored, Path(file))
    return Regraded(spec, chosen.name, stored.episodes, grade_episodes(spec, stored.episodes, chosen))
