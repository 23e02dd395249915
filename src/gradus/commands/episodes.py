"""Stored episodes: looking at them, and grading them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradus import environments
from gradus.commands.environments import load_environment, with_rewards
from gradus.commands.options import Line, OwnEnvironment, Rewards, writes
from gradus.commands.output import Shown, next_command, note, same
from gradus.commands.signature import command
from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, GradusError
from gradus.core.documents import Results

if TYPE_CHECKING:
    from gradus.rollouts.storage import EpisodeFile

_LAST = typer.Option(
    "--last", help="Best, worst, random and invalid episode of a file, or of a run's newest stored step."
)
_DIFF = typer.Option(
    "--diff", help="All members of the episode's group: what each got, and where their answers differ."
)
_AGAINST = typer.Option(
    "--against",
    help="Compare every policy of the file with this one on the same tasks: wins, reward, metrics. If the file lacks it, it is rolled out.",
)


@dataclass(frozen=True, repr=False)
class StoredEpisodes(Shown):
    """Episodes of one file, by the reason why each is shown."""

    path: Path
    episodes: Mapping[str, Episode]
    count: int
    view: Any = None
    compared: bool = False  # they are members of one group, and shown by where they differ

    def to_json(self) -> Any:
        """The one episode that was asked for, or each by its name."""
        from gradus.rollouts import encode

        records = {name: encode(each) for name, each in self.episodes.items()}
        return records.get("", records)

    def tables(self) -> Sequence[Any]:
        """Each episode: observations, answers, rewards and beliefs."""
        from rich.rule import Rule

        from gradus.evidence.reports import show_differences, show_episode

        if self.compared:
            return [show_differences(list(self.episodes.values()))]
        parts: list[Any] = []
        for name, each in self.episodes.items():
            parts += [Rule(f"{name} of {self.path.name}", align="left")] if name else []
            parts.append(show_episode(each, self._view(each)))
        return parts

    def _view(self, episode: Episode) -> Any:
        """The environment's own pictures; None if the episode came to nothing that they show, as one that failed at once."""
        try:
            return self.view(episode) if self.view else None
        except GradusError:
            return None


def _after_show(result: StoredEpisodes, *, file: Path, episode: int, newest: bool, compared: bool) -> None:
    if result.path == file and not newest and not compared and 0 <= episode < result.count - 1:
        next_command("show", file, "--episode", episode + 1, *same("environment"))


@command("show", _after_show, shown=True)
def show(
    file: Annotated[
        str | Path, typer.Argument(help="A JSONL file of episodes (may be .gz), or a run folder."), Line(kind=Path)
    ],
    episode: Annotated[
        int, typer.Option("--episode", "-k", help="Which one, from 0; negative counts from the end.")
    ] = 0,
    *,
    newest: Annotated[bool, _LAST] = False,
    compared: Annotated[bool, _DIFF] = False,
    environment: OwnEnvironment = None,
) -> StoredEpisodes:
    """Show stored episodes: what was seen, answered, rewarded and believed.

    A file's header never makes code run, so your own environment must be named.
    """
    from gradus.evidence.reports import members_of
    from gradus.rollouts import read_episodes
    from gradus.runs.stored_episodes import newest_file, pick_episode, samples

    file = Path(file)
    path = newest_file(file) if newest or file.is_dir() else file
    sampled = newest or path != file
    if sampled and episode and not compared:
        way = "ask for the newest, or for an episode by its number" if path == file else f"name {path}"
        raise ConfigError(
            f"an episode is chosen out of a file, not out of the newest of {file}; {way}, or leave the number out"
        )
    stored = read_episodes(path)
    _go_around(stored, path if path == file else path.parent)
    if compared:
        members = members_of(stored.episodes, pick_episode(stored.episodes, episode, path))
        named = {f"member {each.member}": each for each in members}
        return StoredEpisodes(path, named, len(stored.episodes), compared=True)
    chosen = samples(stored.episodes) if sampled else {"": pick_episode(stored.episodes, episode, path)}
    try:
        view = _environment_of(stored, environment).presentation.view
    except GradusError:  # its data may not be on this machine; the transcript still is
        if environment is not None:
            raise
        view = None
    return StoredEpisodes(path, chosen, len(stored.episodes), view)


def _go_around(stored: EpisodeFile, path: Path) -> None:
    """Names what could not be read, and what changed since the episodes were stored. Raises StorageError with --strict."""
    from gradus.core.printing import go_around
    from gradus.evidence.stage_files import changed_since

    for problem in (*stored.problems, *changed_since(path)):
        go_around(problem, "the rest is used")


def _environment_of(stored: EpisodeFile, given: str | EnvironmentSpec | type | None) -> EnvironmentSpec:
    """The environment that was named, or the registered one that the file names."""
    if given is not None:
        return load_environment(given)
    try:
        return environments.load_stored(stored.environment)
    except ConfigError as error:
        raise ConfigError(f"{error}; if the episodes are of your own environment, say which with --env") from error


