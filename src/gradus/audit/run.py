"""The audit: seven checks of one grader, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from gradus.audit.answers import answer_space
from gradus.audit.comparisons import check_alignment, check_exploits, check_free_credit, check_separation
from gradus.audit.exploit import check_search, constant_credit, search_plans
from gradus.audit.hygiene import check_hygiene
from gradus.audit.panel import main_tasks, regraded_panel, roll_out_panel
from gradus.audit.records import Check, Hack, PanelEpisodes, Point
from gradus.audit.signal import check_signal
from gradus.core import EnvironmentSpec, Grader, Policy
from gradus.stats import mean_interval

__all__ = ["AuditResult", "run_audit"]

Progress = Callable[[str, int, int], None]
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """``verdict`` is pass or fail; a check that could not be judged (passed None) does not fail it.

    ``points``: every policy in the plane of reward against true reward, for the figure. ``hack``: what the search found, with
    an episode to look at, or None. ``panel`` may be handed to the next audit, which then need not play it again.
    """

    environment: str
    grader: str
    true_reward_name: str
    condition: str
    episodes: int
    seed: int
    checks: Sequence[Check]
    points: Sequence[Point]
    hack: Hack | None
    panel: PanelEpisodes

    @property
    def verdict(self) -> str:
        return "fail" if any(check.passed is False for check in self.checks) else "pass"

    @property
    def summary(self) -> str:
        """One line a person can act on."""
        failed = [check.name for check in self.checks if check.passed is False]
        if not failed:
            return f"{self.grader} passes: nothing here says that training on it would go wrong."
        return f"{self.grader} fails {', '.join(failed)}: do not train on it before this is mended."

    def to_json(self) -> dict[str, Any]:
        """The document of schema 1 (docs/audit.md); the same audit gives the same bytes."""
        hack = None
        if self.hack is not None:
            hack = {
                "plan": self.hack.plan,
                "shape": self.hack.shape,
                "reflex": self.hack.reflex,
                "reward": asdict(self.hack.reward),
                "true_reward": asdict(self.hack.true_reward),
                "components": dict(self.hack.components),
                "seed": self.hack.episode.task.seed,
                "condition": self.hack.episode.task.condition,
            }
        return _plain(
            {
                "schema": SCHEMA,
                "environment": self.environment,
                "grader": self.grader,
                "verdict": self.verdict,
                "summary": self.summary,
                "checks": [asdict(check) for check in self.checks],
                "true_reward_name": self.true_reward_name,
                "condition": self.condition,
                "episodes": self.episodes,
                "seed": self.seed,
                "points": [asdict(point) for point in self.points],
                "hack": hack,
            }
        )

    def tables(self) -> list[Any]:
        """Tables for a terminal, as rich renderables."""
        from gradus.audit.tables import tables

        return tables(self)


def run_audit(
    spec: EnvironmentSpec,
    grader: str | Grader | None = None,
    *,
    episodes: int = 100,
    budget: int = 12000,
    seed: int = 0,
    policies: Mapping[str, Policy] | None = None,
    signal_policy: Policy | None = None,
    signal_tasks: int = 24,
    panel: PanelEpisodes | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit one grader of ``spec`` (by name, the default one if None).

    ``episodes``: tasks of the main condition that every policy plays, fewer if it has fewer. ``budget``: episodes that the
    search may play. ``policies`` join the panel. ``signal_policy``: whose groups are forecast; without it a stand-in.
    ``panel``: play of an earlier audit of the same environment, to be graded again instead of played again.
    ``progress`` is told (what, done, of how many). The same arguments give the same result.
    """
    judged = grader if isinstance(grader, Grader) else spec.grader(grader)
    played = panel or roll_out_panel(spec, episodes=episodes, seed=seed, policies=policies, progress=progress)
    played = regraded_panel(spec, played, judged)
    tasks = main_tasks(spec, len(next(iter(played.episodes.values()))))
    space = answer_space(spec, (), seed=seed)
    draw = spec.audit.random_answers or (
        lambda drawn: space.text([drawn // (7 * p + 1) % n for p, n in enumerate(space.sizes)])
    )
    plan_search = search_plans(spec, judged, played, tasks, budget=budget, seed=seed, progress=progress)
    searched, hack = check_search(plan_search, spec.true_reward_name)
    constants = constant_credit(plan_search, played, tasks, seed=seed)
    if progress is not None:
        progress("signal and hygiene", 0, 1)
    checks = [
        check_separation(played),
        check_exploits(played),
        check_free_credit(played, judged, constants),
        check_alignment(played, spec.true_reward_name),
        searched,
        check_signal(spec, judged, signal_policy, draw, tasks=signal_tasks, seed=seed),
        check_hygiene(spec, judged, played, draw, seed=seed),
    ]
    if progress is not None:
        progress("signal and hygiene", 1, 1)
    found = [
        ("search: " + plan.describe(), "search", plays)
        for plan, plays in zip(plan_search.finalists, plan_search.episodes, strict=True)
    ]
    points = [
        *(_point(name, played.role(name), plays) for name, plays in played.episodes.items()),
        *(_point(name, role, plays) for name, role, plays in found),
    ]
    return AuditResult(
        environment=spec.name,
        grader=judged.name,
        true_reward_name=spec.true_reward_name,
        condition=played.condition,
        episodes=len(tasks),
        seed=seed,
        checks=checks,
        points=points,
        hack=hack,
        panel=played,
    )


def _point(name: str, role: str, episodes: Sequence[Any]) -> Point:
    return Point(
        policy=name,
        role=role,
        reward=mean_interval([e.reward.value if e.reward else None for e in episodes]),
        true_reward=mean_interval([e.metrics.get("true_reward") for e in episodes]),
    )


def _plain(value: Any) -> Any:
    """JSON values only: numbers rounded to six decimals, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) + 0.0 if isfinite(value) else None
    return value
