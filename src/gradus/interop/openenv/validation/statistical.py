"""The statistical checks of RFC 008, which OpenEnv leaves to operators: the audit of Gradus, held against the package's own oracle."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradus.auditing import AuditResult, Check, run_audit, run_text_audit
from gradus.auditing.panel import blind_answers
from gradus.auditing.signal import check_signal
from gradus.auditing.text.checks import EXPLOITABLE
from gradus.core import (
    Action,
    AuditHints,
    Condition,
    ConfigError,
    EnvironmentSpec,
    EpisodeStart,
    Observation,
    Policy,
    Request,
    Task,
)
from gradus.interop.openenv.client import load
from gradus.interop.openenv.remote_session import OpenEnvClient, Server
from gradus.interop.openenv.validation.semantic import Finding, Package, verifier_determinism
from gradus.interop.openenv.validation.trajectories import Trajectory
from gradus.interop.openenv.wire import dumps
from gradus.rollouts import roll_out
from gradus.stats import mean_interval

STATISTICAL = tuple(
    f"statistical.{name}"
    for name in (
        "adversarial_floor",
        "gameability_gap",
        "difficulty_separation",
        "training_signal",
        "variance_bound",
        "reward_reachability",
        "headroom",
    )
)
_LEAST_TASKS = 8  # with fewer, an answer by heart is a good part of all answers
_GENEROUS = 0.5  # of the way from the floor to the oracle: more may nobody earn who does not read
_LEAST = 0.1
_SIGNAL = 24  # tasks of the forecast
_SECONDS = 120.0  # of all answers that are asked of a server
_SESSIONS = 16  # at once: as many as a group of the forecast has members
_CLOSE = "close what pays, and ship it as a canary"


def statistical(
    package: Package, *, seed: int = 0, budget: int = 4000, policy: Policy | None = None
) -> dict[str, Finding]:
    """Every statistical check. ``policy``: whose reach and headroom are measured. Without enough oracle episodes all are skipped."""
    try:
        spec = oracle_spec(package)
        return _measured(package, spec, seed=seed, budget=budget, policy=policy)
    except ConfigError as error:  # too few oracle episodes, or too few sessions at once
        return {name: Finding(status="skip", evidence=[str(error)]) for name in STATISTICAL}


def _measured(
    package: Package, spec: EnvironmentSpec, *, seed: int, budget: int, policy: Policy | None
) -> dict[str, Finding]:
    grader = spec.grader()
    tasks = len(spec.tasks("oracle"))
    floor = max(package.floors, default=0.0)
    top = min((each.last for each in package.solved if each.last is not None), default=package.top)
    text = run_text_audit(spec, grader, episodes=tasks, seed=seed, limit=_SECONDS)
    if text is not None:
        ladder = next(check for check in text.checks if check.name == "gold")
        draw = blind_answers(spec, seed=seed)
        signal = check_signal(spec, grader, None, draw, tasks=min(_SIGNAL, tasks), seed=seed)
        adversarial = _by_answers(text)
    else:
        audit = run_audit(spec, grader, episodes=tasks, budget=budget, seed=seed, signal_tasks=min(_SIGNAL, tasks))
        ladder, signal = (next(check for check in audit.checks if check.name == n) for n in ("separation", "signal"))
        adversarial = _by_plans(audit, floor, top)
    findings = {
        "statistical.adversarial_floor": adversarial,
        "statistical.gameability_gap": _gameability(text),
        "statistical.difficulty_separation": _from_check(ladder),
        "statistical.training_signal": _from_check(signal),
        "statistical.variance_bound": _variance(package, signal),
    }
    return findings | _by_policy(spec, policy, floor, top, seed)


def oracle_spec(package: Package) -> EnvironmentSpec:
    """The package's server as an environment whose tasks and teacher are the oracle's. Raises ConfigError for too few of them."""
    known = {seed: each for each in package.oracle if (seed := each.seed) is not None and each.actions}
    if len(known) < _LEAST_TASKS:
        raise ConfigError(
            f"at least {_LEAST_TASKS} oracle episodes with seeds and actions are needed, got {len(known)}"
        )
    spec, server = load(package.url), package.server
    answers = [[_text(server, action) for action in each.actions] for each in known.values()]
    pool = sorted({answer for each in answers for answer in each})
    by_seed = dict(zip(known, answers, strict=True))
    seeds = list(known)
    options = {seed: _options(each) for seed, each in known.items()}
    return replace(
        spec,
        make=lambda: _Fresh(server, options),
        conditions={"oracle": Condition(name="oracle", seeds=seeds)},
        train_task=lambda index: Task(environment=spec.name, seed=seeds[index % len(seeds)]),
        policies={**spec.policies, "oracle": lambda argument: _Oracle(by_seed)},
        teacher="oracle",
        max_turns=max(len(each) for each in answers),
        max_sessions=min(spec.max_sessions or _SESSIONS, _SESSIONS),
        audit=AuditHints(gold="oracle", random_answers=lambda drawn: random.Random(drawn).choice(pool)),
    )


def _options(trajectory: Trajectory) -> dict[str, Any]:
    return {k: v for k, v in trajectory.reset.items() if k not in ("seed", "episode_id", "injected_state")}


def _text(server: Server, action: Mapping[str, Any]) -> str:
    """An action as a policy would answer it."""
    return str(action.get(server.field, "")) if server.field is not None else dumps(dict(action))


class _Fresh:
    """A session of its own for each episode, so that it also works in a forked process.

    ``options``: what the oracle's reset says besides its seed. A condition has one set of options for all of its seeds.
    """

    def __init__(self, server: Server, options: Mapping[int, Mapping[str, Any]]) -> None:
        self._server, self._options = server, options
        self._client, self._process = OpenEnvClient(server), os.getpid()

    @property
    def system_prompt(self) -> str:
        return self._client.system_prompt

    @property
    def state(self) -> Mapping[str, Any]:
        return self._client.state

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        if self._process == os.getpid():  # the connection of another process is that process's to close
            self._client.close()
        self._client, self._process = OpenEnvClient(self._server), os.getpid()
        own = {} if seed is None else self._options.get(seed, {})
        return self._client.reset(seed=seed, episode_id=episode_id, **{**own, **options})

    def step(self, action: str) -> Observation:
        seen = self._client.step(action)
        if seen.terminated or seen.truncated:
            self._client.close()
        return seen

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, kw_only=True)
class _Session:
    answers: Sequence[Sequence[str]]
    turns: list[int]

    def act(self, requests: Sequence[Request]) -> list[Action]:
        actions: list[Action] = []
        for request in requests:
            said = self.answers[request.row]
            actions.append(Action(text=said[min(self.turns[request.row], len(said) - 1)]))
            self.turns[request.row] += 1
        return actions

    def close(self) -> None:
        pass


class _Oracle:
    """Says what the package's oracle says for the task's seed."""

    name = "oracle"

    def __init__(self, by_seed: Mapping[int, Sequence[str]]) -> None:
        self._by_seed = by_seed

    def start(self, episodes: Sequence[EpisodeStart]) -> _Session:
        return _Session(answers=[self._by_seed[each.task.seed] for each in episodes], turns=[0] * len(episodes))


def _by_plans(audit: AuditResult, floor: float, top: float) -> Finding:
    """Nobody who does not do the task earns more than half of the way from the floor to the oracle."""
    limit = floor + _GENEROUS * (top - floor)
    tried = [each for each in audit.points if each.role in ("exploit", "search")]
    best = max(tried, key=lambda each: each.reward.mean if each.reward.mean is not None else float("-inf"))
    low = best.reward.low if best.reward.low is not None else best.reward.mean
    measured = {"best": best.policy, "reward": best.reward.mean, "low": low, "limit": limit, "floor": floor}
    evidence = [
        f"the best of {len(tried)} simple plans, {best.policy!r}, earns {best.reward.mean}; {limit:g} is the limit"
    ]
    if low is not None and low > limit:
        return Finding(status="fail", measured=measured, evidence=evidence, remediation=_CLOSE)
    return Finding(status="pass", measured=measured, evidence=evidence)


def _by_answers(text: AuditResult) -> Finding:
    """No probe of answers pays: blind, copied, evolved, wrong or hostile ones."""
    judged = [each for each in text.checks if each.name in EXPLOITABLE]
    bad, unsure = ([each for each in judged if each.status == status] for status in ("fail", "unresolved"))
    measured = {
        "checks": {each.name: each.status for each in judged},
        "exploit": dict(text.exploit) if text.exploit else None,
    }
    evidence = [f"{each.name}: {each.evidence}" for each in bad or unsure] or ["no answer without the task pays"]
    if bad:
        return Finding(status="fail", measured=measured, evidence=evidence, remediation=_CLOSE)
    return Finding(status="skip" if unsure else "pass", measured=measured, evidence=evidence)


def _gameability(text: AuditResult | None) -> Finding:
    """Reward above what the share of right answers explains, for the best answer that does not do the task."""
    if text is None:
        return Finding(
            status="skip",
            evidence=[
                "the true reward of a multi-turn package is not known to an operator; audit it where it is declared"
            ],
        )
    rates = [each for check in text.checks for each in (check.measured.get("best") or []) if isinstance(each, Mapping)]
    if not rates:
        return Finding(status="skip", evidence=["no answer without the task could be made"])
    best = max(rates, key=lambda each: each["unearned"]["mean"] or 0.0)
    gap = best["unearned"]
    measured = {"operator": best["operator"], "gap": gap["mean"], "low": gap["low"], "high": gap["high"]}
    evidence = [f"{best['operator']} earns {gap['mean']:+.2f} of the range more than its right answers explain"]
    if (gap["low"] or 0.0) > _LEAST:
        return Finding(status="fail", measured=measured, evidence=evidence, remediation="pay for the answer alone")
    return Finding(status="pass", measured=measured, evidence=evidence)


def _from_check(check: Check) -> Finding:
    status = {"pass": "pass", "fail": "fail"}.get(check.status, "skip")
    remedy = None if status != "fail" else "see the evidence; `gradus audit` explains the check"
    return Finding(status=status, measured=dict(check.measured), evidence=[check.evidence], remediation=remedy)


def _variance(package: Package, signal: Check) -> Finding:
    """The noise of the reward for the same actions stays below what a group of different answers spreads."""
    noise = verifier_determinism(package).measured.get("largest_difference")
    reward_std = (signal.measured.get("forecast") or {}).get("8", {}).get("reward_std")
    measured = {"noise": noise, "reward_std": reward_std}
    if noise is None or reward_std is None:
        return Finding(status="skip", measured=measured, evidence=["noise or reward_std could not be measured"])
    evidence = [
        f"the same actions differ by up to {noise:g}; groups of 8 have a standard deviation of {reward_std:.3g}"
    ]
    good = noise <= max(package.variance_tolerance, 0.5 * reward_std)
    return Finding(
        status="pass" if good else "fail",
        measured=measured,
        evidence=evidence,
        remediation=None if good else "make the verifier less noisy",
    )


def _by_policy(spec: EnvironmentSpec, policy: Policy | None, floor: float, top: float, seed: int) -> dict[str, Finding]:
    names = ("statistical.reward_reachability", "statistical.headroom")
    if policy is None:
        return {name: Finding(status="skip", evidence=["no policy was given (--policy)"]) for name in names}
    episodes = roll_out(spec, policy, spec.tasks("oracle"), seed=seed, key=("openenv",), grader=spec.grader()).episodes
    rewards = [e.reward.value if e.reward else None for e in episodes]
    reached = [v for v in rewards if v is not None and v > floor + _LEAST * (top - floor)]
    mean = mean_interval(rewards)
    told = f"{policy.name} earns above the floor on {len(reached)} of {len(rewards)} tasks, {mean.mean} on average; the oracle earns {top:g}"
    room = mean.mean is not None and top - mean.mean >= _LEAST * (top - floor)
    measured = {"policy": policy.name, "reached": len(reached), "tasks": len(rewards), "mean": mean.mean, "oracle": top}
    return {
        names[0]: Finding(status="pass" if reached else "fail", measured=measured, evidence=[told]),
        names[1]: Finding(status="pass" if room else "fail", measured=measured, evidence=[told]),
    }
