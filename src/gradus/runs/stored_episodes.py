"""Episodes that a run stored: the newest file, and a few worth reading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, Episode, StorageError
from gradus.core.files import read_lines, stored_file
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
    """Best and worst by reward, one at random (the same one each time), and the first with an answer that was not understood."""
    if not episodes:
        raise ConfigError("the file holds no whole episode; nothing can be shown")
    graded = [each for each in episodes if each.reward is not None and each.reward.value is not None]
    chosen: dict[str, Episode] = {}
    if graded:
        chosen["best"] = max(graded, key=_reward)
        chosen["worst"] = min(graded, key=_reward)
    chosen["random"] = episodes[child_rng(0, "show").randrange(len(episodes))]
    invalid = next((each for each in episodes if any(not turn.valid for turn in each.turns)), None)
    return {**chosen, "invalid": invalid} if invalid else chosen


def pick_episode(episodes: Sequence[Episode], number: int, path: Path) -> Episode:
    """The episode with this number, from 0; negative counts from the end."""
    count = len(episodes)
    if not -count <= number < count:
        raise ConfigError(f"{path} holds {count} episodes, got --episode {number}; use 0 to {count - 1}")
    return episodes[number]


def episodes_with(path: Path, words: str) -> list[int]:
    """The numbers of the stored episodes, from 0, in which somebody read or answered these words, in any case.

    Raises StorageError if the file is damaged, which would shift the numbers.
    """
    words, problems = words.lower(), list[str]()
    escaped = json.dumps(words, ensure_ascii=False)[1:-1]
    lines = filter(str.strip, read_lines(stored_file(path), problems))
    next(lines, None)  # the header
    numbers = [
        number
        for number, line in enumerate(lines)
        if escaped in line.lower() and any(words in text.lower() for text in _texts(line))
    ]
    if problems:
        raise StorageError(problems[0])
    return numbers


def _texts(line: str) -> list[str]:
    """Returns the texts that were read and answered in the episode of a line; an empty list for a damaged line."""
    try:
        episode: dict[str, Any] = json.loads(line)
        parts = [*episode.get("turns", ()), episode.get("final") or {}]
        texts = [part.get(name) for part in parts for name in ("observation", "action", "error", "text")]
        texts += [message["content"] for part in parts for message in part.get("messages", ())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return [text for text in texts if isinstance(text, str)]


def _reward(episode: Episode) -> float:
    return (episode.reward.value if episode.reward else None) or 0.0
