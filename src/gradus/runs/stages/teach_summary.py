"""What a teacher's episodes came to: counts, reward, tokens and money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

from gradus.core import Episode, Grader, Policy, StopReason
from gradus.stats import format_money, format_number

if TYPE_CHECKING:
    from gradus.policies.remote.client import RemoteUsage


@dataclass(frozen=True, kw_only=True)
class TeachSummary:
    """What a teacher did and what it cost. ``reward_mean`` is None if nothing could be graded.

    ``stored``: episodes in the file; more than ``episodes`` if an earlier call asked for more.

    Tokens and ``cost`` are those of the stored episodes; ``spent`` is what this call used, in words, failed and repeated calls too.
    """

    policy: str
    episodes: int
    stored: int
    rolled_out: int
    failed: int
    reward_mean: float | None
    grader: str
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    reason: str | None = None  # of the first failure, or of the first grader's error
    spent: str = ""

    def sentence(self, path: Path) -> str:
        """One line for a person."""
        tokens = self.prompt_tokens + self.completion_tokens
        money = (f", {tokens:,} tokens" if tokens else "") + (
            "" if self.cost is None else f", {format_money(self.cost)}"
        )
        money += f"; spent now, failed calls too: {self.spent}" if self.spent else ""
        reason = "" if self.reason is None else f"; the first failure: {self.reason}"
        count = f"{self.episodes}" if self.stored == self.episodes else f"{self.episodes} of the {self.stored}"
        return (
            f"{self.policy}: {count} episodes in {path} ({self.rolled_out} rolled out now, {self.failed} failed), "
            f"reward {self.grader} {format_number(self.reward_mean)}, {self.seconds:.1f} s{money}{reason}"
        )


@dataclass
class Tally:
    """What a summary needs of the episodes: they are too large to be kept for it."""

    episodes: int = 0
    failed: int = 0
    reason: str | None = None
    rewards: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    costs: list[float] = field(default_factory=list)
    priced: bool = True

    def count(self, episodes: Sequence[Episode]) -> int:
        """Add episodes; returns how many there are now."""
        for episode in episodes:
            self.episodes += 1
            failed = episode.stop is StopReason.FAILED  # what a limit cut is graded, and learned from
            self.failed += failed
            if failed and episode.failure is not None and self.reason is None:
                self.reason = episode.failure.message
            if episode.reward is not None and episode.reward.value is not None:
                self.rewards.append(episode.reward.value)
            elif episode.reward is not None and self.reason is None:
                self.reason = episode.reward.error
            for usage in (turn.usage for turn in episode.turns if turn.usage is not None):
                self.prompt_tokens += usage.prompt_tokens
                self.completion_tokens += usage.completion_tokens
                if usage.cost is None:
                    self.priced = False
                else:
                    self.costs.append(usage.cost)
        return self.episodes

    def summary(self, policy: Policy, beyond: int, rolled_out: int, grader: Grader, seconds: float) -> TeachSummary:
        """The cost is None if a single answer's is not known. ``beyond``: stored episodes that were not counted."""
        return TeachSummary(
            policy=policy.name,
            episodes=self.episodes,
            stored=self.episodes + beyond,
            rolled_out=rolled_out,
            failed=self.failed,
            reward_mean=fsum(self.rewards) / len(self.rewards) if self.rewards else None,
            grader=grader.name,
            seconds=seconds,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost=fsum(self.costs) if self.costs and self.priced else None,
            reason=self.reason,
            spent=spent(policy),
        )


def spent(policy: Policy) -> str:
    """What a policy behind an API has used so far, failed and repeated calls too, in words; empty for any other."""
    usage: RemoteUsage | None = getattr(policy, "usage", None)
    if usage is None:
        return ""
    unknown = f" and {usage.unmetered} replies without a count" if usage.unmetered else ""
    dollars = "" if usage.cost is None else f", {format_money(usage.cost)}"
    return f"{usage.prompt_tokens + usage.completion_tokens:,} tokens{unknown}{dollars}"
