"""The text layer: Rhythm as a language model meets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation
from gradus_worlds.rhythm.shell import RhythmWorld
from gradus_worlds.rhythm.tables import ACTIONS
from gradus_worlds.rhythm.text import SYSTEM_PROMPT, observation_text, parse_answer


class RhythmEnvironment:
    """Renders the world's records to lines and reads answers; implements ``core.Environment``."""

    plain_data = True  # each observation holds the whole week so far

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
        return self._observe(
            understood, action_valid=answer.error is None, action_error=answer.error, action_spans=answer.spans
        )

    @property
    def action_schema(self) -> Mapping[str, Any]:
        """JSON schema of what :meth:`step_typed` takes."""
        belief = {
            "type": "array",
            "items": {"type": "number", "minimum": 0, "maximum": 1},
            "minItems": 3,
            "maxItems": 3,
        }
        properties = {
            "action_type": {"type": "string", "enum": list(ACTIONS), "description": "What to do in this slot."},
            "belief": {"anyOf": [belief, {"type": "null"}], "description": "Social, morning and work, each in [0, 1]."},
        }
        return {"title": "RhythmAction", "type": "object", "properties": properties, "required": ["action_type"]}

    def step_typed(self, action: Mapping[str, Any]) -> Observation:
        """Take a typed action, for clients that are no language model. ConfigError (the week goes on) if it does not fit."""
        extra = action.keys() - {"action_type", "belief"}
        if extra or action.get("action_type") is None:
            raise ConfigError(f"expected action_type, with or without belief, got the fields {sorted(action)}")
        return self._observe({"action_type": action["action_type"], "belief": action.get("belief")})

    def _observe(self, action: Mapping[str, Any], **understood: Any) -> Observation:
        data = self.world.step(action)
        return Observation(
            text=observation_text(data),
            data=data,
            reward=data["reward"],
            terminated=data["done"],
            action_data=action,
            **understood,
        )

    def outcome(self) -> Mapping[str, Any]:
        """The hidden person and the truth of the belief; known once the week is over."""
        if self.world.state["step_count"] == 0 and not self.world.state["episode_id"]:
            raise EnvironmentFault("rhythm has no outcome before reset")
        return {**self.world.truth(), "crashes": self.world.state["crashes"], "invalid_actions": self._invalid}

    def close(self) -> None:
        """Nothing to free."""
