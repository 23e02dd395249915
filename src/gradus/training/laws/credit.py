"""Advantages, again from the stored rewards, in plain numbers, group by group, as the papers write them (laws 2 and 11: their scale is that of these)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from gradus.core import Episode, Grader, Renderer, RewardTerm, Turn
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups, Samples, sampled_tokens
from gradus.training.laws.formulas import FORMULAS
from gradus.training.laws.runner import NotMeasured, Pairs, close, holds, worst_of

Array = np.ndarray[Any, np.dtype[Any]]
_ALLOWED = 1e-6  # of the largest advantage
_NOISE = 2.0**-17  # of the largest reward: equal but for the noise of a float32


class GroupMember(NamedTuple):
    """A graded episode, the number of its group, and the place of each turn: calls that waited together share one."""

    group: int
    episode: Episode
    value: float
    terms: Sequence[Sequence[RewardTerm]]
    places: Sequence[int]


def group_members(groups: Groups) -> list[GroupMember]:
    """Returns the episodes that have a reward and an answer that somebody waited for, in order."""
    members: list[GroupMember] = []
    for number, group in enumerate(groups):
        for episode in group.episodes:
            reward = episode.reward
            if reward is None or reward.value is None or all(turn.undelivered for turn in episode.turns):
                continue
            places: list[int] = []
            for turn in episode.turns:
                is_parallel = turn.asked is not None and turn.asked.parallel
                previous = places[-1] if places else -1
                places.append(previous if is_parallel else previous + 1)
            members.append(GroupMember(number, episode, reward.value, reward.terms, places))
    return members


def advantages_again(
    groups: Groups,
    samples: Samples,
    config: GrpoConfig,
    renderer: Renderer,
    every: int,
    weights: Mapping[str, float],
) -> Pairs:
    """The advantage of each token of one sample in ``every``, by group; the one that differs most. ``weights``: the grader's."""
    if config.algorithm not in FORMULAS:
        raise NotMeasured(f"an algorithm of Gradus's that looks at rewards, not {config.algorithm}")
    if not samples:
        return
    members = group_members(groups)
    spans = _Spans.of(members if config.credit == "span" else [])
    if config.credit == "episode":
        longest = max(len(member.places) for member in members)
        values = np.repeat(_episode_values(members, config, weights), longest, axis=1)
    else:
        values = _turn_values(members, config, spans)
    largest = max(float(np.abs(values).max()), 1e-6)
    for sample in samples[::every]:
        member = members[sample.episode]
        for turn, rows in sample.by_turn():
            of_turn = values[sample.episode, member.places[turn]]
            by_token = spans.by_token(member.episode.turns[turn], of_turn, renderer)
            again = by_token[sample.offsets[rows].numpy()]
            place = f"group {member.group}, episode {sample.episode}, turn {turn}: the advantage of a token"
            yield worst_of(sample.credited[rows].numpy(), again, place, _ALLOWED * largest)


def settings_again(asked: GrpoConfig, config: GrpoConfig, grader: Grader) -> Pairs:
    """What the settings of a run leave out is as in the algorithm's paper, and Gradus's own credit as fine as the grader supports."""
    formula = FORMULAS.get(config.algorithm)
    if formula is None:
        raise NotMeasured("an algorithm of Gradus's")
    low, high = (None, None) if formula.ratio == "plain" else formula.clip
    by_turn = config.algorithm == "gradus" and grader.per_turn
    asks_rounds = "dynamic_sampling" in asked.model_fields_set
    expected = {
        "credit": asked.credit or ("turn" if by_turn else "episode"),
        "scale": asked.scale or formula.scale,
        "clip_low": asked.clip_low or low,
        "clip_high": asked.clip_high or high,
        "dynamic_sampling": asked.dynamic_sampling if asks_rounds else formula.rounds,
    }
    for name, value in expected.items():
        yield holds(
            getattr(config, name) == value,
            f"{name} (advantages, loss) is {value}, of the settings or the algorithm's own",
        )