@dataclass(frozen=True, repr=False)
class Regraded(Shown):
    """Episodes under another grader, and under the one they were stored with (``before``).

    ``compared``: the document of an evaluation, with what each policy has above another on the same tasks; None if nobody was named.
    """

    spec: EnvironmentSpec
    grader: str
    before: Sequence[Episode]
    episodes: Sequence[Episode]
    compared: Results | None = None

    @property
    def failure(self) -> str:
        """Why no episode has a reward; empty if any has one."""
        from gradus.evidence.evaluation import first_failure

        if not self.episodes or any(each.reward and each.reward.value is not None for each in self.episodes):
            return ""
        return first_failure(self.episodes) or "the grader gave none"

    def to_json(self) -> dict[str, Any]:
        """The means before and after, and of each component; ``compared`` if a policy was named to compare with."""
        rewards = [
            _mean(each.reward.value if each.reward else None for each in several)
            for several in (self.before, self.episodes)
        ]
        components = {
            name: _mean(each.reward.components.get(name) if each.reward else None for each in self.episodes)
            for name in self.spec.grader(self.grader).weights
        }
        count = len(self.episodes)
        return {
            "grader": self.grader, "episodes": count, "reward": rewards[1], "before": rewards[0], "components": components,
            **({} if self.compared is None else {"compared": self.compared}),
        }  # fmt: skip

    def tables(self) -> Sequence[Any]:
        """The means, and the pairs."""
        from rich.table import Table
        from rich.text import Text

        from gradus.stats import format_number

        summary, weights = self.to_json(), self.spec.grader(self.grader).weights
        names = sorted({each.reward.grader for each in self.before if each.reward})
        table = Table(title=Text(f"{len(self.episodes)} episodes of {self.spec.name}"), box=None)
        table.add_column("reward under")
        table.add_column("mean", justify="right")
        stored = ", ".join(f"{name} (as stored)" if name == self.grader else name for name in names)
        table.add_row(stored or "no grader", format_number(summary["before"]))
        table.add_row(self.grader, format_number(summary["reward"]), style="bold")
        for name, value in summary["components"].items():
            table.add_row(f"  {name} (weight {weights[name]:g})", format_number(value))
        conditions = self.compared["conditions"] if self.compared else {}
        return [table, *self._ungraded(), *(_compared_table(name, stored) for name, stored in conditions.items())]

    def _ungraded(self) -> Sequence[Any]:
        """A line if episodes have no reward, which no mean above it counts."""
        from rich.text import Text

        from gradus.evidence.evaluation import first_failure

        missing = sum(each.reward is None or each.reward.value is None for each in self.episodes)
        told = f"{missing} of {len(self.episodes)} episodes have no reward; the first said {first_failure(self.episodes) or 'nothing'}"
        return [Text(told, style="yellow")] if missing else []

    def save(self, path: str | Path) -> Path:
        """Write the regraded episodes as JSON lines."""
        from gradus.rollouts import write_episodes

        write_episodes(Path(path), self.episodes, environment=self.spec.name, note=f"regraded with {self.grader}")
        return Path(path)


def _compared_table(condition: str, stored: Mapping[str, Any]) -> Any:
    """Each policy's figures and each difference, a line for a figure, so that it fits 80 columns."""
    from rich.table import Table
    from rich.text import Text

    from gradus.stats import format_interval

    table = Table("", "figure", "mean", "wins", title=f"same tasks, {condition}", box=None)
    for kind in ("policies", "pairs"):
        for name, figures in stored[kind].items():
            for figure, each in figures.items():
                if isinstance(each, Mapping) and isinstance(each.get("mean"), float):
                    wins = f"{each['wins']} of {each['episodes']}" if kind == "pairs" else ""
                    table.add_row(Text(name), figure, format_interval(each, signed=kind == "pairs"), wins)
    return table


def _after_regrade(
    result: Regraded,
    *,
    file: Path,
    out: Annotated[Path | None, writes("Write the regraded episodes here (the input is kept).")] = None,
) -> int | None:
    if out is not None:
        note(f"written: {result.save(out)}")
    if result.failure:
        note(f"no episode got a reward; the first says why: {result.failure}")
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
    against: Annotated[str | None, _AGAINST] = None,
    environment: OwnEnvironment = None,
) -> Regraded:
    """Grade stored episodes again; only a policy to compare with is rolled out. Exit code 1 if no episode got a reward."""
    from gradus.rollouts import grade_episodes, read_episodes

    if (grader is None) == (not rewards):
        raise ConfigError("give --grader NAME or --reward NAME=WEIGHT, one of them")
    stored = read_episodes(Path(file))
    spec = _environment_of(stored, environment)
    spec = with_rewards(spec, rewards) if rewards else spec
    chosen = spec.grader(grader)
    _go_around(stored, Path(file))
    graded = grade_episodes(spec, stored.episodes, chosen)
    compared = None if against is None else _compared(spec, chosen, graded, against)
    return Regraded(spec, chosen.name, stored.episodes, graded, compared)


def _compared(spec: EnvironmentSpec, grader: Grader, episodes: Sequence[Episode], against: str) -> Results:
    from gradus.evidence.evaluation import compare
    from gradus.rollouts import roll_out
    from gradus.runs.policies import make_policy

    by_condition: dict[str, dict[str, list[Episode]]] = {}
    for each in episodes:
        by_condition.setdefault(each.task.condition, {}).setdefault(each.policy, []).append(each)
    for policies in by_condition.values():
        if against not in policies:
            stored = {each.task.seed: each.task for several in policies.values() for each in several}
            tasks = [replace(task, id="") for task in stored.values()]  # what it asks now: data may have changed since
            policies[against] = list(roll_out(spec, make_policy(spec, against), tasks, grader=grader).episodes)
    names = dict.fromkeys(name for policies in by_condition.values() for name in policies)
    pairs = [(name, against) for name in names if name != against]
    return compare(
        replace(spec, graders={**spec.graders, grader.name: grader}),
        by_condition,
        graders=[grader.name],
        pairs=pairs,
        graded=True,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None
