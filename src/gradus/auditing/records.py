"""The findings of an audit, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isclose
from typing import Literal

from gradus.core import Episode, Panel
from gradus.core.findings import Finding, Status
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.stats import Interval, Paired, format_interval, mean_interval

Kind = Literal["exploit", "lenient", "strict", "open"]
ACCEPTED_FILE = "gradus-audit.toml"  # beside the rows: findings that the author lives with
ENOUGH = 8  # tasks that all gave one number: taken for what the grader does
LEAST_EFFECT = 0.1  # of what gold earns above the floor: the least difference that a verdict may hang on

# The words of `gradus audit --json` for the scale that all findings share.
STATUS_WORDS: Mapping[Status, str] = {
    "pass": "pass",
    "note": "skip",
    "open": "unresolved",
    "fail": "fail",
}


@frozen_record
class GradedCompletion:
    """A completion that shows what a grader does.

    ``kind``: ``exploit`` if it pays without the right answer (its check fails), ``lenient`` if it pays for words around a right answer
    that one must know already, ``strict`` if it refuses a form of the right answer, ``open`` if the rows do not say whether it is right.
    """

    kind: Kind
    what: str
    task: str
    completion: str  # the exact text that was graded
    gold: str
    reward: float | None  # what it earned when it was asked again
    share: str
    change: str  # what to change if the author wants it otherwise
    command: str  # the line that scores it again, empty if the grader has no name that a line can give


@frozen_record
class AuditCheck(Finding):
    """One question about a grader and its answer.

    ``open``: the interval spans the least effect, or something must be declared first; the evidence says what would settle it.
    ``note``: the question does not arise here, and the evidence says why.
    """

    measured: Json = field(default_factory=JsonDict)  # the figures behind the sentence
    notes: Sequence[GradedCompletion] = ()  # completions that show it; only an exploit decides the status
    review: Sequence[Json] = ()  # accepted answers that no rule settles, for a person to judge


@frozen_record
class Point:
    """A policy in the plane of reward against true reward. ``role``: ladder, reflex, exploit, or search."""

    policy: str
    role: str
    reward: Interval
    true_reward: Interval


def is_own_aim(episodes: Sequence[Episode]) -> bool:
    """Says if the reward of every episode is its true reward, as far as both are known: then there is nothing to hold the reward against."""
    pairs = zip(rewards_of(episodes), true_rewards_of(episodes), strict=True)
    return all(aim is None or reward is None or isclose(reward, aim) for reward, aim in pairs)


def rewards_of(episodes: Sequence[Episode]) -> list[float | None]:
    """The reward of each episode, None if it has none."""
    return [episode.reward_value for episode in episodes]


def true_rewards_of(episodes: Sequence[Episode]) -> list[float | None]:
    """The true reward of each episode, None if nobody knows it."""
    return [episode.metrics.get("true_reward") for episode in episodes]


def components_of(episodes: Sequence[Episode], name: str) -> list[float | None]:
    """One component of the reward of each episode, None if it has none."""
    return [episode.reward.components.get(name) if episode.reward else None for episode in episodes]


@frozen_record
class PanelEpisodes(Panel):
    """A panel with the episodes of every policy on the same tasks."""

    condition: str
    episodes: Mapping[str, Sequence[Episode]]

    def role(self, name: str) -> str:
        """The most telling of the roles of ``name``."""
        if name in self.exploits:
            return "exploit"
        if name in self.reflexes:
            return "reflex"
        return "ladder"

    def rewards(self, name: str) -> list[float | None]:
        """The rewards of a policy."""
        return rewards_of(self.episodes[name])

    def true_rewards(self, name: str) -> list[float | None]:
        """The true rewards of a policy."""
        return true_rewards_of(self.episodes[name])

    @property
    def flat(self) -> list[Episode]:
        """All episodes, one policy after another."""
        return [episode for episodes in self.episodes.values() for episode in episodes]

    @property
    def is_graded(self) -> bool:
        """Some episode got a reward."""
        return any(reward is not None for reward in rewards_of(self.flat))

    @property
    def knows_aim(self) -> bool:
        """The true reward of some episode is known."""
        return any(aim is not None for aim in true_rewards_of(self.flat))

    @property
    def tasks(self) -> int:
        """Number of tasks that every policy was rolled out on."""
        return len(next(iter(self.episodes.values())))

    def least_effect(self) -> float:
        """The least effect in units of the reward: a share of what the ladder's best policy earns above its worst."""
        # Exploits are left out: one that earns most would make every other difference small.
        means = (mean_interval(self.rewards(name)).mean for name in (*self.ladder, *self.reflexes))
        numbers = [mean for mean in means if mean is not None]
        if numbers:
            return LEAST_EFFECT * (max(numbers) - min(numbers))
        return 0.0


def low_of(figure: Interval | Paired) -> float | None:
    """The lower bound; the mean itself if at least eight tasks gave the same number."""
    if figure.low is not None or figure.n < ENOUGH:
        return figure.low
    return figure.mean


def high_of(figure: Interval | Paired) -> float | None:
    """The upper bound; see :func:`low_of`."""
    if figure.high is not None or figure.n < ENOUGH:
        return figure.high
    return figure.mean


def is_above(figure: Interval | Paired, limit: float) -> bool:
    """Returns True if the lower bound of a figure lies above a limit that is not negative; an unknown bound does not."""
    return (low_of(figure) or 0.0) > limit


def signed(figure: Paired | Interval, digits: int = 3) -> str:
    """A difference with its interval, as it stands in a sentence."""
    if figure.mean is None:
        return "an unknown part"
    return format_interval(figure, signed=True, digits=digits)


def shortened(text: str) -> str:
    """An error in one line of at most 300 characters: its beginning, and its end, where the place stands that raised it."""
    # A message may span many lines, as the page of a server in it.
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:195]}...{line[-100:]}"
