"""Stored episodes: looking at them, grading them again; and one that a person plays."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus import environments
from gradus.commands.environments import load_environment, with_rewards
from gradus.commands.shown import Shown
from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, GradusError, Task
from gradus.core.documents import Results

if TYPE_CHECKING:
    from gradus.rollouts.storage import EpisodeFile


@dataclass(frozen=True, repr=False)
class StoredEpisodes(Shown):
    """Episodes of one file, by what they are worth looking at for. ``problems``: what could not be read."""

    path: Path
    episodes: Mapping[str, Episode]
    count: int
    problems: Sequence[str]
    view: Any = None
    compared: bool = False  # they are members of one group, and shown by where they differ

    def to_json(self) -> Any:
        """The one episode that was asked for, or each by its name."""
        from gradus.rollouts import encode

        records = {name: encode(each) for name, each in self.episodes.items()}
        return records.get("", records)

    def tables(self) -> Sequence[Any]:
        """What was seen, answered, rewarded and believed."""
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


def show(
    file: str | Path,
    episode: int = 0,
    *,
    newest: bool = False,
    compared: bool = False,
    environment: str | EnvironmentSpec | type | None = None,
) -> StoredEpisodes:
    """An episode of a file; with ``newest``, or for a run folder, the best, worst, a random and an invalid one of the file or of the newest step.

    ``compared``: all members of the episode's group, by where they differ; for a run folder, of the newest step.

    ``environment``: the one the episodes are of, if it is one's own code; a file's header never makes code run.
    """
    from gradus.evidence.reports import members_of
    from gradus.evidence.stage_files import changed_since
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
    problems = [*stored.problems, *changed_since(path if path == file else path.parent)]
    if compared:
        members = members_of(stored.episodes, pick_episode(stored.episodes, episode, path))
        named = {f"member {each.member}": each for each in members}
        return StoredEpisodes(path, named, len(stored.episodes), problems, compared=True)
    chosen = samples(stored.episodes) if sampled else {"": pick_episode(stored.episodes, episode, path)}
    try:
        view = _environment_of(stored, environment).presentation.view
    except GradusError:  # its data may not be on this machine; the transcript still is
        if environment is not None:
            raise
        view = None
    return StoredEpisodes(path, chosen, len(stored.episodes), problems, view)


def _environment_of(stored: EpisodeFile, given: str | EnvironmentSpec | type | None) -> EnvironmentSpec:
    """The environment that was named, or the registered one that the file names."""
    if given is not None:
        return load_environment(given)
    try:
        return environments.load_registered(stored.environment)
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
    problems: Sequence[str]
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


def regrade(
    file: str | Path,
    grader: str | None = None,
    *,
    rewards: Sequence[Any] = (),
    against: str | None = None,
    environment: str | EnvironmentSpec | type | None = None,
) -> Regraded:
    """Grade stored episodes again, with another grader of the environment or with reward functions. Nothing is rolled out.

    ``against``: a policy that every other one is compared with, task by task: wins, reward and the environment's metrics. If the file has
    no episodes of it, it is rolled out on the same tasks.
    """
    from gradus.evidence.stage_files import changed_since
    from gradus.rollouts import grade_episodes, read_episodes

    if (grader is None) == (not rewards):
        raise ConfigError("give --grader NAME or --reward NAME=WEIGHT, one of them")
    stored = read_episodes(Path(file))
    spec = _environment_of(stored, environment)
    spec = with_rewards(spec, rewards) if rewards else spec
    chosen = spec.grader(grader)
    problems = [*stored.problems, *changed_since(Path(file))]
    graded = grade_episodes(spec, stored.episodes, chosen)
    compared = None if against is None else _compared(spec, chosen, graded, against)
    return Regraded(spec, chosen.name, stored.episodes, graded, problems, compared)


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


def play(
    environment: str | EnvironmentSpec | type, *, seed: int | None = None, condition: str | None = None
) -> Episode:
    """Play one episode in the terminal; what was hidden is shown at its end. A different task each day without ``seed``."""
    from rich.text import Text

    from gradus.core.terminal import Terminal
    from gradus.evidence.reports import show_episode
    from gradus.rollouts import roll_out
    from gradus.runs.person import PersonPolicy
    from gradus.stats import format_number, format_signed

    spec = load_environment(environment)
    options = spec.tasks(condition or next(iter(spec.conditions)), 1)[0].options
    chosen = date.today().toordinal() if seed is None else seed
    task = Task(environment=spec.name, seed=chosen, condition=condition or "play", options=options)
    console = Terminal(highlight=False)
    episode = roll_out(spec, PersonPolicy(console), [task], grader=spec.grader()).episodes[0]
    console.rule("what you could not see")
    console.print(show_episode(episode, spec.presentation.view(episode) if spec.presentation.view else None))
    if episode.reward and episode.reward.value is not None:
        console.print(
            Text.assemble(f"reward ({episode.reward.grader}): ", (format_number(episode.reward.value), "bold"))
        )
    if (true_reward := episode.metrics.get("true_reward")) is not None:
        console.print(Text.assemble(f"{spec.true_reward_name}: ", (format_signed(true_reward, 2), "bold")))
    given = environment if isinstance(environment, str) else spec.name
    others = ",".join(list(spec.policies)[:3]) or "MODEL"  # one's own environment may have no policy
    console.print(f"compare: gradus eval {shlex.quote(given)} --policy {others}")
    return episode


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None
