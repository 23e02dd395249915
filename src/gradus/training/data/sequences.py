"""Episodes to training sequences: the exact tokens that were read and sampled, and which of them are trained.

A training sequence runs from a restart to the next; in most environments an episode is one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradus.core import ConfigError, Episode, Turn

__all__ = ["TrainingSequence", "episode_sequences"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Legal = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One unbroken stretch of tokens, length T, with A sampled tokens in it.

    ``ids`` (T,) token ids. ``positions`` (A,) where the sampled tokens stand in ``ids``; each is predicted from the
    position before it. ``logprobs`` (A,) nats, as sampled. ``turns`` (A,) index of the turn that a sampled token belongs to
    within its episode. ``offsets`` (A,) its place within its turn's action. ``legal``: per sampled token the ids a grammar
    allowed, or None where none was in force. ``key`` names sequences that may share a prefix (group and number of the
    restart); ``episode`` is the index of the episode in the list the sequences were made from. ``targets`` (A,): ids to be
    learned at ``positions`` where they are not what stands there (a teacher's corrections of a student's answers).
    """

    key: tuple[int, int]
    episode: int
    ids: IntArray
    positions: IntArray
    logprobs: FloatArray
    turns: IntArray
    offsets: IntArray
    legal: Legal | None = None
    targets: IntArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def actions(self) -> int:
        """A, the number of sampled tokens, stop tokens included."""
        return len(self.positions)


def episode_sequences(episode: Episode, *, index: int = 0, group: int | None = None) -> list[TrainingSequence]:
    """Cut one episode at its restarts. No text is rendered or tokenized here: ids come out as they were sampled.

    Raises ConfigError if a turn carries no tokens (a scripted or remote policy played it: warm-start on such episodes with SFT).
    """
    sequences: list[TrainingSequence] = []
    stretch: list[tuple[int, Turn]] = []
    group = episode.group if group is None else group
    for number, turn in enumerate(episode.turns):
        if turn.tokens is None:
            raise ConfigError(
                f"turn {number} of an episode by {episode.policy!r} carries no tokens; only what a local policy sampled "
                "can be trained on with GRPO (stored text can be trained on with SFT)"
            )
        if turn.tokens.restart and stretch:
            sequences.append(_sequence(stretch, (group, len(sequences)), index))
            stretch = []
        stretch.append((number, turn))
    if stretch:
        sequences.append(_sequence(stretch, (group, len(sequences)), index))
    return sequences


def _sequence(stretch: Sequence[tuple[int, Turn]], key: tuple[int, int], episode: int) -> TrainingSequence:
    ids: list[int] = []
    columns: dict[str, list[Any]] = {"positions": [], "logprobs": [], "turns": [], "offsets": []}
    legal: list[tuple[int, ...] | None] = []
    for number, turn in stretch:
        tokens = turn.tokens
        assert tokens is not None
        if len(tokens.logprobs) != len(tokens.action_ids):
            raise ConfigError(
                f"turn {number} has {len(tokens.action_ids)} action tokens and {len(tokens.logprobs)} log-probs; expected "
                "one log-prob per sampled token, the stop token included"
            )
        ids.extend(tokens.context_ids)
        count = len(tokens.action_ids)
        columns["positions"].extend(range(len(ids), len(ids) + count))
        columns["logprobs"].extend(tokens.logprobs)
        columns["turns"].extend([number] * count)
        columns["offsets"].extend(range(count))
        legal.extend(tokens.legal if tokens.legal is not None else (None,) * count)
        ids.extend(tokens.action_ids)
    if columns["positions"] and columns["positions"][0] == 0:
        raise ConfigError(
            "a training sequence begins with a sampled token; the model must read something before it acts"
        )
    return TrainingSequence(
        key=key,
        episode=episode,
        ids=np.asarray(ids, dtype=np.int64),
        positions=np.asarray(columns["positions"], dtype=np.int64),
        logprobs=np.asarray(columns["logprobs"], dtype=np.float64),
        turns=np.asarray(columns["turns"], dtype=np.int64),
        offsets=np.asarray(columns["offsets"], dtype=np.int64),
        legal=tuple(legal) if any(entry is not None for entry in legal) else None,
    )
