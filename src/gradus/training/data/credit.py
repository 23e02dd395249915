"""Credit: from graded groups to training samples with one advantage per sampled token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from math import fsum, nan

import torch
from torch import Tensor

from gradus.algorithms import EpisodeRewards, immediate_advantages
from gradus.core import ConfigError, Episode, Renderer, Reward, RewardTerm, Span, Turn
from gradus.core.frozen_record import frozen_record
from gradus.rollouts import episodes_of
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Episodes, Groups, TrainingSample, episode_samples, ints, sampled_tokens


def credit_groups(
    groups: Groups,
    config: GrpoConfig,
    renderer: Renderer,
    *,
    weights: Mapping[str, float],
) -> list[TrainingSample]:
    """Training samples of all graded episodes with an advantage per sampled token, by the credit and algorithm of a resolved ``config``.

    Episodes without a reward (failed, or ungradable) are left out: missing is not zero. A group is named by its place in ``groups``.

    Args:
        groups: those of a step, graded.
        config: resolved settings.
        renderer: the model's, for the spans of tokens.
        weights: the grader's, for algorithms that look at components.
    """
    _check_tasks(groups)
    episodes: list[Episode] = []
    names: list[int] = []
    samples: list[TrainingSample] = []
    for number, group in enumerate(groups):
        for episode in filter(_is_graded, group.episodes):
            # An advantage finds its episode by this index, and a shared prefix its group by the number.
            samples += episode_samples(episode, index=len(episodes), group=number)
            episodes.append(episode)
            names.append(number)
    if not episodes:
        return []
    if config.entropy_spans is not None:
        samples = [_with_entropy(sample, episodes, config.entropy_spans, renderer) for sample in samples]
    if config.credit == "episode":
        values = _episode_advantages(episodes, torch.tensor(names), config, weights)
        return [replace(sample, advantages=values[sample.episode].repeat(sample.actions)) for sample in samples]
    channels = _Channels.of(episodes, by_span=config.credit == "span")
    values = _turn_advantages(episodes, torch.tensor(names), config, channels)
    return [
        replace(sample, advantages=channels.by_token(values[sample.episode], sample, episodes, renderer))
        for sample in samples
    ]


def _episode_advantages(
    episodes: Episodes,
    names: Tensor,
    config: GrpoConfig,
    weights: Mapping[str, float],
) -> Tensor:
    """(N,) by the algorithm that the settings name."""
    algorithm = config.named
    rewards = _episode_rewards(episodes, names, weights)
    try:
        values = algorithm.advantage(rewards, baseline=algorithm.baseline, scale=config.scale_of_advantages)
    except ValueError as error:  # these rewards suit another algorithm
        raise ConfigError(str(error)) from error
    _check_advantages(values, (len(episodes),))
    return values


def _turn_advantages(
    episodes: Episodes,
    names: Tensor,
    config: GrpoConfig,
    channels: _Channels,
) -> Tensor:
    """(N, K, C) by turn and channel."""
    rewards, lengths = channels.rewards(episodes)
    scale, discount = config.scale_of_advantages, config.discount
    advantage = config.named.turn_advantage
    if channels.immediate:
        advantage = partial(immediate_advantages, informing=config.informing)
    values = advantage(rewards, lengths, names, scale=scale, discount=discount)
    _check_advantages(values, tuple(rewards.shape))
    return values


def _check_tasks(groups: Groups) -> None:
    """Raises ConfigError if a group has members of several tasks: their rewards cannot be compared."""
    for group in groups:
        tasks = {(episode.task.id, episode.task.seed) for episode in group.episodes}
        if len(tasks) > 1:
            raise ConfigError(f"a group has episodes of {len(tasks)} tasks; put the episodes of one task into a group")


def graded_episodes(groups: Groups) -> list[Episode]:
    """The episodes that :func:`credit_groups` makes samples of, in the order of their numbers there."""
    return list(filter(_is_graded, episodes_of(groups)))


def _check_advantages(values: object, shape: tuple[int, ...]) -> None:
    """Raises ConfigError unless an algorithm of one's own gives a finite number for each episode, or for each turn."""
    if not isinstance(values, Tensor) or tuple(values.shape) != shape or not bool(values.isfinite().all()):
        unit = "episode" if len(shape) == 1 else "turn"
        raise ConfigError(
            f"the algorithm must give one advantage for each {unit}: a tensor of finite numbers in the shape {shape}, got {values!r:.80}"
        )


