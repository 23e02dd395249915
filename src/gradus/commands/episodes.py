"""Shows stored episodes, and grades them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gradus import environments
from gradus.commands.entries import command
from gradus.commands.environments import load_environment, with_rewards
from gradus.commands.options import WORD, OwnEnvironment, Rewards, writes
from gradus.commands.output import CommandCall, Shown, next_command, note
from gradus.core import ConfigError, EnvironmentSpec, Episode, GradusError, StorageError
from gradus.core.files import check_file_can_be_written
from gradus.core.findings import EXIT_CODES
from gradus.core.seeds import child_rng

if TYPE_CHECKING:
    from gradus.rollouts.storage import EpisodeFile

_PLACES = ("grpo/episodes", "episodes", "eval", "teach", ".")  # of a run, the newest stage first
_LAST = Parameter(
    name="--last", help="Best, worst, random and invalid episode of a file, or of a run's newest stored step."
)
_DIFF = Parameter(
    name="--diff", help="All members of the episode's group: what each got, and where their answers differ."
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

        records = {name: encode(episode) for name, episode in self.episodes.items()}
        return records.get("", records)

    def tables(self) -> Sequence[Any]:
        """Each episode: observations, answers, rewards and beliefs."""
        from rich.rule import Rule

        from gradus.evidence.reports import show_differences, show_episode

        if self.compared:
            return [show_differences(list(self.episodes.values()))]
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
    compared: bool = False,
    environment: str | EnvironmentSpec | type | None = None,
) -> StoredEpisodes:
    """Returns stored episodes, which print as what was seen, answered, rewarded and believed.

    A file's header never makes code run, so your own environment must be named.

    Args:
        file: a JSONL file of episodes (may be .gz), or a run folder.
        episode: which one, from 0; negative counts from the end.
        newest: best, worst, random and invalid episode of a file, or of a run's newest stored step.
        compared: all members of the episode's group, and where their answers differ.
        environment: the environment of the episodes, if it is your own code.
    """
    from gradus.evidence.reports import members_of
    from gradus.rollouts import read_episodes

    file = Path(file)
    path = newest_file(file) if newest or file.is_dir() else file
    sampled = (newest or path != file) and not episode
    stored = read_episodes(path)
    tell_problems(stored, path if path == file else path.parent)
    if compared:
        members = members_of(stored.episodes, pick_episode(stored.episodes, episode, path))
        by_member = {f"member {episode.member}": episode for episode in members}
        return StoredEpisodes(path, by_member, len(stored.episodes), compared=True)
    episodes = samples(stored.episodes) if sampled else {"": pick_episode(stored.episodes, episode, path)}
    try:
        view = environment_of(stored, environment).presentation.view
    except GradusError:  # its data may not be on this machine; the transcript still is
        if environment is not None:
            raise
        view = None
    return StoredEpisodes(path, episodes, len(stored.episodes), view)


def tell_problems(stored: EpisodeFile, path: Path) -> None:
    """Names what could not be read, and what changed since the episodes were stored."""
    from gradus.core.printing import go_around
    from gradus.evidence.stage_files import changed_since

    for problem in (*stored.problems, *changed_since(path)):
        go_around(problem, "the rest is used")


def environment_of(stored: EpisodeFile, environment: str | EnvironmentSpec | type | None) -> EnvironmentSpec:
    """Returns the environment that was named, or the registered one that the file names."""
    if environment is not None:
        return load_environment(environment)
    try:
        return environments.load_stored(stored.environment)
    except ConfigError as error:
        raise ConfigError(f"{error}; if the episodes are of your own environment, say which with --env") from error


def newest_file(run: Path) -> Path:
    """The file of the newest step whose episodes a run stored, its first seed if it has several; before GRPO, those of the teacher. A file
    is itself.
    """
    if run.is_file():
        return run
    from gradus.evidence.reports.run_files import shown_folder

    for place in _PLACES:
        folder = shown_folder(run) / place
        files = [
            file for file in folder.glob("*.jsonl*") if "metrics" not in file.name and not file.name.startswith(".")
        ]
        if files:
            return max(files, key=lambda file: file.name)
    raise StorageError(
        f"no episodes in {run}; expected a run folder with {', '.join(_PLACES[:4])}. GRPO stores some every `store_every` steps"
    )


def samples(episodes: Sequence[Episode]) -> dict[str, Episode]:
    """Best and worst by reward, one at random (the same one each time), and the first with an answer that was not understood.

    An episode that is two of these stands there once, under both names.
    """
    if not episodes:
        raise ConfigError("the file holds no whole episode; nothing can be shown")
    graded = [episode for episode in episodes if episode.reward is not None and episode.reward.value is not None]
    picks = {"best": max(graded, key=_reward), "worst": min(graded, key=_reward)} if graded else {}
    picks["random"] = episodes[child_rng(0, "show").randrange(len(episodes))]
    for episode in episodes:
        if any(not turn.valid for turn in episode.turns):
            picks["invalid"] = episode
            break
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
    return (episode.reward.value if episode.reward else None) or 0.0


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
        return sum(episode.reward is None or episode.reward.value is None for episode in self.episodes)

    def to_json(self) -> dict[str, Any]:
        """The means before and after, and of each component; None if no episode has the figure."""
        from gradus.stats import mean_of

        before = [episode.reward for episode in self.before if episode.reward]
        rewards = [episode.reward for episode in self.episodes if episode.reward]
        components: dict[str, float | None] = {}
        for name in self.spec.grader(self.grader).weights:
            components[name] = mean_of(reward.components.get(name) for reward in rewards)
        return {
            "grader": self.grader,
            "episodes": len(self.episodes),
            "failed": self.failed,
            "before": mean_of(reward.value for reward in before),
            "reward": mean_of(reward.value for reward in rewards),
            "components": components,
        }

    def tables(self) -> Sequence[Any]:
        """The means, and a line if episodes have no reward."""
        from rich.table import Table
        from rich.text import Text

        from gradus.evidence.evaluation import first_failure
        from gradus.stats import format_number

        summary = self.to_json()
        stored = ", ".join(sorted({episode.reward.grader for episode in self.before if episode.reward}))
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


def regrade(
    file: str | Path,
    grader: str | None = None,
    *,
    rewards: Sequence[Any] = (),
    environment: str | EnvironmentSpec | type | None = None,
) -> Regraded:
    """Grade stored episodes again by a grader of their environment, or by reward functions; nothing is rolled out."""
    from gradus.rollouts import grade_episodes, read_episodes

    if (grader is None) == (not rewards):
        raise ConfigError("give --grader NAME or --reward NAME=WEIGHT, one of them")
    stored = read_episodes(Path(file))
    spec = environment_of(stored, environment)
    spec = with_rewards(spec, rewards) if rewards else spec
    new = spec.grader(grader)
    tell_problems(stored, Path(file))
    return Regraded(spec, new.name, stored.episodes, grade_episodes(spec, stored.episodes, new))


def _after_show(result: StoredEpisodes | Regraded | Episode, call: CommandCall) -> int | None:
    source, episode, out = call["source"], call["episode"], call["out"]
    if isinstance(result, Regraded):
        if out is not None:
            note(f"written: {result.save(out)}")
        if result.episodes and result.failed == len(result.episodes):
            return EXIT_CODES["open"]
        return next_command("show", out or source, *call.same("environment"))
    if not isinstance(result, StoredEpisodes) or call["newest"] or call["compared"]:
        return None
    if result.path == Path(source) and 0 <= episode < result.count - 1:
        return next_command("show", source, "--episode", episode + 1, *call.same("environment"))
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
    compared: Annotated[bool, _DIFF] = False,
    environment: OwnEnvironment = None,
    grader: Annotated[
        str | None,
        Parameter(alias="-g", metavar="NAME", help="Grade the episodes again by this grader; nothing is rolled out."),
    ] = None,
    rewards: Rewards = (),
    play: Annotated[bool, Parameter(help="Play one episode of an environment yourself.")] = False,
    seed: Annotated[int | None, Parameter(help="Which task is played; a different one each day otherwise.")] = None,
    out: Annotated[
        Path | None, writes("With --grader or --reward: write the episodes with their new rewards here.")
    ] = None,
) -> StoredEpisodes | Regraded | Episode:
    """Show stored episodes, grade them again, or play one. Exit code 3 if no episode got a reward."""
    from gradus.commands.environments import play as play_episode

    if out is not None:
        check_file_can_be_written(out)
    if play:
        return play_episode(environment or source, seed=seed)
    if grader is not None or rewards:
        return regrade(source, grader, rewards=rewards, environment=environment)
    return show(source, episode, newest=newest, compared=compared, environment=environment)
