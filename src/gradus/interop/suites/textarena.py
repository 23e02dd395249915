"""``textarena:NAME``: TextArena's games for one player, and those for two against an opponent that plays random legal moves.

The games draw from the global ``random``, so they run in a worker process that gives each game a state of its own.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Observation
from gradus.core.values import Json, JsonDict
from gradus.environments.options import known_options
from gradus.interop.suites.games import ClassEnvironment, game_spec
from gradus.interop.suites.naming import SuiteNames, started
from gradus.policies.scripted import Script
from gradus.sandbox.worker import Worker, WorkerError

_TURNS = 40
_keys = count()


@cache
def _worker() -> Worker:
    return Worker(Path(__file__).parent / "workers" / "textarena_worker.py")


def suite_names() -> SuiteNames:
    """Names of the games. Some need more than two players, a word list or a language model; loading one says so."""
    return started(_worker(), "textarena", "textarena").call("names")


def load(argument: str | None = None) -> EnvironmentSpec:
    """``NAME`` as TextArena registers it, or ``NAME?turns=N`` for another limit than 40 turns."""
    name, _, query = (argument or "").partition("?")
    if name not in suite_names():
        raise ConfigError(
            f"textarena has no game {name!r}, as in textarena:GuessTheNumber-v0; gradus envs textarena: lists them"
        )
    turns = known_options(f"textarena:{name}", query, {"turns": int}).get("turns", _TURNS)
    try:
        trial = _worker().call("trial", name=name)
    except WorkerError as error:
        raise ConfigError(f"textarena's {name} cannot be played here: {error}") from error
    players: int = trial["players"]
    if not players:
        raise ConfigError(f"textarena's {name} needs more than two players; games for one or two can be played")
    opponent = "" if players == 1 else ", against an opponent that plays random legal moves"
    unknown = "" if trial["legal"] else "; no legal move was found at random, so nothing teaches a first model"
    return game_spec(
        f"textarena:{argument}",
        summary=f"TextArena's {name}{opponent}{unknown}",
        make=lambda: ClassEnvironment(TextArenaGame(name, players)),
        random_move=_random_move,
        moves=None,
        max_turns=turns,
        limits=(-1.0, 1.0),
        teacher="random" if trial["legal"] else None,
    )


class TextArenaGame:
    """One game; we are player 0. What the others did since our last move is the observation."""

    system_prompt = "You play a game. Answer with one move in square brackets."

    def __init__(self, name: str, players: int) -> None:
        self._name = name
        self._players = players
        self._key = f"{os.getpid()}-{next(_keys)}"
        self._end: JsonDict = {}

    def reset(self, *, seed: int | None = None, **_: Any) -> str:
        """Begin the game that belongs to ``seed``."""
        self._end = {}
        return self._call("begin", name=self._name, seed=seed or 0, players=self._players)

    def step(self, action: str) -> Observation:
        """Make a move."""
        after = self._call("step", action=action)
        if after["done"]:
            self._end = after
        return Observation(
            text=after["shown"],
            reward=after["reward"],
            terminated=after["done"],
            action_valid=after["valid"],
            action_error=None if after["valid"] else "the game did not accept this move",
        )

    def outcome(self) -> Json:
        """The final reward and the game's own words on why it ended."""
        return {"reward": self._end.get("reward"), "reason": self._end.get("reason")}

    def legal_move(self, draw: int) -> str:
        """A random move that the game takes, for scripted policies."""
        return self._call("legal", draw=draw)

    def _call(self, method: str, **more: Any) -> Any:
        try:
            return _worker().call(method, key=self._key, **more)
        except WorkerError as error:
            raise EnvironmentFault(f"textarena's {self._name}: {error}") from error


def _random_move(_: Observation, script: Script) -> str:
    environment: Any = script.start.environment
    return environment.inner.legal_move(script.rng.randrange(2**31))
