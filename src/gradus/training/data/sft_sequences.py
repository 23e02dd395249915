"""Stored episodes to training samples for SFT: text becomes ids here, once, by the renderer that the policy will use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradus.core import ConfigError, ContextLengthError, Episode, StopReason
from gradus.policies.local.conversation import opening_ids
from gradus.policies.local.loading import LoadedModel
from gradus.training.data.sequences import TrainingSample


def text_only(episode: Episode) -> Episode:
    """The episode with what ``text_sequences`` and the splits read: about a quarter of the memory."""
    turns = [
        replace(turn, data={}, spans=(), action_data={}, tokens=None, usage=None, error=None) for turn in episode.turns
    ]
    return replace(episode, turns=tuple(turns), outcome={}, final=None, reward=None, metrics={})


def text_sequences(loaded: LoadedModel, episodes: Sequence[Episode]) -> list[TrainingSample]:
    """Training sequences of what was said in episodes, by whatever policy; failed episodes are left out.

    The answer's own tokens and a stop token are trained, nothing else. An invalid turn is read as history but not trained: a student should not learn to be wrong.
    Raises ContextLengthError if an episode does not fit the model's context; nothing is cut silently.
    """
    sequences: list[TrainingSample] = []
    for number, episode in enumerate(episodes):
        if episode.stop is not StopReason.FAILED:
            sequences.extend(_cut(loaded, episode, number))
    if not sequences:
        raise ConfigError(f"none of the {len(episodes)} episodes can be trained on: all failed or hold no valid answer")
    for sequence in sequences:
        if loaded.context is not None and len(sequence) > loaded.context:
            raise ContextLengthError(
                f"episode {sequence.episode} has {len(sequence)} tokens, but the model's context holds {loaded.context}; "
                "choose a model with a longer context, or teach shorter episodes"
            )
    return sequences


def _cut(loaded: LoadedModel, episode: Episode, number: int) -> list[TrainingSample]:
    speaker = loaded.renderer.for_tools(episode.tools)
    parts: list[TrainingSample] = []
    ids: list[int] = []
    read: list[int] = []
    places: list[_Place] = []
    for index, turn in enumerate(episode.turns):
        if turn.asked is not None:  # a foreign agent may offer other tools in each call
            speaker = loaded.renderer.for_tools(turn.asked.tools)
        if turn.restart or not index:
            parts.append(_sequence(ids, places, read, number))
            ids = list(opening_ids(speaker, episode.system_prompt, turn))
            places, read = [], []
        else:
            shown = speaker.following(turn.shown)
            read.extend(range(len(ids), len(ids) + len(shown)))
            ids.extend(shown)
        answer = list(speaker.encode_answer(turn.action))
        if turn.valid:
            # A limit cut the answer, so nobody said the stop token behind it: the next turn reads it, and it is not learned.
            learned = answer[:-1] if turn.cut else answer
            places.extend((len(ids) + offset, index, offset, token) for offset, token in enumerate(learned))
        ids.extend(answer)
    parts.append(_sequence(ids, places, read, number))
    return [part for part in parts if part.actions]


_Place = tuple[int, int, int, int]  # position, turn, offset, the token to be learned there


def _sequence(ids: Sequence[int], places: Sequence[_Place], read: Sequence[int], number: int) -> TrainingSample:
    """``key`` is the same for all: any two sequences may share a prefix, such as the system prompt."""
    columns = torch.tensor(places, dtype=torch.int64).reshape(-1, 4)
    return TrainingSample(
        key=(0, 0),
        episode=number,
        ids=torch.tensor(ids, dtype=torch.int64),
        positions=columns[:, 0],
        logprobs=torch.zeros(len(columns), dtype=torch.float64),
        turns=columns[:, 1],
        offsets=columns[:, 2],
        targets=columns[:, 3],
        read=torch.tensor(read, dtype=torch.int64),
    )
