"""The findings of an audit, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradus.core import Episode, Panel
from gradus.stats import Interval, Paired, format_interval, mean_interval

Status = Literal["pass", "fail", "unresolved", "skip"]
Kind = Literal["exploit", "lenient", "strict"]
ENOUGH = 8  # tasks that all gave one number: taken for what the grader does
LEAST_EFFECT = 0.1  # of what gold earns above the floor: the least difference that a verdict may hang on


@dataclass(frozen=True, kw_only=True)
class Note:
    """A completion that shows what a grader does.

    ``kind``: ``exploit`` if it pays without the right answer (its check fails), ``lenient`` if it pays for words around a right answer that one must
    know already, ``strict`` if it refuses a form of the right answer. ``completion``: the exact text that was graded. ``reward``: what it
    earned when it was asked again. ``change``: what to change if the author wants it otherwise. ``command``: the line that scores it again,
    empty if the grader has no name that a line can give.
    """

    kind: Kind
    what: str
    task: str
    completion: str
    gold: str
    reward: float | None
    share: str
    change: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about a grader and its answer.

    ``unresolved``: the interval spans the least effect, or something must be declared first; the evidence says what would settle it.
    ``skip``: the question does not arise here, and the evidence says why. ``measured``: the figures behind the sentence, JSON values.
    ``notes``: completions that show it; those that are lenient or strict do not decide the status. ``review``: accepted answers that no rule
    settles, for a person to judge.
    """

    name: str
    status: Status
    evidence: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    review: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    """A policy in the plane of reward against true reward. ``role``: ladder, reflex, exploit, or search."""

    policy: str
    role: str
    reward: Interval
    true_reward: Interval


def rewards_of(episodes: Sequence[Episode]) -> list[float | None]:
    """The reward of each episode, None if it has none."""
    return [episode.reward.value if episode.reward else None for episode in episodes]


def true_rewards_of(episodes: Sequence[Episode]) -> list[float | None]:
    """The true reward of each episode, None if nobody knows it."""
    return [episode.metrics.get("true_reward") for episode in episodes]


def components_of(episodes: Sequence[Episode], name: str) -> list[float | None]:
    """One component of the reward of each episode, None if it has none."""
    return [episode.reward.components.get(name) if episode.reward else None for episode in episodes]


@dataclass(frozen=True, kw_only=True)
class PanelEpisodes(Panel):
    """A panel with the episodes of every policy on the same tasks."""

    condition: str
    episodes: Mapping[str, Sequence[Episode]]

    def role(self, name: str) -> str:
        """The most telling of the roles of ``name``."""
        return "exploit" if name in self.exploits else "reflex" if name in self.reflexes else "ladder"

    def rewards(self, name: str) -> list[float | None]:
        return rewards_of(self.episodes[name])

    @property
    def is_graded(self) -> bool:
        """Some episode got a reward."""
        return any(reward is not None for name in self.episodes for reward in self.rewards(name))

    @property
    def knows_aim(self) -> bool:
        """The true reward of some episode is known."""
        return any(aim is not None for name in self.episodes for aim in self.true_rewards(name))

    @property
    def tasks(self) -> int:
        """Number of tasks that every policy was rolled out on."""
        return len(next(iter(self.episodes.values())))

    def true_rewards(self, name: str) -> list[float | None]:
        return true_rewards_of(self.episodes[name])

    def least_effect(self) -> float:
        """The least effect in units of the reward: a share of what the ladder's best policy earns above its worst."""
        means = [mean_interval(self.rewards(name)).mean for name in (*self.ladder, *self.reflexes)]
        known = [mean for mean in means if mean is not None]
        return LEAST_EFFECT * (max(known) - min(known)) if known else 0.0


def low_of(figure: Interval | Paired) -> float | None:
    """The lower bound; the mean itself if at least eight tasks gave the same number."""
    return figure.low if figure.low is not None or figure.n < ENOUGH else figure.mean


def high_of(figure: Interval | Paired) -> float | None:
    """The upper bound; see :func:`low_of`."""
    return figure.high if figure.high is not None or figure.n < ENOUGH else figure.mean


def signed(figure: Paired | Interval, digits: int = 3) -> str:
    """A difference with its interval, as it stands in a sentence."""
    return "an unknown part" if figure.mean is None else format_interval(figure, signed=True, digits=digits)
