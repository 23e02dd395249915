"""Credit: from graded groups to training samples with one advantage per sampled token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import fsum, nan

import torch
from torch import Tensor

from gradus.algorithms import EpisodeRewards, immediate_advantages
from gradus.core import ConfigError, Episode, Group, Renderer, Reward, RewardTerm, Span, Turn
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, episode_samples


def credit_groups(
    groups: Sequence[Group], config: GrpoConfig, renderer: Renderer, *, weights: Mapping[str, float]
) -> list[TrainingSample]:
    """Training samples of all graded episodes with an advantage per sampled token, by the credit and algorithm of a resolved ``config``.

    Episodes without a reward (failed, or ungradable) are left out: missing is not zero. Groups are told apart by their place
    in ``groups``. ``weights``: the grader's, for algorithms that look at components.
    """
    _check_tasks(groups)
    numbered = [(number, each) for number, group in enumerate(groups) for each in group.episodes if _is_graded(each)]
    if not numbered:
        return []
    episodes = [episode for _, episode in numbered]
    names = torch.tensor([number for number, _ in numbered])
    samples = [
        sample
        for index, (number, episode) in enumerate(numbered)
        for sample in episode_samples(episode, index=index, group=number)
    ]
    _check_tokens(samples, episodes)
    algorithm, scale = config.named, config.scale or "batch"  # an algorithm without a scale does not read it
    if config.entropy_spans is not None:
        shares = config.entropy_spans
        samples = [replace(each, entropy=_entropy(shares, each, episodes[each.episode], renderer)) for each in samples]
    if config.credit == "episode":
        rewards = _episode_rewards(episodes, names, weights)
        try:
            values = algorithm.advantage(rewards, baseline=algorithm.baseline, scale=scale)
        except ValueError as error:  # these rewards suit another algorithm
            raise ConfigError(str(error)) from error
        _check_advantages(values, (len(episodes),))
        return [replace(sample, advantages=values[sample.episode].repeat(sample.actions)) for sample in samples]
    channels = _Channels.of(episodes, by_span=config.credit == "span")
    advantage = (
        partial(immediate_advantages, informing=config.informing) if channels.immediate else algorithm.turn_advantage
    )
    rewards, lengths = channels.rewards(episodes)
    values = advantage(rewards, lengths, names, scale=scale, discount=config.discount)
    _check_advantages(values, tuple(rewards.shape))
    return [
        replace(sample, advantages=channels.by_token(values[sample.episode], sample, episodes, renderer))
        for sample in samples
    ]


def _check_tasks(groups: Sequence[Group]) -> None:
    """Raise ConfigError if a group has members of several tasks: their rewards cannot be compared."""
    for group in groups:
        tasks = {(each.task.id, each.task.seed) for each in group.episodes}
        if len(tasks) > 1:
            raise ConfigError(f"a group has episodes of {len(tasks)} tasks; put the episodes of one task into a group")


def _check_tokens(samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> None:
    """Hold the samples to what was sampled: each token of each answer once, stop tokens included, and nothing else."""
    trained: list[list[TrainingSample]] = [[] for _ in episodes]
    for sample in samples:
        trained[sample.episode].append(sample)
    for own, episode in zip(trained, episodes, strict=True):
        sampled = [each for turn in episode.turns if turn.tokens for each in turn.tokens.action_ids]
        turns, offsets = (torch.cat([getattr(each, name) for each in own]) for name in ("turns", "offsets"))
        ids = torch.cat([each.ids[each.positions] for each in own])
        order = (turns * (1 + len(sampled)) + offsets).argsort()
        if ids[order].tolist() != sampled:
            raise ConfigError(
                f"an episode has {len(sampled)} sampled tokens, and its mask covers {len(ids)} tokens that are not exactly these; train "
                "each sampled token once, stop tokens included, and nothing that was read"
            )


def graded_episodes(groups: Sequence[Group]) -> list[Episode]:
    """The episodes that :func:`credit_groups` makes samples of, in the order of their numbers there."""
    return [episode for group in groups for episode in group.episodes if _is_graded(episode)]


def _check_advantages(values: object, shape: tuple[int, ...]) -> None:
    """Hold an algorithm of one's own to its word: a finite number for each episode, or for each turn."""
    if not isinstance(values, Tensor) or tuple(values.shape) != shape or not bool(values.isfinite().all()):
        each = "episode" if len(shape) == 1 else "turn"
        raise ConfigError(
            f"the algorithm must give one advantage for each {each}: a tensor of finite numbers in the shape {shape}, got {values!r:.80}"
        )


def _is_graded(episode: Episode) -> bool:
    return episode.reward is not None and episode.reward.value is not None and bool(episode.turns)


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


def _episode_rewards(episodes: Sequence[Episode], names: Tensor, weights: Mapping[str, float]) -> EpisodeRewards:
    weighted = {name: weight for name, weight in weights.items() if weight}
    components = [[_component(_reward(each), *item) for item in weighted.items()] for each in episodes]
    lengths = [sum(len(turn.tokens.action_ids) for turn in each.turns if turn.tokens) for each in episodes]
    return EpisodeRewards(
        values=torch.tensor([_reward(each).value for each in episodes], dtype=torch.float64),
        groups=names,
        lengths=torch.tensor(lengths),
        components=torch.tensor(components, dtype=torch.float64),
        weights=torch.tensor(list(weighted.values()), dtype=torch.float64),
    )


