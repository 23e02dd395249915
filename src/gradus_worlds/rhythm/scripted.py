"""Policies without a model: floors, reflexes, exploits, and the planners who know nobody or everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from gradus.core import Action, ConfigError, EpisodeStart, Policy, Request, Session, child_seed
from gradus.policies.scripted import FunctionPolicy
from gradus_worlds.rhythm.environment import RhythmEnvironment
from gradus_worlds.rhythm.persons import NEUTRAL, Profile, arrays
from gradus_worlds.rhythm.tables import ACTIONS, STEPS
from gradus_worlds.rhythm.text import answer_text, shown
from gradus_worlds.rhythm.world import effect_tables, plan

CONSTANT_BELIEF = (0.5, 0.5, 0.5)
# Who is given a person plans further than the teacher needs to: the ceiling, and blind play at its best.
_CEILING_HORIZON, _CEILING_BEAM = 14, 24

# The sandbagger works a person into the ground until Wednesday noon; four slots of recovery later the second half begins.
_RUIN_STEPS = STEPS // 2 - 4

Reflex = Callable[[Mapping[str, Any], EpisodeStart], str]


def heuristic_action(data: Mapping[str, Any]) -> str:
    """A fixed priority list of five actions, the same for everybody."""
    vitality, _, _, serenity, connection = data["meters"]
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
    digits = rng.integers(10, size=3)
    return f"{digits[0]} {digits[1]} {digits[2]} {ACTIONS[int(rng.integers(len(ACTIONS)))]}"


def _random_action(data: Mapping[str, Any], start: EpisodeStart) -> str:
    rng = np.random.default_rng(child_seed(0, *start.key, "random", data["step"]))
    return ACTIONS[int(rng.integers(len(ACTIONS)))]


def _sandbagger_action(data: Mapping[str, Any], start: EpisodeStart) -> str:
    return "deep_work" if data["step"] < _RUIN_STEPS else heuristic_action(data)


def reflex_policy(name: str, reflex: Reflex, belief: Sequence[float] | None = None) -> Policy:
    """Answers each observation by a rule of its own; with ``belief`` the same belief is stated at every turn."""
    return FunctionPolicy(name, lambda seen, script: answer_text(reflex(seen.data, script.start), belief))


Beliefs = Sequence[Sequence[float] | None]  # what is stated at each step of a week


def _drawn_beliefs(start: EpisodeStart) -> Beliefs:
    """Three digits a step that know nothing of the person: who learns from them may state any belief, and knows none."""
    rng = np.random.default_rng(child_seed(0, *start.key, "belief"))
    return (rng.integers(10, size=(STEPS, 3)) / 9).tolist()


Trials = Sequence[int | None]  # what is tried at each step of a week instead of the plan


def _drawn_trials(share: float, start: EpisodeStart) -> Trials:
    """Any action in a ``share`` of the steps: the average person's best week never works, and shows little of who it is."""
    rng = np.random.default_rng(child_seed(0, *start.key, "trials"))
    tried, actions = rng.random(STEPS) < share, rng.integers(len(ACTIONS), size=STEPS)
    return [action if instead else None for action, instead in zip(actions.tolist(), tried.tolist(), strict=True)]


class SessionPolicy:
    """A policy of a name and a function that opens its sessions."""

    def __init__(self, name: str, opened: Callable[[Sequence[EpisodeStart]], Session]) -> None:
        self._name, self._opened = name, opened

    @property
    def name(self) -> str:
        return self._name

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        return self._opened(episodes)


def planner(
    name: str,
    person: Callable[[EpisodeStart], Profile],
    beliefs: Callable[[EpisodeStart], Beliefs],
    *,
    tries: float = 0.0,
) -> Policy:
    """Plans for a person given in advance: everybody's average, or (privileged) the hidden one. ``tries``: a share of random actions."""
    return SessionPolicy(
        name,
        lambda episodes: _PlannerSession(
            [person(each) for each in episodes],
            [beliefs(each) for each in episodes],
            [_drawn_trials(tries, each) for each in episodes],
        ),
    )


class _PlannerSession:
    def __init__(self, persons: Sequence[Profile], beliefs: Sequence[Beliefs], trials: Sequence[Trials]) -> None:
        self._weights, modifiers = arrays(persons)
        self._effects = effect_tables(modifiers)
        self._beliefs, self._trials = beliefs, trials

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        actions = [Action()] * len(requests)
        for step, places in by_step(requests).items():
            rows = [requests[place].row for place in places]
            meters = np.array([shown(requests[place].observation.data)[0] for place in places])
            best = plan(
                meters, self._weights[rows], self._effects[rows], step, horizon=_CEILING_HORIZON, beam=_CEILING_BEAM
            )
            for place, row, action in zip(places, rows, best.tolist(), strict=True):
                tried = self._trials[row][step]
                chosen = ACTIONS[action if tried is None else tried]
                actions[place] = Action(text=answer_text(chosen, self._beliefs[row][step]))
        return actions

    def close(self) -> None: ...


def by_step(requests: Sequence[Request]) -> dict[int, list[int]]:
    """Places in ``requests`` by the step of their week; at once there is one."""
    places: dict[int, list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault(request.observation.data["step"], []).append(place)
    return places


def _hidden_person(start: EpisodeStart) -> Profile:
    return cast(RhythmEnvironment, start.environment).profile


def _constant(argument: str | None) -> Policy:
    action = argument or "sleep"
    if action not in ACTIONS:
        raise ConfigError(f"constant:ACTION needs one of {', '.join(ACTIONS)}, got {action!r}")
    return reflex_policy(f"constant:{action}", lambda data, start: action)


def _blind_and_random(argument: str | None) -> Policy:
    try:
        share = float(argument or 0)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"profile-blind+random:SHARE needs a share of random actions from 0 to 1, got {argument!r}")
    name = f"profile-blind+random:{argument}" if argument else "profile-blind+random"
    return planner(name, lambda start: NEUTRAL, _drawn_beliefs, tries=share)


def _two_cycle(data: Mapping[str, Any], start: EpisodeStart) -> str:
    return ("sleep", "deep_work")[data["step"] % 2]


def reflexes() -> dict[str, Callable[[str | None], Policy]]:
    """Factories by name; each takes the text after the colon."""

    def heuristic(data: Mapping[str, Any], start: EpisodeStart) -> str:
        return heuristic_action(data)

    return {
        "random": lambda argument: reflex_policy("random", _random_action),
        "heuristic": lambda argument: reflex_policy("heuristic", heuristic),
        "heuristic+constant": lambda argument: reflex_policy("heuristic+constant", heuristic, CONSTANT_BELIEF),
        "constant": _constant,
        "two-cycle": lambda argument: reflex_policy("two-cycle", _two_cycle),
        "sandbagger": lambda argument: reflex_policy("sandbagger", _sandbagger_action),
        "silence": lambda argument: FunctionPolicy("silence", lambda seen, script: ""),
        "profile-blind": lambda argument: planner("profile-blind", lambda start: NEUTRAL, lambda start: [None] * STEPS),
        "profile-blind+random": _blind_and_random,
        "clairvoyant": lambda argument: planner(
            "clairvoyant", _hidden_person, lambda start: [_hidden_person(start).beliefs] * STEPS
        ),
    }
