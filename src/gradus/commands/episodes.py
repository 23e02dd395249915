"""Shows stored episodes, grades them again, and lets a person play one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gradus import environments
from gradus.commands.entries import command
from gradus.commands.environments import load_environment, play
from gradus.commands.options import WORD, OwnEnvironment, writes
from gradus.commands.output import CommandCall, Shown, next_command
from gradus.core import ConfigError, EnvironmentSpec, Episode, GradusError, StorageError
from gradus.core.files import check_file_can_be_written
from gradus.core.findings import EXIT_CODES
from gradus.core.printing import go_around
from gradus.core.seeds import child_rng

if TYPE_CHECKING:
    from gradus.rollouts.storage import EpisodeFile

_PLACES = ("grpo/episodes", "episodes", "eval", "teach", ".")  # of a run, the newest stage first
_LAST = Parameter(
    name="--last", help="Best, worst, random and invalid episode of a file, or of a run's newest stored step."
)


@dataclass(frozen=True, repr=False)
class StoredEpisodes(Shown):
    """Episodes of one file, by the reason why each is shown."""

    path: Path
    episodes: Mapping[str, Episode]
    count: int
    view: Any = None

    def to_json(self) -> Any:
        """The one episode that was asked for, or each by its name."""
        from gradus.rollouts import encode

        records = {name: encode(episode) for name, episode in self.episodes.items()}
        return records.get("", records)

    def tables(self) -> Sequence[Any]:
        """Each episode: observations, answers, rewards and beliefs."""
        from rich.rule import Rule

        from gradus.evidence.reports import show_episode

        parts: list[Any] = []
        for name, episode in self.episodes.items():
            parts += [Rule(f"{name} of {self.path.name}", align="left")] if name else []
            parts.append(show_episode(episode, self._view(episode)))
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
    environment: str | EnvironmentSpec | type | None = None,
) -> StoredEpisodes:
    """Returns stored episodes, which print as what was seen, answered, rewarded and believed.

    A file's header never makes code run, so your own environment must be named.

    Args:
        file: a JSONL file of episodes (may be .gz), or a run folder.
        episode: which one, from 0; negative counts from the end.
        newest: best, worst, random and invalid episode of a file, or of a run's newest stored step.
        environment: the environment of the episodes, if it is your own code.
    """
    from gradus.evidence.stage_files import changed_since
    from gradus.rollouts import read_episodes

    file = Path(file)
    is_run = file.is_dir()
    path = newest_file(file) if is_run else file
    stored = read_episodes(path)
    for problem in (*stored.problems, *changed_since(path.parent if is_run else path)):
        go_around(problem, "the rest is used")
    if (newest or is_run) and not episode:
        episodes = samples(stored.episodes)
    else:
        episodes = {"": pick_episode(stored.episodes, episode, path)}
    return StoredEpisodes(path, episodes, len(stored.episodes), _view_of(stored, environment))


def _view_of(stored: EpisodeFile, environment: str | EnvironmentSpec | type | None) -> Any:
    """The pictures of the environment that was named, or of the registered one that the file names."""
    if environment is not None:
        return load_environment(environment).presentation.view
    # Only what is installed: a name in a file must not make its code run.
    try:
        return environments.load_stored(stored.environment).presentation.view
    except GradusError:  # its data may not be on this machine; the transcript still is
        return None


def newest_file(run: Path) -> Path:
    """The file of the newest step whose episodes a run stored, its first seed if it has several; before GRPO, those of the teacher."""
    from gradus.evidence.reports.run_files import shown_folder

    for place in _PLACES:
        files = sorted((shown_folder(run) / place).glob("[!.]*.jsonl*"))
        files = [file for file in files if "metrics" not in file.name]
        if files:
            return files[-1]
    raise StorageError(
        f"no episodes in {run}; expected a run folder with {', '.join(_PLACES[:4])}. GRPO stores some every `store_every` steps"
    )


def samples(episodes: Sequence[Episode]) -> dict[str, Episode]:
    """Best and worst by reward, one at random (the same one each time), and the first with an answer that was not understood.

    An episode that is two of these stands there once, under both names.
    """
    if not episodes:
        raise ConfigError("the file holds no whole episode; nothing can be shown")
    graded = [episode for episode in episodes if episode.reward_value is not None]
    picks = {"best": max(graded, key=_reward), "worst": min(graded, key=_reward)} if graded else {}
    picks["random"] = episodes[child_rng(0, "show").randrange(len(episodes))]
    for episode in episodes:
        if any(not turn.valid for turn in episode.turns):
            picks["invalid"] = episode
            break
    # Equal episodes may be two: they are told apart as objects.
    names: dict[int, list[str]] = {}
    for name, episode in picks.items():
        names.setdefault(id(episode), []).append(name)
    return {", ".join(names[id(episode)]): episode for episode in picks.values()}


def pick_episode(episodes: Sequence[Episode], number: int, path: Path) -> Episode:
    """The episode with this number, from 0; negative counts from the end."""
    count = len(episodes)
    if not -count <= number < count:
        raise ConfigError(f"{path} holds {count} episodes, got --episode {number}; use 0 to {count - 1}")
    return episodes[number]


def _reward(episode: Episode) -> float:
    return episode.reward_value or 0.0


@dataclass(frozen=True, repr=False)
class Regraded(Shown):
    """Episodes under a grader, and as they were stored (``before``)."""

    spec: EnvironmentSpec
    grader: str
    before: Sequence[Episode]
    episodes: Sequence[Episode]

    def to_json(self) -> dict[str, Any]:
        """The means before and after, and of each component; None if no episode has the figure."""
        from gradus.stats import mean_of

        before = [episode.reward_value for episode in self.before]
        rewards = [episode.reward for episode in self.episodes if episode.reward]
        components: dict[str, float | None] = {}
        for name in self.spec.grader(self.grader).weights:
            components[name] = mean_of(reward.components.get(name) for reward in rewards)
        return {
            "grader": self.grader,
            "episodes": len(self.episodes),
            "graded": sum(reward.value is not None for reward in rewards),
            "before": mean_of(before),
            "reward": mean_of(reward.value for reward in rewards),
            "components": components,
        }

    def tables(self) -> Sequence[Any]:
        """The mean reward as stored and under the grader, and the mean of each component."""
        from rich.table import Table

        from gradus.stats import format_number

        means = self.to_json()
        title = f"{means['graded']} of {means['episodes']} episodes of {self.spec.name} have a reward"
        table = Table("reward under", "mean", title=title, box=None)
        table.add_row("the grader of the file", format_number(means["before"]))
        table.add_row(self.grader, format_number(means["reward"]), style="bold")
        for name, value in means["components"].items():
            table.add_row(f"  {name}", format_number(value))
        return [table]


def regrade(
    file: str | Path,
    grader: str,
    *,
    environment: str | EnvironmentSpec | type | None = None,
    out: str | Path | None = None,
) -> Regraded:
    """Grades stored episodes again by a grader of their environment; nothing is rolled out.

    Args:
        file: a JSONL file of episodes (may be .gz).
        grader: its name, as in `gradus envs`.
        environment: the environment of the episodes, if it is your own code.
        out: a file for the episodes with their new rewards.
    """
    from gradus.rollouts import grade_episodes, read_episodes, write_episodes

    if out is not None:
        check_file_can_be_written(Path(out))
    stored = read_episodes(Path(file))
    spec = load_environment(environment) if environment is not None else environments.load_stored(stored.environment)
    episodes = grade_episodes(spec, stored.episodes, spec.grader(grader))
    if out is not None:
        write_episodes(Path(out), episodes, environment=spec.name, note=f"regraded with {grader}")
    return Regraded(spec, grader, stored.episodes, episodes)


def _after_show(result: StoredEpisodes | Regraded | Episode, call: CommandCall) -> int | None:
    source, number = call["source"], call["episode"]
    if isinstance(result, Regraded):
        return EXIT_CODES["open"] if not result.to_json()["graded"] else None
    if not isinstance(result, StoredEpisodes) or call["newest"] or result.path != Path(source):
        return None
    if 0 <= number < result.count - 1:
        return next_command("show", source, "--episode", number + 1, *call.same("environment"))
    return None


@command("show", _after_show, shown=True)
def show_command(
    source: Annotated[
        str,
        WORD,
        Parameter(help="A JSONL file of episodes (may be .gz), or a run folder; with --play an environment."),
    ],
    *,
    episode: Annotated[int, Parameter(alias="-k", help="Which one, from 0; negative counts from the end.")] = 0,
    newest: Annotated[bool, _LAST] = False,
    environment: OwnEnvironment = None,
    grader: Annotated[
        str | None,
        Parameter(alias="-g", metavar="NAME", help="Grade the episodes again by this grader; nothing is rolled out."),
    ] = None,
    out: Annotated[Path | None, writes("With --grader: write the episodes with their new rewards here.")] = None,
    play_one: Annotated[bool, Parameter(name="--play", help="Play one episode of an environment yourself.")] = False,
    seed: Annotated[int | None, Parameter(help="Which task is played; a different one each day otherwise.")] = None,
) -> StoredEpisodes | Regraded | Episode:
    """Show stored episodes, grade them again, or play one. Exit code 3 if no episode got a reward."""
    if play_one:
        return play(environment or source, seed=seed)
    if grader is not None:
        return regrade(source, grader, environment=environment, out=out)
    return show(source, episode, newest=newest, environment=environment)
