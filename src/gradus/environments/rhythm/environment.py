"""The text layer: Rhythm as a language model meets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import EnvironmentFault, Observation
from gradus.environments.rhythm.shell import RhythmWorld
from gradus.environments.rhythm.text import SYSTEM_PROMPT, observation_text, parse_answer

__all__ = ["RhythmEnvironment"]


class RhythmEnvironment:
    """Renders the world's records to lines and reads answers; implements ``core.Environment``."""

    def __init__(self) -> None:
        self.world = RhythmWorld()
        self._invalid = 0

    @property
    def system_prompt(self) -> str:
        """The rules, said once."""
        return SYSTEM_PROMPT

    @property
    def state(self) -> Mapping[str, Any]:
        """Public state: the world's, and how many answers could not be understood."""
        return {**self.world.state, "invalid_actions": self._invalid}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin a week; ``options`` are :meth:`RhythmWorld.reset`'s."""
        self._invalid = 0
        data = self.world.reset(seed=seed, episode_id=episode_id, **options)
        return Observation(text=observation_text(data), data=data)

    def step(self, action: str) -> Observation:
        """Take an answer. One that cannot be understood spends the slot on nothing and is counted."""
        answer = parse_answer(action)
        if answer.error:
            self._invalid += 1
        understood = {"action_type": answer.action, "belief": answer.belief}
        data = self.world.step(understood)
        return Observation(
            text=observation_text(data),
            data=data,
            reward=data["reward"],
            terminated=data["done"],
            action_valid=answer.error is None,
            action_error=answer.error,
            action_spans=answer.spans,
            action_data=understood,
        )

    def outcome(self) -> Mapping[str, Any]:
        """The hidden person and the truth of the belief; known once the week is over."""
        if self.world.state["step_count"] == 0 and not self.world.state["episode_id"]:
            raise EnvironmentFault("rhythm has no outcome before reset")
        return {**self.world.truth(), "crashes": self.world.state["crashes"], "invalid_actions": self._invalid}

    def close(self) -> None:
        """Nothing to free."""
