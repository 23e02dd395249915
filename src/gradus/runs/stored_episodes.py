"""Episodes that a run stored: the newest file, and a few worth reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradus.core import ConfigError, Episode, StorageError
from gradus.core.seeds import child_rng
from gradus.evidence.reports.run_files import shown_folder

PLACES = ("grpo/episodes", "episodes", "eval", "teach", ".")


def newest_file(run: Path) -> Path:
    """The file of the newest step whose episodes a run stored, its first seed if it has several; before GRPO, those of the teacher. A file
    is itself.
    """
    if run.is_file():
        return run
    for place in PLACES:
        folder = shown_folder(run) / place
        files = [
            file for file in folder.glob("*.jsonl*") if "metrics" not in file.name and not file.name.startswith(".")
        ]
        if files:
            return max(files, key=lambda file: file.name)
    raise StorageError(
        f"no episodes in {run}; expected a run folder with {', '.join(PLACES[:4])}. GRPO stores some every `store_every` steps"
    )


def samples(episodes: Sequence[Episode]) -> dict[str, Episode]:
    """Best and worst by reward, one at random (the same one each time), and the first with an answer that was not understood.

    An episode that is two of these stands there once, under both names.
    """
    if not episodes:
        raise ConfigError("the file holds no whole episode; nothing can be shown")
    graded = [each for each in episodes if each.reward is not None and each.reward.value is not None]
    chosen = [("best", max(graded, key=_reward)), ("worst", min(graded, key=_reward))] if graded else []
    chosen.append(("random", episodes[child_rng(0, "show").randrange(len(episodes))]))
    chosen += [("invalid", each) for each in episodes if any(not turn.valid for turn in each.turns)][:1]
    once = {id(each): each for _, each in chosen}
    return {", ".join(name for name, each in chosen if each is kept): kept for kept in once.values()}


def pick_episode(episodes: Sequence[Episode], number: int, path: Path) -> Episode:
    """The episode with this number, from 0; negative counts from the end."""
    count = len(episodes)
    if not -count <= number < count:
        raise ConfigError(f"{path} holds {count} episodes, got --episode {number}; use 0 to {count - 1}")
    return episodes[number]


def _reward(episode: Episode) -> float:
    return (episode.reward.value if episode.reward else None) or 0.0
