"""Policies without a model: floors, reflexes, exploits, and the planners who know nobody or everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from gradus.core import (
    Action,
    ConfigError,
    EpisodeStart,
    Observation,
    Policy,
    PolicyError,
    Request,
    Session,
    child_seed,
)
from gradus.policies.scripted import FunctionPolicy, Script, read_share
from gradus_worlds.rhythm.environment import RhythmEnvironment
from gradus_worlds.rhythm.persons import NEUTRAL, Profile, arrays
from gradus_worlds.rhythm.tables import ACTIONS, STEPS
from gradus_worlds.rhythm.text import Wording, answer_text, shown_figures
from gradus_worlds.rhythm.world import Situation, effect_tables, plan

CONSTANT_BELIEF = (0.5, 0.5, 0.5)
# A planner that is given a person looks further ahead than the teacher: the ceiling, and blind play at its best.
_CEILING_HORIZON = 14
_CEILING_BEAM = 24

# The sandbagger works a person into the ground until Wednesday noon; four slots of recovery later the second half begins.
_RUIN_STEPS = STEPS // 2 - 4

Data = Mapping[str, Any]
Belief = Sequence[float] | None
Reflex = Callable[[Data, EpisodeStart], str]
Factory = Callable[[Wording, str | None], Policy]
"""Of the words of the answers, and the text behind the policy's colon."""


def heuristic_action(data: Data, _: EpisodeStart | None = None) -> str:
    """A fixed priority list of five actions, the same for everybody."""
    vitality, _cognition, _progress, serenity, connection = data["meters"]
    if data["slot"] == "night" or vitality < 0.3:
        return "sleep"
    if serenity < 0.35:
        return "meditate"
    if connection < 0.3:
        return "family_time"
    return "deep_work" if data["slot"] in ("morning", "afternoon") else "exercise"


def random_answer(seed: int) -> str:
    """Some legal answer: uniform digits, uniform action."""
    rng = np.random.default_rng(child_seed(seed, "rhythm", "answer"))
    first, second, third = rng.integers(10, size=3)
    action = ACTIONS[int(rng.integers(len(ACTIONS)))]
    return f"{first} {second} {third} {action}"


def _random_action(data: Data, start: EpisodeStart) -> str:
    rng = np.random.default_rng(child_seed(0, *start.key, "random", data["step"]))
    return ACTIONS[int(rng.integers(len(ACTIONS)))]


def _sandbagger_action(data: Data, _: EpisodeStart) -> str:
    return "deep_work" if data["step"] < _RUIN_STEPS else heuristic_action(data)


def _two_cycle_action(data: Data, _: EpisodeStart) -> str:
    return "deep_work" if data["step"] % 2 else "sleep"


def reflex_policy(name: str, wording: Wording, reflex: Reflex, belief: Belief = None) -> Policy:
    """Answers each observation by a rule of its own; with ``belief`` the same belief is stated at every turn."""

    def answer(observation: Observation, script: Script) -> str:
        return wording.reword(answer_text(reflex(observation.data, script.start), belief))

    return FunctionPolicy(name, answer)


class SessionPolicy:
    """A policy of a name and a function that opens its sessions."""

    def __init__(self, name: str, opened: Callable[[Sequence[EpisodeStart]], Session]) -> None:
        self.name = name
        self._opened = opened

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        return self._opened(episodes)


class WeekSession:
    """Answers requests that are all at the same step of their weeks: weeks that run at once take their steps together."""

    def __init__(self, wording: Wording) -> None:
        self.wording = wording

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        return [Action(text=self.wording.reword(text)) for text in self.answers(requests)]

    def answers(self, requests: Sequence[Request]) -> list[str]:
        """The answers in the plain wording."""
        raise NotImplementedError

    def close(self) -> None: ...


def step_of(requests: Sequence[Request]) -> int:
    """Returns the step of the week that all requests are at. Raises PolicyError if they are at several."""
    steps = {request.observation.data["step"] for request in requests}
    if len(steps) != 1:
        raise PolicyError(f"expected weeks that take their steps together, got steps {sorted(steps)} at once")
    return steps.pop()


