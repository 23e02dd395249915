"""What an audit finds out, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.core import Episode
from gradus.stats import Interval, Paired

__all__ = ["Check", "Hack", "PanelEpisodes", "Point"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One of the seven. ``passed`` is None where it could not be judged, which the evidence explains.

    ``details`` are the figures behind the sentence, JSON values.
    """

    name: str
    passed: bool | None
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A policy in the plane of reward against true reward. ``role``: ladder, reflex, exploit, given, or search."""

    policy: str
    role: str
    reward: Interval
    true_reward: Interval


@dataclass(frozen=True, kw_only=True)
class PanelEpisodes:
    """The episodes of every policy on the same tasks, and which part each policy has in the audit.

    ``declared``: the environment named the parts itself; otherwise they were had for nothing.
    """

    condition: str
    episodes: Mapping[str, Sequence[Episode]]
    ladder: Sequence[str]
    reflexes: Sequence[str]
    exploits: Sequence[str]
    given: Sequence[str] = ()
    declared: bool = True

    def role(self, name: str) -> str:
        """The most telling of the roles of ``name``."""
        roles = (("exploit", self.exploits), ("reflex", self.reflexes), ("ladder", self.ladder))
        return next((role for role, names in roles if name in names), "given")

    def rewards(self, name: str) -> list[float | None]:
        return [episode.reward.value if episode.reward else None for episode in self.episodes[name]]

    def true_rewards(self, name: str) -> list[float | None]:
        return [episode.metrics.get("true_reward") for episode in self.episodes[name]]


@dataclass(frozen=True, kw_only=True)
class Hack:
    """A plan that the grader prefers to the best honest reflex while the true reward falls.

    ``episode`` and ``reflex_episode`` are of the same task: the one where the two differ most plainly.
    """

    plan: str
    shape: str
    reflex: str
    reward: Paired
    true_reward: Paired
    components: Mapping[str, float]
    episode: Episode
    reflex_episode: Episode
