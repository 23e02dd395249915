"""Rhythm as a language model meets it: one person, one week, lines and answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gradus.core import ConfigError, EnvironmentFault, Observation
from gradus_worlds.rhythm.persons import BELIEFS, NEUTRAL, SAMPLERS, Profile, arrays
from gradus_worlds.rhythm.tables import (
    ACTION_INDEX,
    ACTIONS,
    CRASH_BELOW,
    CRASH_PENALTY,
    DAYS,
    EVENT_EFFECTS,
    EVENTS,
    METERS,
    NOTHING,
    REWARD_SCALE,
    SLOTS,
    STEPS,
)
from gradus_worlds.rhythm.text import SYSTEM_PROMPT, observation_text, parse_answer
from gradus_worlds.rhythm.world import (
    draw_events,
    draw_noise,
    draw_start,
    effect_tables,
    event_effects,
    felt_change,
    settle,
)

HISTORY = 7  # steps that the structured observation looks back
_DIGITS = 4  # decimals in records
_Share = Annotated[float, Field(ge=0, le=1)]
_NEUTRAL_EFFECTS = effect_tables(arrays([NEUTRAL])[1])[0]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) + 0.0 for value in values]


class RhythmAction(BaseModel):
    """The original's typed action: what to do in this slot, and what is believed of social, morning and work."""

    model_config = ConfigDict(extra="forbid")

    action_type: str = Field(pattern=f"^({'|'.join(ACTIONS)})$")
    belief: tuple[_Share, _Share, _Share] | None = None


class RhythmEnvironment:
    """A week with one person; implements ``core.Environment``. An action that is None spends the slot on nothing."""

    plain_data = True  # each observation holds the whole week so far
    system_prompt = SYSTEM_PROMPT  # the rules, said once
    action_schema = RhythmAction.model_json_schema()

    def __init__(self) -> None:
        self._profile: Profile | None = None
        self._step = 0
        self._crashes = 0
        self._invalid = 0
        self._episode_id = ""

    @property
    def profile(self) -> Profile:
        """The hidden person; privileged callers only."""
        if self._profile is None:
            raise EnvironmentFault("rhythm has no person yet; call reset first")
        return self._profile

    @property
    def state(self) -> Mapping[str, Any]:
        """Returns what anybody may know: no person, no noise, no future."""
        return {
            "episode_id": self._episode_id,
            "step_count": self._step,
            "crashes": self._crashes,
            "invalid_actions": self._invalid,
        }

    def reset(
        self, *, seed: int | None = None, episode_id: str | None = None, persons: str = "continuous", **options: Any
    ) -> Observation:
        """Begin a week. ``persons`` says where the person of ``seed`` comes from.

        The whole week's noise and events are fixed here, so that a step draws nothing.
        """
        if options:
            raise ConfigError(f"a week has the option persons alone, got {', '.join(options)}")
        if persons not in SAMPLERS:
            raise ConfigError(
                f"persons must be one of {', '.join(SAMPLERS)}, got {persons!r}; set it in the reset options"
            )
        if seed is None:
            seed = secrets.randbits(63)  # nobody asked for a particular week
        self._profile = SAMPLERS[persons](seed)
        weights, modifiers = arrays([self._profile])
        self._weights = weights[0]
        self._effects = effect_tables(modifiers)[0]
        noise, self._events = draw_noise(seed), draw_events(seed)
        self._shocks = noise + event_effects(self._events, modifiers)
        self._neutral_shocks = noise + EVENT_EFFECTS[self._events]
        self._meters = draw_start(seed)
        self._step, self._crashes, self._invalid, self._belief = 0, 0, 0, None
        self._episode_id = episode_id or f"rhythm-{seed}"
        self._history: list[dict[str, Any]] = []
        return self._observe(None)

    def step(self, action: str) -> Observation:
        """Spend the slot as an answer says. One that cannot be understood spends it on nothing and is counted."""
        answer = parse_answer(action)
        self._invalid += answer.error is not None
        return self._take(
            answer.action,
            answer.belief,
            action_valid=answer.error is None,
            action_error=answer.error,
            action_spans=answer.spans,
        )

    def step_typed(self, action: Mapping[str, Any]) -> Observation:
        """Take the fields of a RhythmAction in place of a text. Raises ValueError if they do not fit; the week goes on."""
        typed = RhythmAction.model_validate(action)
        return self._take(typed.action_type, typed.belief and [*typed.belief])

    def _take(self, action: str | None, belief: list[float] | None, **understood: Any) -> Observation:
        if self._profile is None or self._step >= STEPS:
            raise EnvironmentFault(f"step {self._step} of a week of {STEPS} steps: it is over or not begun; call reset")
        self._belief = belief or self._belief
        record = self._spend(NOTHING if action is None else ACTION_INDEX[action])
        self._history.append({"action": action, **record})
        told = {"action_type": action, "belief": belief}
        return self._observe(self._history[-1], reward=record["reward"], action_data=told, **understood)

    def _spend(self, index: int) -> dict[str, Any]:
        """Spend the slot on an action and return what came of it."""
        slot = self._step % len(SLOTS)
        before = self._meters
        change = felt_change(before, self._effects[slot, index], self._shocks[self._step])
        expected = felt_change(before, _NEUTRAL_EFFECTS[slot, index], self._neutral_shocks[self._step])
        self._meters = settle(before + change)
        crashes = sum(level < CRASH_BELOW for level in self._meters.tolist())
        reward = REWARD_SCALE * float(self._weights @ change) - CRASH_PENALTY * crashes
        self._crashes += crashes
        self._step += 1
        return {
            "reward": round(reward, _DIGITS),
            "change": _rounded(change.tolist()),
            "anomaly": _rounded((change - expected).tolist()),
            "event": EVENTS[self._events[self._step - 1]],
            "crashes": crashes,
        }

    def outcome(self) -> Mapping[str, Any]:
        """The hidden person and what a belief should have been; known once the week is over."""
        person = self.profile
        return {
            "person": person.name,
            "weights": list(person.weights),
            "modifiers": list(person.modifiers),
            "beliefs": dict(zip(BELIEFS, person.beliefs, strict=True)),
            "crashes": self._crashes,
            "invalid_actions": self._invalid,
        }

    def close(self) -> None:
        """Nothing to free."""

    def _observe(self, last: dict[str, Any] | None, **told: Any) -> Observation:
        done = self._step >= STEPS
        data = {
            "step": self._step,
            "day": DAYS[min(self._step, STEPS - 1) // len(SLOTS)],
            "slot": SLOTS[self._step % len(SLOTS)] if not done else SLOTS[-1],
            "steps_left": STEPS - self._step,
            "meters": _rounded(self._meters.tolist()),
            "change": last["change"] if last else [0.0] * len(METERS),
            "anomaly": last["anomaly"] if last else [0.0] * len(METERS),
            "reward": last["reward"] if last else None,
            "active_event": last["event"] if last else "none",
            "crashes": self._crashes,
            "belief": self._belief,
            "history": self._history[-HISTORY:],
            "done": done,
        }
        return Observation(text=observation_text(data), data=data, terminated=done, **told)
