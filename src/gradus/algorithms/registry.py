"""The registry of algorithms: loss, advantage, baseline, scale, credit and clip of each name, as in its paper.

Other packages add theirs by an entry point of the group ``gradus.algorithms`` that names an :class:`Algorithm`. A setting of a run that is given
overrides the name's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, Protocol

from torch import Tensor

from gradus.algorithms.advantages import (
    Baseline,
    Scale,
    gdpo_advantages,
    group_advantages,
    maxrl_advantages,
    reinforce_pp_advantages,
    span_advantages,
)
from gradus.algorithms.losses import LOSSES, Average, PolicyLoss

Credit = Literal["episode", "turn", "span"]


@dataclass(frozen=True, kw_only=True)
class EpisodeRewards:
    """The rewards of N graded episodes. ``values`` (N,); ``groups`` (N,) integer names; ``lengths`` (N,) sampled tokens;
    ``components`` (N, C) unweighted, NaN where one does not apply, and ``weights`` (C,)."""

    values: Tensor
    groups: Tensor
    lengths: Tensor
    components: Tensor
    weights: Tensor


class EpisodeAdvantage(Protocol):
    """One advantage per episode, (N,)."""

    def __call__(self, rewards: EpisodeRewards, *, baseline: Baseline, scale: Scale) -> Tensor: ...


class TurnAdvantage(Protocol):
    """One advantage per turn and channel, (N, K, C), of rewards (N, K, C), numbers of turns (N,) and integer names of groups (N,).

    N graded episodes of at most K turns. Channel 0 counts for every token of a turn; credit by turn has this one alone.
    """

    def __call__(
        self, rewards: Tensor, lengths: Tensor, groups: Tensor, *, scale: Scale, discount: float
    ) -> Tensor: ...


def _group(rewards: EpisodeRewards, *, baseline: Baseline, scale: Scale) -> Tensor:
    return group_advantages(rewards.values, rewards.groups, baseline=baseline, scale=scale)


def _gdpo(rewards: EpisodeRewards, *, baseline: Baseline, scale: Scale) -> Tensor:
    return gdpo_advantages(rewards.components, rewards.weights, rewards.groups, baseline=baseline, scale=scale)


def _maxrl(rewards: EpisodeRewards, *, baseline: Baseline, scale: Scale) -> Tensor:
    del baseline, scale  # the formula has its own
    return maxrl_advantages(rewards.values, rewards.groups)


def _reinforce_pp(rewards: EpisodeRewards, *, baseline: Baseline, scale: Scale) -> Tensor:
    del baseline, scale
    return reinforce_pp_advantages(rewards.values, rewards.lengths)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One named algorithm.

    ``scale`` None: the advantage scales in its own way, so a run cannot set it. ``credit`` None: what the grader supports
    (by turn if it has terms per turn). ``credits``: those that a run may choose. ``clip``: low and high, None for a loss that
    does not clip. ``advantage`` is used with credit by episode, ``turn_advantage`` by turn and by span. ``average``: how the loss averages its tokens, so that the KL term is averaged
    in the same way. If over sequences, each of several that an episode is cut into at its restarts weighs as much as its share of
    the episode's tokens (by ``weights``).
    """

    loss: PolicyLoss
    source: str
    scale: Scale | None
    clip: tuple[float, float] | None
    credit: Credit | None = "episode"
    credits: tuple[Credit, ...] = ("episode", "turn", "span")
    baseline: Baseline = "mean"
    advantage: EpisodeAdvantage = _group
    turn_advantage: TurnAdvantage = span_advantages
    average: Average = "tokens"
    dynamic_sampling: int = 0  # rounds that replace zero-variance groups, if the run does not say
    without: str = ""  # what the source has besides, and where it is here; a run prints it


_EPISODE_ONLY: tuple[Credit, ...] = ("episode",)

_ALGORITHMS: dict[str, Algorithm] = {
    "gradus": Algorithm(
        loss=LOSSES["dapo"],
        source="DAPO's loss and clip, one scale for the batch, credit as fine as the grader supports",
        scale="batch",
        clip=(0.2, 0.28),
        credit=None,
    ),
    "grpo": Algorithm(
        loss=LOSSES["grpo"], source="arXiv 2402.03300", scale="group", clip=(0.2, 0.2), average="sequences"
    ),
    "dr_grpo": Algorithm(
        loss=LOSSES["dr_grpo"], source="arXiv 2503.20783", scale="none", clip=(0.2, 0.2), average="budget"
    ),
    # It samples until all groups differ, at most 10 rounds in verl.
    "dapo": Algorithm(
        loss=LOSSES["dapo"],
        source="arXiv 2503.14476",
        scale="group",
        clip=(0.2, 0.28),
        dynamic_sampling=10,
        without="without the paper's penalty for length: add the reward length",
    ),
    "gspo": Algorithm(
        loss=LOSSES["gspo"], source="arXiv 2507.18071", scale="group", clip=(3e-4, 4e-4), average="sequences"
    ),
    "cispo": Algorithm(loss=LOSSES["cispo"], source="arXiv 2506.13585", scale="group", clip=(1.0, 4.0)),
    "rloo": Algorithm(
        loss=LOSSES["rloo"], source="arXiv 2402.14740", scale="none", clip=None, baseline="leave_one_out"
    ),
    "reinforce++": Algorithm(
        loss=LOSSES["dapo"],
        source="arXiv 2501.03262",
        scale=None,
        clip=(0.2, 0.2),
        credits=_EPISODE_ONLY,
        advantage=_reinforce_pp,
    ),
    "gdpo": Algorithm(
        loss=LOSSES["dapo"],
        source="arXiv 2601.05242",
        scale="group",
        clip=(0.2, 0.28),
        credits=_EPISODE_ONLY,
        advantage=_gdpo,
    ),
    "maxrl": Algorithm(
        loss=LOSSES["dapo"],
        source="arXiv 2602.02710",
        scale=None,
        clip=(0.2, 0.28),
        credits=_EPISODE_ONLY,
        advantage=_maxrl,
    ),
}


@cache
def _installed() -> dict[str, EntryPoint]:
    """Returns what other packages bring, not yet imported."""
    return {entry.name: entry for entry in entry_points(group="gradus.algorithms")}


def algorithm_names() -> list[str]:
    """All names: Gradus's own, then those of other packages."""
    return list(dict.fromkeys([*_ALGORITHMS, *_installed()]))


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of this name. Raises ValueError for one that does not exist."""
    if name in _ALGORITHMS:
        return _ALGORITHMS[name]
    entry = _installed().get(name)
    if entry is None:
        raise ValueError(
            f"unknown algorithm {name!r}; there are {', '.join(algorithm_names())}; "
            "your own is FILE.py:NAME or module:NAME"
        )
    algorithm = entry.load()
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"the entry point {name!r} of gradus.algorithms is a {type(algorithm).__name__}; expected an Algorithm"
        )
    return algorithm
