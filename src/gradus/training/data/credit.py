"""Who is paid for what: from graded groups to one advantage per sampled token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gradus.algorithms import (
    gdpo_advantages,
    group_advantages,
    immediate_advantages,
    maxrl_advantages,
    reinforce_pp_advantages,
    span_advantages,
    turn_advantages,
)
from gradus.core import ConfigError, Episode, Group, Renderer, Turn
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSequence, episode_sequences
from gradus.training.engine.update import TrainingSample

__all__ = ["credit_groups", "token_ends"]


def credit_groups(groups: Sequence[Group], config: GrpoConfig, renderer: Renderer) -> list[TrainingSample]:
    """Training sequences of all graded episodes with an advantage per sampled token.

    Episodes without a reward (failed, or ungradable) are left out: missing is not zero. Groups are told apart by their place
    in ``groups``.
    """
    rows = [
        (number, episode)
        for number, group in enumerate(groups)
        for episode in group.episodes
        if episode.reward is not None and episode.reward.value is not None and episode.turns
    ]
    if not rows:
        return []
    episodes = [episode for _, episode in rows]
    names = torch.tensor([number for number, _ in rows])
    spread = _CREDIT[config.credited](episodes, names, config, renderer)
    return [
        TrainingSample(sequence=sequence, advantages=spread(index, sequence))
        for index, (number, episode) in enumerate(rows)
        for sequence in episode_sequences(episode, index=index, group=number)
    ]


Spread = Callable[[int, TrainingSequence], np.ndarray]


def _by_episode(episodes: Sequence[Episode], names: Tensor, config: GrpoConfig, renderer: Renderer) -> Spread:
    """One advantage for all tokens of an episode."""
    del renderer
    kind = config.preset.advantage
    if kind == "reinforce++":
        return _whitened(episodes)
    rewards = torch.tensor([_value(episode) for episode in episodes], dtype=torch.float64)
    if kind == "gdpo":
        values = gdpo_advantages(*_components(episodes), names, scale=config.scale)
    elif kind == "maxrl":
        values = maxrl_advantages(rewards, names)
    else:
        values = group_advantages(rewards, names, baseline=config.preset.baseline, scale=config.scale)
    listed = values.tolist()
    return lambda index, sequence: np.full(sequence.actions, listed[index])


def _by_turn(episodes: Sequence[Episode], names: Tensor, config: GrpoConfig, renderer: Renderer) -> Spread:
    """Reward-to-go of a turn against the other members, for all tokens of that turn."""
    del renderer
    rewards, lengths = _padded(episodes, [[[paid] for paid in _grade(one).turn_rewards] for one in episodes], 1)
    values = turn_advantages(rewards[..., 0], lengths, names, scale=config.scale, discount=config.discount).numpy()
    return lambda index, sequence: values[index][sequence.turns]


def _by_span(episodes: Sequence[Episode], names: Tensor, config: GrpoConfig, renderer: Renderer) -> Spread:
    """As by turn, but payments for a span go to the tokens of that span alone."""
    if any(term.immediate for one in episodes for turn in _grade(one).terms for term in turn):
        return _by_immediate(episodes, names, config, renderer)
    channels = sorted({term.span for one in episodes for turn in _grade(one).terms for term in turn if term.span})
    place = {name: number + 1 for number, name in enumerate(channels)}
    paid: list[list[list[float]]] = []
    for episode in episodes:
        rows: list[list[float]] = []
        for turn, terms in zip(episode.turns, _grade(episode).terms, strict=True):
            there = {span.name for span in turn.spans}
            row = [0.0] * (len(channels) + 1)
            for term in terms:
                row[place[term.span] if term.span in there and term.span else 0] += term.value
            rows.append(row)
        paid.append(rows)
    rewards, lengths = _padded(episodes, paid, len(channels) + 1)
    values = span_advantages(rewards, lengths, names, scale=config.scale, discount=config.discount).numpy()

    def spread(index: int, sequence: TrainingSequence) -> np.ndarray:
        found = values[index][sequence.turns, 0].copy()
        turns = episodes[index].turns
        member = {int(turn): _span_tokens(turns[turn], place, renderer) for turn in np.unique(sequence.turns)}
        for token, (turn, offset) in enumerate(zip(sequence.turns.tolist(), sequence.offsets.tolist(), strict=True)):
            for channel in member[turn][offset]:
                found[token] += values[index][turn, channel]
        return found

    return spread


def _by_immediate(episodes: Sequence[Episode], names: Tensor, config: GrpoConfig, renderer: Renderer) -> Spread:
    """Statements by what they were paid themselves, everything else by all that followed."""
    kinds = sorted(
        {term.span for one in episodes for turn in _grade(one).terms for term in turn if term.immediate and term.span}
    )
    place = {name: number + 1 for number, name in enumerate(kinds)}
    paid: list[list[list[float]]] = []
    for episode in episodes:
        rows: list[list[float]] = []
        for terms in _grade(episode).terms:
            row = [0.0] * (len(kinds) + 1)
            for term in terms:
                row[place[term.span] if term.immediate and term.span else 0] += term.value
            rows.append(row)
        paid.append(rows)
    rewards, lengths = _padded(episodes, paid, len(kinds) + 1)
    values = immediate_advantages(rewards, lengths, names, scale=config.scale, discount=config.discount).numpy()

    def spread(index: int, sequence: TrainingSequence) -> np.ndarray:
        turns = episodes[index].turns
        member = {int(turn): _span_tokens(turns[turn], place, renderer) for turn in np.unique(sequence.turns)}
        channels = [
            (member[turn][offset] or [0])[0]
            for turn, offset in zip(sequence.turns.tolist(), sequence.offsets.tolist(), strict=True)
        ]
        return values[index][sequence.turns, channels]

    return spread


_CREDIT: dict[str, Callable[[Sequence[Episode], Tensor, GrpoConfig, Renderer], Spread]] = {
    "episode": _by_episode,
    "turn": _by_turn,
    "span": _by_span,
}


def _grade(episode: Episode):
    assert episode.reward is not None
    return episode.reward


def _value(episode: Episode) -> float:
    value = _grade(episode).value
    assert value is not None
    return value


def _components(episodes: Sequence[Episode]) -> tuple[Tensor, Tensor]:
    """Payments of each component over an episode (N, C), weighted already, and their weights, all 1."""
    names = sorted({term.component for one in episodes for turn in _grade(one).terms for term in turn})
    rows = [
        [sum(term.value for turn in _grade(one).terms for term in turn if term.component == name) for name in names]
        for one in episodes
    ]
    return torch.tensor(rows, dtype=torch.float64), torch.ones(len(names), dtype=torch.float64)


def _padded(
    episodes: Sequence[Episode], paid: Sequence[Sequence[Sequence[float]]], channels: int
) -> tuple[Tensor, Tensor]:
    """(N, K, C) float64 payments, 0 behind an episode's end, and the number of turns (N,)."""
    longest = max(len(episode.turns) for episode in episodes)
    rewards = torch.zeros(len(episodes), longest, channels, dtype=torch.float64)
    for number, rows in enumerate(paid):
        if len(rows) != len(episodes[number].turns):
            raise ConfigError(
                f"the grader pays {len(rows)} turns of an episode that has {len(episodes[number].turns)}; credit by turn needs "
                "one tuple of terms per turn"
            )
        rewards[number, : len(rows)] = torch.tensor(rows, dtype=torch.float64)
    return rewards, torch.tensor([len(episode.turns) for episode in episodes])


