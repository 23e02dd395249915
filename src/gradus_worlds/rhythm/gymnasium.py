"""``gymnasium.make("gradus/Rhythm-v0")``: the world of Rhythm for whoever learns from arrays instead of words.

Importing this module registers it. Gymnasium 1.0 gave up looking for plugins by itself, so either
``import gradus_worlds.rhythm.gymnasium`` first or name the module: ``gymnasium.make("gradus_worlds.rhythm.gymnasium:gradus/Rhythm-v0")``.
Needs the extra ``gymnasium``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gradus.core import ConfigError
from gradus_worlds.rhythm.shell import RhythmWorld
from gradus_worlds.rhythm.tables import ACTIONS, DAYS, EVENTS, METERS, SLOTS, STEPS
from gradus_worlds.rhythm.text import observation_text

_BELIEFS = 3
_SEEDS = 2**63
_ID = "gradus/Rhythm-v0"


def register() -> None:
    """Register ``gradus/Rhythm-v0``; calling it again changes nothing."""
    if _ID not in gymnasium.registry:
        gymnasium.register(id=_ID, entry_point="gradus_worlds.rhythm.gymnasium:RhythmGym")


class RhythmGym(gymnasium.Env[dict[str, Any], Any]):
    """A week with a person whose personality is hidden; the reward is what the person felt.

    Actions are indices into the ten activities. With ``belief=True`` an action is ``{"action_type": index, "belief": (3,)}``,
    for those who grade beliefs too (the reward does not). ``persons`` says where people come from: ``continuous``, ``discrete``
    or ``ood``. ``reset(seed=s)`` meets the same person, noise and events as seed s does everywhere else in Gradus.

    Observation: ``meters`` (5,) in [0, 1]; ``change`` and ``anomaly`` (5,) of the last step in [-1, 1]; ``day``, ``slot``,
    ``event`` as indices; ``steps_left``. The truth about the person is in no observation and no info.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own convention

    def __init__(self, *, belief: bool = False, persons: str = "continuous", render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode must be 'ansi' or None, got {render_mode!r}")
        self.render_mode = render_mode
        self._world = RhythmWorld()
        self._persons = persons
        self._belief = belief
        self._record: dict[str, Any] = {}
        action = spaces.Discrete(len(ACTIONS))
        beliefs = spaces.Box(0.0, 1.0, (_BELIEFS,), np.float32)
        self.action_space = spaces.Dict({"action_type": action, "belief": beliefs}) if belief else action
        self.observation_space = spaces.Dict(
            {
                "meters": spaces.Box(0.0, 1.0, (len(METERS),), np.float32),
                "change": spaces.Box(-1.0, 1.0, (len(METERS),), np.float32),
                "anomaly": spaces.Box(-1.0, 1.0, (len(METERS),), np.float32),
                "day": spaces.Discrete(len(DAYS)),
                "slot": spaces.Discrete(len(SLOTS)),
                "event": spaces.Discrete(len(EVENTS)),
                "steps_left": spaces.Discrete(STEPS + 1),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a week. Without a seed the next person is drawn from the environment's own generator."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(_SEEDS)) if seed is None else seed
        self._record = self._world.reset(seed=chosen, **{"persons": self._persons, **(options or {})})
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Spend a slot. A week is always 28 steps, so nothing is ever truncated here."""
        index = int(action["action_type"]) if self._belief else int(action)
        belief = [float(value) for value in action["belief"]] if self._belief else None
        self._record = self._world.step({"action_type": ACTIONS[index], "belief": belief})
        return self._observe(), float(self._record["reward"]), bool(self._record["done"]), False, self._info()

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The line that a language model would read."""
        return observation_text(self._record) if self.render_mode == "ansi" and self._record else None

    def _observe(self) -> dict[str, Any]:
        record = self._record
        return {
            "meters": _array(record["meters"]),
            "change": _array(record["change"]),
            "anomaly": _array(record["anomaly"]),
            "day": np.int64(DAYS.index(record["day"])),
            "slot": np.int64(SLOTS.index(record["slot"])),
            "event": np.int64(EVENTS.index(record["active_event"])),
            "steps_left": np.int64(record["steps_left"]),
        }

    def _info(self) -> dict[str, Any]:
        return {"crashes": self._record["crashes"]}


def _array(values: list[float]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


register()
