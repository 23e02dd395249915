"""The checks that compare policies of the panel: separation, exploits, free credit, alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradus.audit.panel import best_reflex
from gradus.audit.records import Check, PanelEpisodes
from gradus.core import Grader
from gradus.stats import Paired, mean_interval, paired_difference, spearman, spearman_within

__all__ = ["ALIGNMENT", "FREE", "check_alignment", "check_exploits", "check_free_credit", "check_separation"]

FREE = 0.5  # a constant answer may earn at most half of what skill earns above chance
ALIGNMENT = 0.7  # rank correlation of mean reward and mean true reward over policies
_NEGATIVE = -0.1  # within policies, reward and true reward may not run against each other


def check_separation(panel: PanelEpisodes) -> Check:
    """Every step of the ladder must raise the reward, its paired interval above 0."""
    steps = {f"{b} - {a}": _difference(panel, b, a) for a, b in pairwise(panel.ladder)}
    if not steps:
        return Check(
            name="separation",
            passed=None,
            evidence="not judged: a ladder of at least two policies is needed; declare a panel or a teacher",
        )
    flat = {name: step for name, step in steps.items() if not _above(step)}
    if flat:
        told = ", ".join(f"{name} {_signed(step)}" for name, step in flat.items())
        evidence = f"{len(flat)} of {len(steps)} steps of skill do not raise the reward: {told}"
    else:
        least = min(steps, key=lambda name: _mean(steps[name]))
        evidence = f"all {len(steps)} steps {' < '.join(panel.ladder)} raise the reward; the least is {least} {_signed(steps[least])}"
    return Check(
        name="separation", passed=not flat, evidence=evidence, details={n: _record(s) for n, s in steps.items()}
    )


def check_exploits(panel: PanelEpisodes) -> Check:
    """No degenerate policy may beat the best honest reflex.

    Where the panel was had for nothing the reflex is random play, which a constant may well beat by serving the true reward
    better; then only those count that do not.
    """
    reflex = best_reflex(panel)
    tried = {name: _difference(panel, name, reflex) for name in panel.exploits if name != reflex}
    if not tried:
        return Check(name="exploits", passed=None, evidence="not judged: the panel declares no exploits")
    winners = {
        name: found
        for name, found in tried.items()
        if _above(found) and (panel.declared or not _above(_difference(panel, name, reflex, of="true_reward")))
    }
    best = max(tried, key=lambda name: _mean(tried[name]))
    if winners:
        told = ", ".join(f"{name} {_signed(found)}" for name, found in winners.items())
        evidence = f"{len(winners)} of {len(tried)} degenerate policies beat the best honest reflex, {reflex}: {told}"
    else:
        evidence = (
            f"none of {len(tried)} degenerate policies beats {reflex}; the nearest is {best} {_signed(tried[best])}"
        )
    return Check(
        name="exploits", passed=not winners, evidence=evidence, details={n: _record(f) for n, f in tried.items()}
    )


def check_free_credit(panel: PanelEpisodes, grader: Grader, constants: Mapping[str, tuple[float, str]]) -> Check:
    """What the best constant answer earns of each component, as a share of what the best policy earns above chance.

    ``constants``: component -> the most that any constant answer earned of it, and which answer. Chance is what the lowest step of the
    ladder earns. The whole is weighted: sum of what constants earn over sum of what skill earns.
    """
    floor = _components(panel, grader, [panel.ladder[0]])
    skilled = [name for name in (*panel.ladder, *panel.reflexes, *panel.given) if name not in panel.exploits]
    if set(skilled) <= {panel.ladder[0]}:
        evidence = "not judged: nobody plays better than blindly here; declare a teacher or a panel"
        return Check(name="free credit", passed=None, evidence=evidence)
    best = _components(panel, grader, skilled)
    free: dict[str, dict[str, Any]] = {}
    earned = possible = 0.0
    for name, weight in grader.weights.items():
        if name not in floor or name not in constants:
            continue
        sign = 1.0 if weight >= 0 else -1.0
        low = min(sign * value for value in floor[name])
        high = max(sign * value for value in best[name])
        constant = sign * constants[name][0]
        gain, room = max(0.0, min(constant, high) - low), max(0.0, high - low)
        earned, possible = earned + abs(weight) * gain, possible + abs(weight) * room
        free[name] = {
            "weight": weight,
            "chance": sign * low,
            "constant": sign * constant,
            "best": sign * high,
            "free": gain / room if room > 1e-9 else None,
            "answer": constants[name][1],
            "gain": abs(weight) * gain,
        }
    if possible < 1e-9:
        evidence = "no policy earns more than blind answers do: every component is free for the asking"
        return Check(name="free credit", passed=False, evidence=evidence, details=free)
    share = earned / possible
    told = ", ".join(
        f"{name} {each['free']:.0%}" if each["free"] is not None else f"{name} - (nobody earns more than chance)"
        for name, each in free.items()
    )
    verdict = "more than" if share > FREE else "of at most"
    evidence = (
        f"constant answers earn {share:.0%} of what skill earns above chance, {verdict} {FREE:.0%} allowed ({told})"
    )
    most = max(free.values(), key=lambda each: each["gain"])
    if most["gain"] > 0:
        evidence += f"; most by {most['answer']!r}"
    return Check(
        name="free credit", passed=share <= FREE, evidence=evidence, details={"share": share, "components": free}
    )


def check_alignment(panel: PanelEpisodes, true_reward: str) -> Check:
    """Rank correlation of reward and true reward: over the means of all policies, and from episode to episode within each."""
    names = list(panel.episodes)
    rewards = [mean_interval(panel.rewards(name)).mean for name in names]
    aims = [mean_interval(panel.true_rewards(name)).mean for name in names]
    if len(names) < 3 or len({aim for aim in aims if aim is not None}) < 2:
        evidence = f"not judged: at least 3 policies that differ in {true_reward} are needed, got {len(names)}"
        return Check(name="alignment", passed=None, evidence=evidence)
    across = spearman(rewards, aims)
    within = {name: spearman(panel.rewards(name), panel.true_rewards(name)) for name in names}
    pooled = spearman_within(
        [reward for name in names for reward in panel.rewards(name)],
        [aim for name in names for aim in panel.true_rewards(name)],
        [name for name in names for _ in panel.episodes[name]],
    )
    against = [name for name, found in within.items() if found is not None and found < _NEGATIVE]
    passed = across is not None and across >= ALIGNMENT and (pooled is None or pooled > 0)
    evidence = (
        f"the reward is the same for all policies while {true_reward} differs"
        if across is None
        else f"rank correlation of reward and {true_reward} is {across:.2f} over {len(names)} policies "
        f"({ALIGNMENT} needed) and {_figure(pooled)} from episode to episode within a policy"
    )
    if against:
        evidence += f"; within {', '.join(against)} the two run against each other"
    return Check(
        name="alignment",
        passed=passed,
        evidence=evidence,
        details={"across": across, "within": pooled, "policies": within},
    )


def _components(panel: PanelEpisodes, grader: Grader, names: Sequence[str]) -> dict[str, list[float]]:
    """Component -> the means of the policies that have one."""
    found: dict[str, list[float]] = {}
    for component in grader.weights:
        for name in dict.fromkeys(names):
            values = [e.reward.components.get(component) if e.reward else None for e in panel.episodes[name]]
            mean = mean_interval(values).mean
            if mean is not None:
                found.setdefault(component, []).append(mean)
    return found


def _difference(panel: PanelEpisodes, a: str, b: str, of: str = "reward") -> Paired:
    values = panel.rewards if of == "reward" else panel.true_rewards
    return paired_difference(values(a), values(b))


def _mean(found: Paired) -> float:
    return -np.inf if found.mean is None else found.mean


def _above(found: Paired) -> bool:
    return found.low is not None and found.low > 0


def _signed(found: Paired) -> str:
    if found.mean is None:
        return "(no pairs)"
    bounds = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.low is not None else ""
    return f"{found.mean:+.3f}{bounds}"


def _record(found: Paired) -> dict[str, float | int | None]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "wins": found.wins, "episodes": found.n}


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"