def _whitened(episodes: Sequence[Episode]) -> Spread:
    """REINFORCE++: the reward stands at the last sampled token of an episode."""
    counts = [sum(len(turn.tokens.action_ids) for turn in episode.turns if turn.tokens) for episode in episodes]
    rewards = torch.zeros(len(episodes), max(counts), dtype=torch.float64)
    for row, count in enumerate(counts):
        rewards[row, count - 1] = _value(episodes[row])
    values = reinforce_pp_advantages(rewards, torch.arange(max(counts)) < torch.tensor(counts)[:, None]).numpy()
    starts = [
        np.concatenate([[0], np.cumsum([len(turn.tokens.action_ids) if turn.tokens else 0 for turn in episode.turns])])
        for episode in episodes
    ]
    return lambda index, sequence: values[index][starts[index][sequence.turns] + sequence.offsets]


def _span_tokens(turn: Turn, place: dict[str, int], renderer: Renderer) -> list[list[int]]:
    """The channels of each sampled token of a turn: those whose span holds any of its visible characters."""
    assert turn.tokens is not None
    ends = token_ends(renderer, turn.tokens.action_ids)
    text = turn.action
    found: list[list[int]] = []
    start = 0
    for end in ends:
        seen = [at for at in range(start, end) if at < len(text) and not text[at].isspace()]
        found.append(
            [place[s.name] for s in turn.spans if s.name in place and any(s.start <= at < s.end for at in seen)]
        )
        start = end
    return found


@lru_cache(maxsize=65536)
def token_ends(renderer: Renderer, action_ids: tuple[int, ...]) -> tuple[int, ...]:
    """How many characters of an answer stand up to and with each of its tokens; a stop token adds none."""
    ends: list[int] = []
    for count in range(1, len(action_ids) + 1):
        length = len(renderer.decode(action_ids[:count]))
        ends.append(max(length, ends[-1] if ends else 0))
    return tuple(ends)
