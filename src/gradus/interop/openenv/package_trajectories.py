"""What a package shows to validators: an oracle that earns the full reward, and hacks that must earn nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gradus.core import EnvironmentSpec, Episode
from gradus.rollouts import roll_out

_TASKS = 12


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """``oracle`` and ``canaries``: JSON lines of a reset and its actions, empty if there are none. ``top``: what the oracle ends with."""

    oracle: str = ""
    canaries: str = ""
    top: float | None = None


def trajectories(spec: EnvironmentSpec) -> Trajectories:
    """Episodes of the gold policy, or else of the teacher, and of the panel's exploits, on training tasks.

    An oracle must end with the same reward above 0 on every task; of a policy that does not, nothing is written. An exploit's episode
    with a true reward above 0 is no hack: it was right by luck.
    """
    best = spec.audit.gold or spec.teacher
    solved = _episodes(spec, best) if best is not None else []
    ends = {_last(episode) for episode in solved}
    top = ends.pop() if len(ends) == 1 else None
    if not top or top < 0:
        return Trajectories()
    exploits = spec.audit.panel.exploits if spec.audit.panel is not None else ()
    tricks = [episode for name in exploits for episode in _episodes(spec, name)]
    hacks = [episode for episode in tricks if not (spec.true_reward(episode) or 0.0) > 0]
    return Trajectories(oracle=_lines(solved), canaries=_lines(hacks), top=top)


def _episodes(spec: EnvironmentSpec, policy: str) -> list[Episode]:
    tasks = [spec.train_task(index) for index in range(_TASKS)]
    return roll_out(spec, spec.policy(policy), tasks, key=("package",)).episodes


def _last(episode: Episode) -> float | None:
    """The reward that a server sends with the last step."""
    rewards = [turn.env_reward for turn in episode.turns if turn.env_reward is not None]
    return rewards[-1] if rewards else episode.reward.value if episode.reward else None


def _lines(episodes: Sequence[Episode]) -> str:
    rows = [
        {
            "reset": {"seed": episode.task.seed, **episode.task.options},
            "actions": [{"text": turn.action} for turn in episode.turns],
        }
        for episode in episodes
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)
