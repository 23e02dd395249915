"""A class of one's own with ``reset`` and ``step`` as an environment: ``FILE.py:CLASS``, or ``FILE.py`` if it has one such class.

What ``reset`` and ``step`` return may have the form of Gymnasium (tuples), or be Observations. The class may say more by
attributes: ``actions`` (the answers that it understands), ``system_prompt`` (the rules), ``max_turns`` (20 if left out). A method
``expert()`` says what should be answered now; it may know what is hidden, so it is a teacher that a student may not reach.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from random import Random
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Language, Observation, child_rng
from gradus.core.waiting import settled
from gradus.interop.suites.games import game_spec
from gradus.interop.suites.gymnasium import of_class
from gradus.policies.scripted import Script

_TURNS = 20
_FORMS = "(observation, reward, done), (observation, reward, terminated, truncated, info) or an Observation"


def class_spec(kind: type, *, name: str | None = None) -> EnvironmentSpec:
    """The environment that a class is: rewards are its own, and the true reward is their sum.

    Raises ConfigError if a method is missing or a coroutine, ``reset`` takes no seed, the class cannot be made without arguments, or
    ``actions`` is no list of texts.
    """
    _check_methods(kind)
    if _is_gymnasium(kind):  # its actions are numbers, which answers are not
        return of_class(kind)
    actions, turns = _actions(kind), _turns(kind)

    def move(seed: int) -> str:
        return Random(seed).choice(actions) if actions else str(seed)

    def random_move(_: Observation, script: Script) -> str:
        return script.rng.choice(actions) if actions else str(script.rng.randrange(10))

    teachers = ("expert",) if hasattr(kind, "expert") else ()
    spec = game_spec(
        name or kind.__name__.lower(),
        summary=(inspect.getdoc(kind) or kind.__name__).partition("\n")[0],
        make=lambda: ClassEnvironment(kind(), actions),
        random_move=random_move,
        moves=move,
        max_turns=turns,
        per_turn=True,
        policies=dict.fromkeys(teachers, _expert),
        teacher=(*teachers, "random")[0],
        ladder=(*(() if actions else ("silence",)), "random", *teachers),
    )
    if not actions and not teachers:  # random digits teach nobody, and no words of theirs are known
        spec = replace(spec, teacher=None, language=Language())
    return spec


def _check_methods(kind: type) -> None:
    reset: Callable[..., Any] | None = getattr(kind, "reset", None)
    step: Callable[..., Any] | None = getattr(kind, "step", None)
    if not callable(reset) or not callable(step):
        raise ConfigError(
            f"{kind.__name__} is no environment; expected a class with reset(self, seed) and step(self, action)"
        )
    if any(each.default is each.empty and each.kind < each.VAR_POSITIONAL for each in _parameters(kind)):
        raise ConfigError(f"{kind.__name__} needs arguments to be made; give a subclass whose __init__ needs none")
    if inspect.iscoroutinefunction(reset) or inspect.iscoroutinefunction(step):
        raise ConfigError(
            f"{kind.__name__} has coroutines for reset or step; give an EnvironmentSpec whose make returns it, as docs/own_environment.md shows"
        )
    if not any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in _parameters(reset)):
        raise ConfigError(
            f"{kind.__name__}.reset takes no seed; expected reset(self, seed), because the episodes of a group begin alike"
        )


def _is_gymnasium(kind: type) -> bool:
    """Whether it is a class of Gymnasium's, told by its bases, so that nothing has to be installed for any other."""
    return any(f"{base.__module__}.{base.__qualname__}" == "gymnasium.core.Env" for base in kind.__mro__)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _expert(_: Observation, script: Script) -> str:
    environment: Any = script.start.environment
    return str(environment.expert())


def _turns(kind: type) -> int:
    turns = getattr(kind, "max_turns", _TURNS)
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"{kind.__name__}.max_turns is {turns!r}; expected a whole number from 1 on")
    return turns


def _actions(kind: type) -> Sequence[str]:
    given: Any = getattr(kind, "actions", ())
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{kind.__name__}.actions is {given!r}; expected a list of texts, the answers it understands")
    return given


class ClassEnvironment:
    """An instance of the class, spoken to as Gradus speaks to every environment."""

    def __init__(self, inner: Any, actions: Sequence[str] = ()) -> None:
        self._inner, self._actions = inner, frozenset(actions)
        self._name = type(inner).__name__
        self._episode_id, self._steps = "", 0
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """The class's own rules, with the answers that it understands if it names none."""
        rules = str(getattr(self._inner, "system_prompt", "") or "")
        return rules or (f"Answer with one of: {', '.join(sorted(self._actions))}." if self._actions else "")

    def expert(self) -> str:
        """What the class itself would answer now."""
        return settled(self._inner.expert())

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of steps."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin; options go to the class's own reset."""
        given = self._inner.reset(seed=seed, **options)
        self._steps, self._episode_id = 0, episode_id or f"{self._name}-{seed}"
        self._rng = child_rng(seed or 0, "invalid action")
        if isinstance(given, Observation):
            return given
        with_info = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        return Observation(text=_text(given[0] if with_info else given))

    def step(self, action: str) -> Observation:
        """Pass the answer on. If the class names its actions and this is none, a random one stands in for it and the answer
        counts as invalid: if it were skipped, silence would win wherever steps cost something."""
        valid = not self._actions or action.strip() in self._actions
        taken = action.strip() if valid else sorted(self._actions)[self._rng.randrange(len(self._actions))]
        given = self._inner.step(taken if self._actions else action)
        self._steps += 1
        error = None if valid else f"expected one of {', '.join(sorted(self._actions))}"
        if isinstance(given, Observation):
            return given if valid else replace(given, action_valid=False, action_error=error)
        if not isinstance(given, tuple) or len(given) not in (3, 4, 5):
            raise EnvironmentFault(f"{self._name}.step returned {type(given).__name__}; expected {_FORMS}")
        seen, reward, terminated, *rest = given
        number = None if reward is None else float(reward)
        if number is not None and not isfinite(number):
            raise EnvironmentFault(f"{self._name}.step gave the reward {number}; expected a finite number or None")
        return Observation(
            text=_text(seen),
            reward=number,
            terminated=bool(terminated),
            truncated=bool(rest[0]) if len(given) == 5 else False,
            action_valid=valid,
            action_error=error,
        )

    def outcome(self) -> Mapping[str, Any]:
        """What the class's own ``outcome`` says if it has one, and the number of steps."""
        own: Callable[[], Mapping[str, Any]] | None = getattr(self._inner, "outcome", None)
        return {"steps": self._steps, **(own() if own else {})}

    def close(self) -> None:
        """Free what the class holds."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            close()


def _text(seen: Any) -> str:
    return seen if isinstance(seen, str) else json.dumps(seen, default=_listed)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