def _component(reward: Reward, name: str, weight: float) -> float:
    """A component, unweighted. If it is undefined, what it added to the reward, over its weight; NaN if it added nothing."""
    value = reward.components.get(name)
    if value is not None:
        return value
    added = [term.value for turn in reward.terms for term in turn if term.component == name]
    return fsum(added) / weight if added else nan


@dataclass(frozen=True, kw_only=True)
class _Channels:
    """Rewards that are credited apart: channel 0 holds what belongs to no span, the others one kind of span each.

    ``immediate``: the kinds are those of immediate terms, and a token belongs to one channel alone; otherwise channel 0
    belongs to all tokens, and the token's spans are added to it.
    """

    places: Mapping[str, int]
    immediate: bool

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, by_span: bool) -> _Channels:
        """The channels that occur; channel 0 alone for credit by turn."""
        terms = [term for each in episodes for turn in _terms(each) for term in turn if term.span] if by_span else []
        immediate = any(term.immediate for term in terms)
        kinds = sorted({term.span for term in terms if term.span and (term.immediate or not immediate)})
        return cls(places={kind: number + 1 for number, kind in enumerate(kinds)}, immediate=immediate)

    def rewards(self, episodes: Sequence[Episode]) -> tuple[Tensor, Tensor]:
        """(N, K, C) float64 rewards by turn and channel, 0 after an episode's end, and the number of turns (N,)."""
        longest = max(len(each.turns) for each in episodes)
        rows = [[[0.0] * (len(self.places) + 1) for _ in range(longest)] for _ in episodes]
        for row, episode in zip(rows, episodes, strict=True):
            for sums, turn, terms in zip(row, episode.turns, _terms(episode), strict=False):
                spans = {span.name for span in turn.spans}
                for term in terms:
                    apart = term.immediate if self.immediate else term.span in spans
                    sums[self.places.get(term.span or "", 0) if apart else 0] += term.value
        return torch.tensor(rows, dtype=torch.float64), torch.tensor([len(each.turns) for each in episodes])

    def by_token(
        self, values: Tensor, sample: TrainingSample, episodes: Sequence[Episode], renderer: Renderer
    ) -> Tensor:
        """(A,) from the advantages (K, C) of the sample's episode."""
        if not self.places:
            return values[sample.turns, 0]
        turns = episodes[sample.episode].turns
        spans = {turn: self._channels_of(turns[turn], renderer) for turn in sample.turns.unique().tolist()}
        rows: list[int] = []
        columns: list[int] = []
        for row, (turn, offset) in enumerate(zip(sample.turns.tolist(), sample.offsets.tolist(), strict=True)):
            channels = spans[turn][offset]
            chosen = channels[:1] or (0,) if self.immediate else {0, *channels}
            rows += [row] * len(chosen)
            columns += chosen
        member = torch.zeros(sample.actions, len(self.places) + 1, dtype=torch.float64)
        member[rows, columns] = 1.0
        return (values[sample.turns] * member).sum(-1)

    def _channels_of(self, turn: Turn, renderer: Renderer) -> list[tuple[int, ...]]:
        """The channels of each sampled token of a turn."""
        assert turn.tokens is not None
        by_token = _token_spans(renderer, turn.tokens.action_ids, turn.action, tuple(turn.spans))
        return [tuple(self.places[name] for name in names if name in self.places) for names in by_token]


def _entropy(shares: Mapping[str, float], sample: TrainingSample, episode: Episode, renderer: Renderer) -> Tensor:
    """(A,) the share of the entropy bonus that each token gets: that of its kind of span, 0 outside of those that are named."""
    own: list[float] = []
    for number, offset in zip(sample.turns.tolist(), sample.offsets.tolist(), strict=True):
        turn = episode.turns[number]
        assert turn.tokens is not None
        names = _token_spans(renderer, turn.tokens.action_ids, turn.action, tuple(turn.spans))[offset]
        own.append(max((shares[name] for name in names if name in shares), default=0.0))
    return torch.tensor(own)


@lru_cache(maxsize=65536)
def _token_spans(
    renderer: Renderer, action_ids: tuple[int, ...], action: str, spans: tuple[Span, ...]
) -> tuple[tuple[str, ...], ...]:
    """The spans of each token of an answer: those that hold any of its visible characters."""
    by_token: list[tuple[str, ...]] = []
    start = 0
    for end in token_ends(renderer, action_ids):
        visible = [at for at in range(start, end) if at < len(action) and not action[at].isspace()]
        by_token.append(tuple(span.name for span in spans if any(span.start <= at < span.end for at in visible)))
        start = end
    return tuple(by_token)


@lru_cache(maxsize=65536)
def token_ends(renderer: Renderer, action_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Returns how many characters of an answer stand up to and with each of its tokens; a stop token adds none."""
    ends: list[int] = []
    for count in range(1, len(action_ids) + 1):
        length = len(renderer.decode(action_ids[:count]))
        ends.append(max(length, ends[-1] if ends else 0))
    return tuple(ends)
