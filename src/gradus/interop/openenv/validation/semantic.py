"""The semantic checks of RFC 008, measured on a running server: what each returns is a status, figures and sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gradus.auditing.leaks import told_at
from gradus.core import ConfigError
from gradus.interop.openenv.client import describe
from gradus.interop.openenv.remote_session import Server
from gradus.interop.openenv.validation.trajectories import (
    Execute,
    Replayed,
    Trajectory,
    do_nothing,
    read_oracle,
    read_trajectories,
    replay,
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``status``: pass, fail, skip or error, as in OpenEnv's reports."""

    status: str
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evidence: Sequence[str] = ()
    remediation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package whose server runs at ``url``. ``manifest``: OpenEnv's normalized manifest, as plain data."""

    root: Path
    manifest: Mapping[str, Any]
    url: str
    execute: Execute | None = None

    @cached_property
    def server(self) -> Server:
        return describe(self.url)[0]

    @cached_property
    def oracle(self) -> list[Trajectory]:
        """The oracle's episodes. Raises ConfigError if there are none that can be read."""
        declared = self.manifest["capabilities"].get("oracle")
        if not declared:
            raise ConfigError("the package declares no oracle")
        return read_oracle(self.root, str(declared["form"]), str(declared["location"]), self.execute)

    @cached_property
    def canaries(self) -> list[Trajectory]:
        """The stored hacks that the package ships."""
        location = self.manifest["capabilities"].get("canaries")
        return read_trajectories(self.root / location) if location else []

    @cached_property
    def solved(self) -> list[Replayed]:
        """The oracle's episodes, replayed once."""
        return [replay(self.server, each) for each in self.oracle]

    @cached_property
    def floors(self) -> list[float]:
        """What doing nothing earns, for every task of the oracle."""
        values = [do_nothing(self.server, each.reset) for each in self.unsolved]
        return [value for value in values if value is not None]

    @property
    def unsolved(self) -> list[Trajectory]:
        """The oracle's tasks without its state and its actions."""
        return [
            Trajectory(reset={k: v for k, v in each.reset.items() if k != "injected_state"}) for each in self.oracle
        ]

    @property
    def top(self) -> float:
        return float(self.manifest["reward"]["range"][1])

    @property
    def variance_tolerance(self) -> float:
        """How far two rewards of the same episode may differ."""
        judged = self.manifest["capabilities"].get("llm_judged")
        return float(self.manifest["reward"].get("variance_tolerance") or 0.0) if judged else 1e-9

    def stored(self) -> list[Trajectory]:
        """Everything that is stored, to be replayed."""
        return [*self.oracle, *self.canaries]


def oracle_max(package: Package) -> Finding:
    """The oracle earns the top of the declared range, on every task that it solves."""
    try:
        solved = package.solved
    except ConfigError as error:
        remedy = (
            "declare capabilities.oracle: stored actions, a state to inject, or a script that earns the full reward"
        )
        return Finding(status="fail", evidence=[str(error)], remediation=remedy)
    tolerance = float(package.manifest["reward"].get("oracle_tolerance", 0.0))
    rewards = [each.last for each in solved]
    short = [i for i, value in enumerate(rewards) if value is None or value < package.top - tolerance - 1e-9]
    measured = {"oracle_rewards": rewards, "max": package.top, "declared_tolerance": tolerance}
    if short:
        i = short[0]
        told = f"{len(short)} of {len(rewards)} oracle episodes end below {package.top:g} - {tolerance:g}, e.g. {rewards[i]} at {package.oracle[i].reset}"
        return Finding(
            status="fail",
            measured=measured,
            evidence=[told],
            remediation="mend the verifier or the oracle: a right solution must earn the maximum",
        )
    return Finding(
        status="pass", measured=measured, evidence=[f"{len(rewards)} oracle episodes end with the full reward"]
    )


def floor_gap(package: Package) -> Finding:
    """Doing nothing stays a margin below what the oracle earns."""
    margin = float(package.manifest["reward"]["floor_margin"])
    try:
        solved, floors = package.solved, package.floors
    except ConfigError as error:
        return Finding(
            status="fail", evidence=[str(error)], remediation="declare an oracle: the gap is measured from it"
        )
    if not floors:
        return Finding(status="skip", evidence=["the server gives no reward for a reset or an empty action"])
    known = [each.last for each in solved if each.last is not None]
    oracle, floor = min(known, default=package.top), max(floors)
    measured = {"oracle_reward": oracle, "measured_floor": floor, "declared_margin": margin}
    told = f"doing nothing earns up to {floor:g} and the oracle {oracle:g}: the gap is {oracle - floor:g}, the declared margin {margin:g}"
    if oracle - floor < margin - 1e-9:
        remedy = "the verifier pays without any work; look for conditions that an empty result meets"
        return Finding(status="fail", measured=measured, evidence=[told], remediation=remedy)
    return Finding(status="pass", measured=measured, evidence=[told])