class _PlannerSession(WeekSession):
    """Plans for persons given in advance. ``beliefs`` and ``trials``: what is stated, and tried instead of the plan, at each step."""

    def __init__(
        self,
        wording: Wording,
        persons: Sequence[Profile],
        beliefs: Sequence[Sequence[Belief]],
        trials: Sequence[Sequence[int | None]],
    ) -> None:
        super().__init__(wording)
        self._weights, modifiers = arrays(persons)
        self._effects = effect_tables(modifiers)
        self._beliefs = beliefs
        self._trials = trials

    def answers(self, requests: Sequence[Request]) -> list[str]:
        rows = [request.row for request in requests]
        step = step_of(requests)
        situation = Situation(
            step=step,
            meters=np.array([shown_figures(request.observation.data).meters for request in requests]),
            weights=self._weights[rows],
            effects=self._effects[rows],
        )
        best = plan(situation, horizon=_CEILING_HORIZON, beam=_CEILING_BEAM)
        texts: list[str] = []
        for row, planned in zip(rows, best.tolist(), strict=True):
            # A trial is drawn beforehand, so that it depends on the key and the step alone.
            trial = self._trials[row][step]
            action = planned if trial is None else trial
            texts.append(answer_text(ACTIONS[action], self._beliefs[row][step]))
        return texts


def _drawn_beliefs(start: EpisodeStart) -> Sequence[Belief]:
    """Three digits a step that know nothing of the person: a student of them states any belief, and knows none."""
    rng = np.random.default_rng(child_seed(0, *start.key, "belief"))
    return (rng.integers(10, size=(STEPS, 3)) / 9).tolist()


def _drawn_trials(share: float, start: EpisodeStart) -> Sequence[int | None]:
    """Any action in a ``share`` of the steps: the average person's best week never works, and shows little of who it is."""
    rng = np.random.default_rng(child_seed(0, *start.key, "trials"))
    is_trial = rng.random(STEPS) < share
    actions = rng.integers(len(ACTIONS), size=STEPS)
    trials: list[int | None] = actions.tolist()
    for step in np.flatnonzero(~is_trial).tolist():
        trials[step] = None
    return trials


def planner(
    name: str,
    wording: Wording,
    person: Callable[[EpisodeStart], Profile],
    beliefs: Callable[[EpisodeStart], Sequence[Belief]],
    *,
    tries: float = 0.0,
) -> Policy:
    """Plans for a person given in advance: everybody's average, or (privileged) the hidden one. ``tries``: a share of random actions."""

    def opened(starts: Sequence[EpisodeStart]) -> Session:
        trials = [_drawn_trials(tries, start) for start in starts]
        return _PlannerSession(wording, list(map(person, starts)), list(map(beliefs, starts)), trials)

    return SessionPolicy(name, opened)


def _neutral_person(_: EpisodeStart) -> Profile:
    return NEUTRAL


def _hidden_person(start: EpisodeStart) -> Profile:
    return cast(RhythmEnvironment, start.environment).profile


def _blind(wording: Wording, _: str | None) -> Policy:
    return planner("profile-blind", wording, _neutral_person, lambda start: [None] * STEPS)


def _blind_and_random(wording: Wording, argument: str | None) -> Policy:
    share = read_share("profile-blind+random", argument, 0.0)
    name = f"profile-blind+random:{argument}" if argument else "profile-blind+random"
    return planner(name, wording, _neutral_person, _drawn_beliefs, tries=share)


def _clairvoyant(wording: Wording, _: str | None) -> Policy:
    return planner("clairvoyant", wording, _hidden_person, lambda start: [_hidden_person(start).beliefs] * STEPS)


def _constant(wording: Wording, argument: str | None) -> Policy:
    action = argument or "sleep"
    if action not in ACTIONS:
        raise ConfigError(f"constant:ACTION needs one of {', '.join(ACTIONS)}, got {action!r}")
    return reflex_policy(f"constant:{action}", wording, lambda data, start: action)


def _reflex(name: str, action: Reflex, belief: Belief = None) -> Factory:
    return lambda wording, argument: reflex_policy(name, wording, action, belief)


POLICIES: Mapping[str, Factory] = {
    "random": _reflex("random", _random_action),
    "heuristic": _reflex("heuristic", heuristic_action),
    "heuristic+constant": _reflex("heuristic+constant", heuristic_action, CONSTANT_BELIEF),
    "constant": _constant,
    "two-cycle": _reflex("two-cycle", _two_cycle_action),
    "sandbagger": _reflex("sandbagger", _sandbagger_action),
    "silence": lambda wording, argument: FunctionPolicy("silence", lambda observation, script: ""),
    "profile-blind": _blind,
    "profile-blind+random": _blind_and_random,
    "clairvoyant": _clairvoyant,
}