def dropped_again(dropped: Groups) -> Pairs:
    """A group that dynamic sampling drops has one reward: nothing could be learned of it."""
    for number, group in enumerate(dropped):
        rewards = [value for value in group.values() if value is not None]
        place = f"dropped group {number} (dynamic_sampling): how far its rewards differ"
        yield close(max(rewards, default=0.0), min(rewards, default=0.0), 1e-5, place)


def taught_again(before: Samples, after: Samples, coef: float, logprobs: Sequence[Tensor]) -> Pairs:
    """What a teacher adds to a token's advantage: ``coef`` times how much likelier it is to the teacher (``logprobs``), at most 10 nats."""
    for number, (sample, taught, teachers) in enumerate(zip(before, after, logprobs, strict=True)):
        gain = teachers.double().numpy() - sample.logprobs.numpy()
        gain = np.clip(np.nan_to_num(gain, nan=0.0), -10.0, 10.0)
        again = sample.credited.numpy() + coef * gain
        place = f"sample {number}: the advantage of a token with what the teacher adds to it (distillation)"
        yield worst_of(taught.credited.numpy(), again, place, 1e-5 * (1.0 + float(np.abs(again).max())))


def _episode_values(members: Sequence[GroupMember], config: GrpoConfig, weights: Mapping[str, float]) -> Array:
    """(N, 1, 1) one advantage an episode."""
    rewards = np.array([member.value for member in members])
    names = np.array([member.group for member in members])
    scale, center = config.scale or "batch", FORMULAS[config.algorithm].center
    if center == "tokens":
        values = _whitened(members, rewards)
    elif center == "ratio":
        values = np.zeros_like(rewards)
        for rows in _varied(rewards, names):
            values[rows] = rewards[rows] / rewards[rows].mean() - 1.0
    elif center == "components":
        values = np.zeros_like(rewards)
        for name, weight in weights.items():
            parts = np.array([_component(member.episode, name) for member in members])
            applies = ~np.isnan(parts)
            values[applies] += weight * _standardized(parts[applies], names[applies], scale)
        if scale != "none":
            values = values / (values.std() or 1.0)
    else:
        values = _standardized(rewards, names, scale, others=center == "leave_one_out")
    return values[:, None, None]


def _whitened(members: Sequence[GroupMember], rewards: Array) -> Array:
    """Rewards (N,) less their mean over the sampled tokens, over the deviation there; 0 if they do not differ."""
    by_token = np.repeat(rewards, [sampled_tokens(member.episode) for member in members])
    deviation = by_token.std() if _differ(by_token) else math.inf
    return (rewards - by_token.mean()) / deviation


def _component(episode: Episode, name: str) -> float:
    assert episode.reward is not None
    value = episode.reward.components.get(name)
    return math.nan if value is None else value


def _varied(values: Array, names: Array) -> list[Array]:
    """The rows of each group whose values (N, ...) differ."""
    groups = [np.flatnonzero(names == name) for name in np.unique(names)]
    return [rows for rows in groups if _differ(values[rows]).any()]


def _differ(values: Array) -> Array:
    """(...) of (n, ...): whether they are not one number."""
    return np.ptp(values, axis=0) > _NOISE * np.abs(values).max(axis=0)


def _standardized(rewards: Array, names: Array, scale: str, *, others: bool = False) -> Array:
    """Rewards (N,) less the group's mean (or that of the ``others``), over one deviation of the batch, or each group's own."""
    values = np.zeros_like(rewards)
    varied = _varied(rewards, names)
    deviations = [rewards[rows] - rewards[rows].mean() for rows in varied]
    for rows, deviation in zip(varied, deviations, strict=True):
        sizes = {"none": 1.0, "batch": np.concatenate(deviations).std(), "group": rewards[rows].std(ddof=1)}
        values[rows] = deviation / sizes[scale]
        if others:  # the mean of the others lies further away: by G / (G - 1)
            values[rows] *= len(rows) / (len(rows) - 1)
    return values