def canary_floor(package: Package) -> Finding:
    """The stored hacks that the package ships earn no more than doing nothing, up to the margin."""
    canaries = package.canaries
    if not canaries:
        return Finding(status="skip", evidence=["the package ships no canaries"])
    try:
        floor = max(package.floors, default=float(package.manifest["reward"]["range"][0]))
    except ConfigError:
        floor = max((do_nothing(package.server, each.reset) or 0.0 for each in canaries), default=0.0)
    limit = package.top - float(package.manifest["reward"]["floor_margin"])
    earned = [replay(package.server, each).best for each in canaries]
    best = [i for i, value in enumerate(earned) if value is not None and value > max(floor, limit - 1e-9)]
    measured = {"canary_rewards": earned, "measured_floor": floor, "limit": limit}
    if best:
        told = [
            f"canary {i} earns {earned[i]:g}, more than {max(floor, limit):g}: {json.dumps(list(canaries[i].actions))[:200]}"
            for i in best[:5]
        ]
        return Finding(
            status="fail",
            measured=measured,
            evidence=told,
            remediation="a stored hack pays again; close it and keep the canary",
        )
    return Finding(status="pass", measured=measured, evidence=[f"none of {len(canaries)} stored hacks pays"])


def no_solution_leakage(package: Package) -> Finding:
    """No place of what is shown before the first action holds the oracle's own answer, task after task."""
    try:
        oracle = [each for each in package.oracle if each.actions]
    except ConfigError as error:
        return Finding(status="skip", evidence=[str(error)])
    values = [list(_answers(each.actions)) for each in oracle]
    if len({json.dumps(each) for each in values}) < 2:
        return Finding(
            status="skip", evidence=["two oracle episodes with different actions are needed to tell a leak from chance"]
        )
    shown = [replay(package.server, Trajectory(reset=each.reset)) for each in oracle]
    texts = [_flat({"text": p.observations[0].text, "data": p.observations[0].data, "state": p.state}) for p in shown]
    place = told_at(texts, values)
    measured = {"tasks": len(oracle)}
    if place is not None:
        told = f"what is shown before the first action holds the oracle's answer{place}, e.g. {values[0][0]!r}"
        return Finding(
            status="fail",
            measured=measured,
            evidence=[told],
            remediation="take it out of observations and public state",
        )
    return Finding(status="pass", measured=measured, evidence=[f"no place shows the answers of {len(oracle)} tasks"])


def verifier_determinism(package: Package) -> Finding:
    """The same actions earn the same, twice and beside others."""
    try:
        stored = package.stored()
        first = [*package.solved, *(replay(package.server, each) for each in package.canaries)]
    except ConfigError as error:
        return Finding(status="skip", evidence=[str(error)])
    again = [replay(package.server, each) for each in reversed(stored)][::-1]
    gaps = [_gap(a.rewards, b.rewards) for a, b in zip(first, again, strict=True)]
    worst = max(range(len(gaps)), key=lambda i: gaps[i], default=0)
    measured = {
        "episodes": len(gaps),
        "largest_difference": max(gaps, default=0.0),
        "allowed": package.variance_tolerance,
    }
    if any(gap > package.variance_tolerance for gap in gaps):
        told = f"episode {worst} earns {first[worst].rewards} and, replayed, {again[worst].rewards}"
        remedy = "the reward may depend on the actions and the seed alone"
        return Finding(status="fail", measured=_finite(measured), evidence=[told], remediation=remedy)
    return Finding(
        status="pass",
        measured=measured,
        evidence=[f"{len(gaps)} stored episodes earn the same when they are replayed"],
    )


def replayability(package: Package) -> Finding:
    """A stored episode, replayed, shows the same observations, rewards and end."""
    try:
        stored, first = package.oracle, package.solved
    except ConfigError as error:
        return Finding(status="skip", evidence=[str(error)])
    for index, (trajectory, before) in enumerate(zip(stored, first, strict=True)):
        after = replay(package.server, trajectory).transcript()
        turn = next(
            (
                i
                for i, (a, b) in enumerate(zip(before.transcript(), after, strict=False))
                if a[:2] != b[:2] or a[3] != b[3]
            ),
            None,
        )
        if turn is not None or len(after) != len(before.observations):
            told = f"episode {index} differs at turn {turn} when it is replayed with the same seed and actions"
            remedy = "take everything that changes an episode from its seed"
            return Finding(status="fail", measured={"episodes": len(stored)}, evidence=[told], remediation=remedy)
    return Finding(
        status="pass", measured={"episodes": len(stored)}, evidence=[f"{len(stored)} episodes can be replayed"]
    )


SEMANTIC = {
    f"semantic.{check.__name__}": check
    for check in (oracle_max, floor_gap, canary_floor, no_solution_leakage, verifier_determinism, replayability)
}


def _answers(actions: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The texts and numbers of the actions."""
    leaves = [leaf for action in actions for leaf in _leaves(action)]
    return [
        each
        for each in leaves
        if isinstance(each, str | int | float) and not isinstance(each, bool) and str(each).strip()
    ]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, list) else [value]


def _flat(value: Any, name: str = "") -> str:
    """Everything that is shown as words after the names of their places."""
    if isinstance(value, Mapping):
        return "\n".join(_flat(inner, f"{name}.{key}" if name else str(key)) for key, inner in value.items())
    return f"{name}= {value}"


def _gap(a: Sequence[float], b: Sequence[float]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=False)), default=0.0) if len(a) == len(b) else float("inf")


def _finite(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if v == float("inf") else v for k, v in measured.items()}
