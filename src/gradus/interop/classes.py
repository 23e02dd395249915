"""A class of one's own with ``reset`` and ``step`` as an environment: ``FILE.py:CLASS``, or ``FILE.py`` if it has one such class.

What ``reset`` and ``step`` return may have the form of Gymnasium (tuples), or be Observations. The class may say more by
attributes: ``actions`` (the answers that it understands), ``system_prompt`` (the rules), ``max_turns`` (20 if left out). A method
``expert()`` says what should be answered now; it may know what is hidden, so it is a teacher that a student may not reach. All methods may
be coroutines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from gradus.core import ConfigError, EnvironmentSpec, Observation
from gradus.interop.suites.games import ClassEnvironment, game_spec
from gradus.interop.suites.gymnasium import of_class
from gradus.policies.scripted import Script, policy_factory

_TURNS = 20  # of an episode, if the class does not say


def class_spec(kind: type, *, name: str | None = None) -> EnvironmentSpec:
    """Returns the environment of a class. Rewards are its own, and the true reward is their sum.

    Raises ConfigError if a method is missing, ``reset`` takes no seed, the class cannot be made without arguments, or ``actions`` is
    not a list of texts.
    """
    _check_methods(kind)
    # By name, so that gymnasium need not be installed for a class that has nothing to do with it.
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if "gymnasium.core.Env" in bases:
        return of_class(kind)  # its actions are numbers, which answers are not
    actions, turns = _attributes(kind)
    has_expert = hasattr(kind, "expert")

    def random_move(_: Observation, script: Script) -> str:
        return script.rng.choice(actions) if actions else str(script.rng.randrange(10))

    teacher = "random" if actions else None  # random digits teach nobody
    ladder = ["random"]
    # With actions a random one stands in for silence, so silence is no floor.
    if not actions:
        ladder.insert(0, "silence")
    if has_expert:
        teacher = "expert"
        ladder.append("expert")
    spec = game_spec(
        name or kind.__name__.lower(),
        summary=(inspect.getdoc(kind) or kind.__name__).partition("\n")[0],
        make=lambda: ClassEnvironment(kind(), actions),
        random_move=random_move,
        moves=(lambda seed: Random(seed).choice(actions)) if actions else None,
        max_turns=turns,
        per_turn=True,
        teacher=teacher,
        ladder=ladder,
    )
    if not has_expert:
        return spec
    return replace(spec, policies={**spec.policies, "expert": policy_factory("expert", _expert)})


def _expert(_: Observation, script: Script) -> str:
    environment: Any = script.start.environment
    return environment.expert()


def _check_methods(kind: type) -> None:
    reset: Callable[..., Any] | None = getattr(kind, "reset", None)
    if not callable(reset) or not callable(getattr(kind, "step", None)):
        raise ConfigError(
            f"{kind.__name__} cannot be an environment; expected a class with reset(self, seed) and step(self, action)"
        )
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL:
            raise ConfigError(f"{kind.__name__} needs arguments to be made; give a subclass whose __init__ needs none")
    parameters = inspect.signature(reset).parameters
    # Without a seed the members of a group would begin differently, and GRPO would compare nothing.
    if "seed" not in parameters and not any(extra.kind is extra.VAR_KEYWORD for extra in parameters.values()):
        raise ConfigError(
            f"{kind.__name__}.reset takes no seed; expected reset(self, seed), because the episodes of a group begin alike"
        )


def _attributes(kind: type) -> tuple[Sequence[str], int]:
    """Returns the actions and the number of turns. What is set in __init__, or is a property, only an instance knows."""
    try:
        instance = kind()
        actions = getattr(instance, "actions", ())
        turns = getattr(instance, "max_turns", _TURNS)
    except Exception as error:
        raise ConfigError(f"{kind.__name__} cannot be made: {type(error).__name__}: {error}") from error
    # One text alone would be taken for the list of its letters.
    texts = list(cast(Sequence[Any], actions)) if isinstance(actions, list | tuple) else None
    if texts is None or not all(isinstance(action, str) for action in texts):
        raise ConfigError(
            f"{kind.__name__}.actions is {actions!r}; expected a list of texts, the answers it understands"
        )
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"{kind.__name__}.max_turns is {turns!r}; expected a whole number from 1 on")
    return texts, turns