def _turn_values(members: Sequence[GroupMember], config: GrpoConfig, spans: _Spans) -> Array:
    """(N, K, C): a turn's return less the mean return of the other members at that turn, who count as 0 once they stopped."""
    longest = max(max(member.places) for member in members) + 1
    earned = np.zeros((len(members), longest, 1 + len(spans.kinds)))
    present = np.zeros((len(members), longest, 1), dtype=bool)
    for row, member in enumerate(members):
        for place, turn, terms in zip(member.places, member.episode.turns, member.terms, strict=True):
            present[row, place] = True
            for term in terms:
                earned[row, place, spans.channel(turn, term)] += term.value
    returns = earned.copy()
    for turn in reversed(range(longest - 1)):
        if not spans.immediate:
            returns[:, turn] += config.discount * returns[:, turn + 1]
            continue
        # The action answers for the immediate terms of later turns, which stand alone.
        spoken = earned[:, turn + 1, 1:].sum(-1) if config.informing else 0.0
        returns[:, turn, 0] += config.discount * (returns[:, turn + 1, 0] + spoken)
    values = np.zeros_like(returns)
    varied = _varied(returns, np.array([member.group for member in members]))
    for rows in varied:
        others = (returns[rows].sum(0) - returns[rows]) / (len(rows) - 1)
        values[rows] = (returns[rows] - others) * _differ(returns[rows]) * present[rows]
    # Each batch of rows is divided by a deviation of its own.
    batches = {"none": [], "batch": [np.concatenate(varied)] if varied else [], "group": varied}
    for rows in batches[config.scale or "batch"]:
        totals = values[rows].sum(-1)[present[rows][..., 0]]
        values[rows] /= math.sqrt(float((totals**2).mean())) or 1.0
    return values


@dataclass(frozen=True)
class _Spans:
    """The channels of kinds of spans, 1 and up, and whether they are those of immediate terms. Channel 0 is a turn's own."""

    kinds: Mapping[str, int]
    immediate: bool

    @classmethod
    def of(cls, members: Sequence[GroupMember]) -> _Spans:
        """The kinds that the terms of members name."""
        named = [term for member in members for terms in member.terms for term in terms if term.span]
        immediate = any(term.immediate for term in named)
        kinds = sorted({str(term.span) for term in named if term.immediate or not immediate})
        return cls({kind: number for number, kind in enumerate(kinds, 1)}, immediate)

    def channel(self, turn: Turn, term: RewardTerm) -> int:
        """The channel that a term of a turn is of."""
        belongs = term.immediate if self.immediate else any(span.name == term.span for span in turn.spans)
        return self.kinds.get(term.span or "", 0) if belongs else 0

    def by_token(self, turn: Turn, values: Array, renderer: Renderer) -> Array:
        """(tokens,) of an answer: its turn's value (C,), and those of the spans that its visible characters stand in."""
        ids = turn.tokens.action_ids if turn.tokens else ()
        by_token = np.full(len(ids), values[0])
        if not self.kinds:
            return by_token
        start = 0
        for place in range(len(ids)):
            # Half a character adds nothing.
            end = max(start, len(renderer.decode(ids[: place + 1])))
            visible = [spot for spot in range(start, min(end, len(turn.action))) if not turn.action[spot].isspace()]
            channels: list[int] = []
            for span in turn.spans:
                holds_any = any(span.start <= spot < span.end for spot in visible)
                if holds_any and span.name in self.kinds and self.kinds[span.name] not in channels:
                    channels.append(self.kinds[span.name])
            if channels:
                # An immediate term is of one span alone; other spans add to the turn's own value.
                by_token[place] = values[channels[0]] if self.immediate else values[[0, *channels]].sum()
            start = end
        return by_token
