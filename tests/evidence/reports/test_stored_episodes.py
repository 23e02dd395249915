"""The newest episodes of a run, and the few that are worth reading."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradus.commands.episodes import newest_file, pick_episode, samples
from gradus.core import ConfigError, StorageError
from gradus.rollouts import read_episodes, write_episodes


def _episodes(played: Any) -> list[Any]:
    return [episode for group in played.groups for episode in group.episodes]


def test_the_newest_step_is_found_and_gzipped_files_are_read(played: Any, tmp_path: Path) -> None:
    folder = tmp_path / "grpo" / "episodes"
    episodes = _episodes(played)
    for name in ("step-000010.jsonl", "step-000020.jsonl.gz"):
        write_episodes(folder / name, episodes, environment="rhythm")
    assert newest_file(tmp_path).name == "step-000020.jsonl.gz"
    assert read_episodes(newest_file(tmp_path)).episodes == read_episodes(folder / "step-000010.jsonl").episodes
    sizes = [(folder / name).stat().st_size for name in ("step-000010.jsonl", "step-000020.jsonl.gz")]
    assert sizes[1] < sizes[0] / 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="no episodes in"):
        newest_file(tmp_path / "empty")


def test_best_worst_random_and_invalid(played: Any) -> None:
    episodes = _episodes(played)
    first = episodes[0].turns[0]
    episodes[1] = replace(episodes[1], turns=(replace(first, valid=False, error="no action"), *episodes[1].turns[1:]))
    chosen = {name: each for names, each in samples(episodes).items() for name in names.split(", ")}
    rewards = [each.reward.value for each in episodes]
    assert list(chosen) == ["best", "worst", "random", "invalid"]
    assert chosen["best"].reward.value == max(rewards)
    assert chosen["worst"].reward.value == min(rewards)
    assert chosen["invalid"] is episodes[1]
    assert samples(episodes) == samples(episodes)
    with pytest.raises(ConfigError, match="use 0 to"):
        pick_episode(episodes, len(episodes), Path("x"))


def test_an_episode_is_shown_once(played: Any) -> None:
    """`gradus show --last` printed a file of one episode three times."""
    (only,) = _episodes(played)[:1]
    assert samples([only]) == {"best, worst, random": only}