def _is_graded(episode: Episode) -> bool:
    # An answer that nobody waited for did nothing.
    return episode.reward_value is not None and not all(turn.undelivered for turn in episode.turns)


def _reward(episode: Episode) -> Reward:
    assert episode.reward is not None
    return episode.reward


def _terms(episode: Episode) -> tuple[tuple[RewardTerm, ...], ...]:
    """The terms of each turn. Raises ConfigError if they are not as many as turns."""
    terms = _reward(episode).terms
    if len(terms) != len(episode.turns):
        raise ConfigError(
            f"the grader gives terms for {len(terms)} turns of an episode that has {len(episode.turns)}; credit by turn "
            "needs one tuple of terms per turn"
        )
    return terms


def _episode_rewards(episodes: Episodes, names: Tensor, weights: Mapping[str, float]) -> EpisodeRewards:
    weighted = {name: weight for name, weight in weights.items() if weight}
    rewards = [_reward(episode) for episode in episodes]
    components = [_components(reward, weighted) for reward in rewards]
    return EpisodeRewards(
        values=torch.tensor([reward.value for reward in rewards], dtype=torch.float64),
        groups=names,
        lengths=torch.tensor([sampled_tokens(episode) for episode in episodes]),
        components=torch.tensor(components, dtype=torch.float64),
        weights=torch.tensor(list(weighted.values()), dtype=torch.float64),
    )


def _components(reward: Reward, weights: Mapping[str, float]) -> list[float]:
    return [_component(reward, name, weight) for name, weight in weights.items()]


def _component(reward: Reward, name: str, weight: float) -> float:
    """A component, unweighted. If it is undefined, what it added to the reward, over its weight; NaN if it added nothing."""
    value = reward.components.get(name)
    if value is not None:
        return value
    added = [term.value for turn in reward.terms for term in turn if term.component == name]
    return fsum(added) / weight if added else nan


