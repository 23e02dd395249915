"""Rhythm as a language model meets it: one person, one week, lines and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gradus.core import ConfigError, EnvironmentFault, Observation
from gradus_worlds.rhythm.persons import BELIEFS, NEUTRAL, SAMPLERS, Profile, arrays
from gradus_worlds.rhythm.tables import (
    ACTION_INDEX,
    ACTIONS,
    DAYS,
    EVENT_EFFECTS,
    EVENTS,
    METERS,
    NOTHING,
    SLOTS,
    STEPS,
    Array,
)
from gradus_worlds.rhythm.text import PLAIN, Wording, parse_answer
from gradus_worlds.rhythm.world import (
    draw_events,
    draw_noise,
    draw_start,
    effect_tables,
    event_effects,
    felt_change,
    transition,
)

HISTORY = 7  # steps that the structured observation looks back
_DIGITS = 4  # decimals in records
_NEUTRAL_EFFECTS = effect_tables(arrays([NEUTRAL])[1])[0]

Json = Mapping[str, Any]
Share = Annotated[float, Field(ge=0, le=1)]


def _rounded(values: Array) -> list[float]:
    return [round(value, _DIGITS) + 0.0 for value in values.tolist()]


class RhythmAction(BaseModel):
    """The original's typed action: what to do in this slot, and what is believed of social, morning and work."""

    model_config = ConfigDict(extra="forbid")

    action_type: str = Field(pattern=f"^({'|'.join(ACTIONS)})$")
    belief: tuple[Share, Share, Share] | None = None


class _Week:
    """A week under way. Its noise and events are fixed from the start, so that a step draws nothing."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.profile = profile
        self.meters = draw_start(seed)
        self.belief: Sequence[float] | None = None
        self.history: list[dict[str, Any]] = []
        self.invalid = 0
        self.crashes = 0
        weights, modifiers = arrays([profile])
        self._weights = weights[0]
        self._effects = effect_tables(modifiers)[0]
        self._events = draw_events(seed)
        noise = draw_noise(seed)
        # The neutral person has the same noise, so an anomaly is free of it.
        self._shocks = noise + event_effects(self._events, modifiers)
        self._neutral_shocks = noise + EVENT_EFFECTS[self._events]

    @property
    def step(self) -> int:
        return len(self.history)

    def spend(self, action: str | None) -> None:
        """Spend the slot on an action, or on nothing, and record what came of it."""
        index = NOTHING if action is None else ACTION_INDEX[action]
        step = self.step
        slot = self.step % len(SLOTS)
        before = self.meters
        self.meters, change, reward, crashes = transition(
            before, self._weights, self._effects[slot, index], self._shocks[step]
        )
        # What an average person would have felt; the difference is what shows who this is.
        expected = felt_change(before, _NEUTRAL_EFFECTS[slot, index], self._neutral_shocks[step])
        self.crashes += int(crashes)
        self.history.append(
            {
                "action": action,
                "reward": round(float(reward), _DIGITS),
                "change": _rounded(change),
                "anomaly": _rounded(change - expected),
                "event": EVENTS[self._events[step]],
                "crashes": int(crashes),
            }
        )

    def data(self) -> dict[str, Any]:
        """The structured observation."""
        still = [0.0] * len(METERS)
        nothing = {"change": still, "anomaly": still, "reward": None, "event": "none"}
        last = self.history[-1] if self.history else nothing
        # Behind the last step there is no slot; the last one stays.
        day, slot = divmod(min(self.step, STEPS - 1), len(SLOTS))
        return {
            "step": self.step,
            "day": DAYS[day],
            "slot": SLOTS[slot],
            "steps_left": STEPS - self.step,
            "meters": _rounded(self.meters),
            "change": last["change"],
            "anomaly": last["anomaly"],
            "reward": last["reward"],
            "active_event": last["event"],
            "crashes": self.crashes,
            "belief": self.belief,
            "history": self.history[-HISTORY:],
            "done": self.step >= STEPS,
        }


class RhythmEnvironment:
    """A week with one person; implements ``core.Environment``. An action that is None spends the slot on nothing."""

    plain_data = True  # each observation holds the whole week so far
    action_schema = RhythmAction.model_json_schema()

    def __init__(self, wording: Wording = PLAIN) -> None:
        self.system_prompt = wording.prompt  # the rules, said once
        self._wording = wording
        self._begun: _Week | None = None

    @property
    def _week(self) -> _Week:
        if self._begun is None:
            raise EnvironmentFault("rhythm has no person yet; call reset first")
        return self._begun

    @property
    def profile(self) -> Profile:
        """The hidden person; privileged callers only."""
        return self._week.profile

    def reset(self, *, seed: int | None = None, persons: str = "continuous", **options: Any) -> Observation:
        """Begin a week. ``persons`` says where the person of ``seed`` comes from."""
        if options:
            raise ConfigError(f"a week has the option persons alone, got {', '.join(options)}")
        if persons not in SAMPLERS:
            raise ConfigError(
                f"persons must be one of {', '.join(SAMPLERS)}, got {persons!r}; set it in the reset options"
            )
        self._begun = _Week(seed or 0, SAMPLERS[persons](seed or 0))
        data = self._begun.data()
        return Observation(text=self._wording.observation(data), data=data)

    def step(self, action: str) -> Observation:
        """Spend the slot as an answer says. One that cannot be understood spends it on nothing and is counted."""
        answer = parse_answer(action, self._wording)
        observation = self._take(answer.action, answer.belief)
        if answer.error is None:
            return replace(observation, action_spans=answer.spans)
        self._week.invalid += 1
        return replace(observation, action_valid=False, action_error=answer.error)

    def step_typed(self, action: Json) -> Observation:
        """Take the fields of a RhythmAction in place of a text. Raises ValueError if they do not fit; the week goes on."""
        typed = RhythmAction.model_validate(action)
        return self._take(typed.action_type, typed.belief and [*typed.belief])

    def _take(self, action: str | None, belief: list[float] | None) -> Observation:
        week = self._week
        if week.step >= STEPS:
            raise EnvironmentFault(f"the week of {STEPS} steps is over; call reset")
        # A step without a belief keeps the last one.
        week.belief = belief or week.belief
        week.spend(action)
        data = week.data()
        return Observation(
            text=self._wording.observation(data),
            data=data,
            reward=data["reward"],
            terminated=data["done"],
            action_data={"action_type": action, "belief": belief},
        )

    def outcome(self) -> Json:
        """The hidden person and what a belief should have been; known once the week is over."""
        week = self._week
        person = self.profile
        return {
            "person": person.name,
            "weights": list(person.weights),
            "modifiers": list(person.modifiers),
            "beliefs": dict(zip(BELIEFS, person.beliefs, strict=True)),
            "crashes": week.crashes,
            "invalid_actions": week.invalid,
        }

    def close(self) -> None:
        """Nothing to free."""