@frozen_record
class _Channels:
    """Rewards that are credited apart: channel 0 holds what belongs to no span, the others one kind of span each.

    ``immediate``: the kinds are those of immediate terms, and a token belongs to one channel alone; otherwise channel 0
    belongs to all tokens, and the token's spans are added to it.
    """

    numbers: Mapping[str, int]
    immediate: bool

    @classmethod
    def of(cls, episodes: Episodes, *, by_span: bool) -> _Channels:
        """The channels that occur; channel 0 alone for credit by turn."""
        terms: list[RewardTerm] = []
        for episode in episodes:
            turns = _terms(episode)  # checks them for credit by turn too
            terms += [term for turn in turns for term in turn if by_span and term.span]
        immediate = any(term.immediate for term in terms)
        kinds = {term.span for term in terms if term.span and (term.immediate or not immediate)}
        return cls(numbers={kind: number for number, kind in enumerate(sorted(kinds), 1)}, immediate=immediate)

    @property
    def count(self) -> int:
        """C, channel 0 included."""
        return len(self.numbers) + 1

    def rewards(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """(N, K, C) float64 rewards by place of the turn and channel, 0 after an episode's end, and the number of places (N,)."""
        places = [turn_places(episode) for episode in episodes]
        lengths = [1 + max(of_episode) for of_episode in places]
        rewards = torch.zeros(len(episodes), max(lengths), self.count, dtype=torch.float64)
        for row, episode in enumerate(episodes):
            for place, turn, terms in zip(places[row], episode.turns, _terms(episode), strict=True):
                rewards[row, place] += torch.tensor(self._sums(turn, terms), dtype=torch.float64)
        return rewards, torch.tensor(lengths)

    def _sums(self, turn: Turn, terms: Sequence[RewardTerm]) -> list[float]:
        """(C,) what a turn earned in each channel."""
        spans = {span.name for span in turn.spans}
        sums = [0.0] * self.count
        for term in terms:
            has_channel = term.immediate if self.immediate else term.span in spans
            channel = self.numbers.get(term.span or "", 0) if has_channel else 0
            sums[channel] += term.value
        return sums

    def by_token(
        self,
        values: Tensor,
        sample: TrainingSample,
        episodes: Episodes,
        renderer: Renderer,
    ) -> Tensor:
        """(A,) from the advantages (K, C) of the sample's episode."""
        turns = torch.tensor(turn_places(episodes[sample.episode]))[sample.turns]
        if not self.numbers:
            return values[turns, 0]

        belongs = torch.zeros(sample.actions, self.count, dtype=torch.float64)
        for row, names in enumerate(_spans_by_token(sample, episodes, renderer)):
            channels = [self.numbers[name] for name in names if name in self.numbers]
            if self.immediate:  # of one span alone, or of none
                belongs[row, channels[:1] or [0]] = 1.0
            else:
                belongs[row, [0, *channels]] = 1.0
        return (values[turns] * belongs).sum(-1)


def turn_places(episode: Episode) -> list[int]:
    """The place of each turn in the order of the episode: its index, but calls that waited at the same time share a place."""
    moves = [turn.asked is None or not turn.asked.parallel for turn in episode.turns]
    return [place - 1 for place in accumulate(moves)]


def _with_entropy(
    sample: TrainingSample,
    episodes: Episodes,
    shares: Mapping[str, float],
    renderer: Renderer,
) -> TrainingSample:
    """The sample with the share of the entropy bonus of each token: that of its kind of span, 0 outside of those that are named."""

    def share(names: Sequence[str]) -> float:
        return max((shares[name] for name in names if name in shares), default=0.0)

    by_token = [share(names) for names in _spans_by_token(sample, episodes, renderer)]
    return replace(sample, entropy=torch.tensor(by_token))


def _spans_by_token(sample: TrainingSample, episodes: Episodes, renderer: Renderer) -> list[tuple[str, ...]]:
    """The spans of each trained token of a sample."""
    turns = episodes[sample.episode].turns
    spans: dict[int, tuple[tuple[str, ...], ...]] = {}
    for number, _ in sample.by_turn():
        turn = turns[number]
        assert turn.tokens is not None
        spans[number] = _token_spans(renderer, turn.tokens.action_ids, turn.action, tuple(turn.spans))
    return [spans[turn][offset] for turn, offset in zip(ints(sample.turns), ints(sample.offsets), strict=True)]


@lru_cache(maxsize=65536)
def _token_spans(
    renderer: Renderer,
    action_ids: tuple[int, ...],
    action: str,
    spans: tuple[Span, ...],
) -> tuple[tuple[str, ...], ...]:
    """The spans of each token of an answer: those that hold any of its visible characters."""
    by_token: list[tuple[str, ...]] = []
    start = 0
    for end in token_ends(renderer, action_ids):
        visible = [place for place in range(start, min(end, len(action))) if not action[place].isspace()]
        by_token.append(tuple(span.name for span in spans if _holds_any(span, visible)))
        start = end
    return tuple(by_token)


def _holds_any(span: Span, places: Sequence[int]) -> bool:
    return any(span.start <= place < span.end for place in places)


@lru_cache(maxsize=65536)
def token_ends(renderer: Renderer, action_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Returns how many characters of an answer stand up to and with each of its tokens; a stop token adds none."""
    ends: list[int] = []
    longest = 0
    for count in range(1, len(action_ids) + 1):
        longest = max(longest, len(renderer.decode(action_ids[:count])))
        ends.append(longest)
    return tuple(ends)
