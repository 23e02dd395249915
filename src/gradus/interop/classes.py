"""A class of one's own with ``reset`` and ``step`` as an environment: ``FILE.py:CLASS``, or ``FILE.py`` if it has one such class.

What ``reset`` and ``step`` return may have the form of Gymnasium (tuples), or be Observations. The class may say more by
attributes: ``actions`` (the answers that it understands), ``system_prompt`` (the rules), ``max_turns`` (20 if left out). A method
``expert()`` says what should be answered now; it may know what is hidden, so it is a teacher that a student may not reach. All methods may
be coroutines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite, nan
from random import Random
from typing import Any

from gradus.core import (
    Action,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    EpisodeStart,
    Failure,
    Language,
    Observation,
    Policy,
    Request,
    child_rng,
)
from gradus.core.waiting import settled
from gradus.interop.suites.games import game_spec
from gradus.interop.suites.gymnasium import of_class
from gradus.interop.suites.shown import as_text
from gradus.policies.scripted import Script

_TURNS = 20
_FORMS = "(observation, reward, done), (observation, reward, terminated, truncated), the same with an info behind it, or an Observation"


def class_spec(kind: type, *, name: str | None = None) -> EnvironmentSpec:
    """The environment that a class is: rewards are its own, and the true reward is their sum.

    Raises ConfigError if a method is missing, ``reset`` takes no seed, the class cannot be made without arguments, or ``actions`` is no
    list of texts.
    """
    _check_methods(kind)
    if _is_gymnasium(kind):  # its actions are numbers, which answers are not
        return of_class(kind)
    first = _instance(kind)  # what is set in __init__, or is a property, only an instance knows
    try:
        actions, turns = _actions(first), _turns(first)
    finally:
        with suppress(Exception, SystemExit):  # some need a reset before it; a close that fails after one is told
            ClassEnvironment(first).close()
    waits = any(inspect.iscoroutinefunction(getattr(kind, each)) for each in ("reset", "step"))
    wrapper = _WaitingEnvironment if waits else ClassEnvironment

    def move(seed: int) -> str:
        return Random(seed).choice(actions) if actions else str(seed)

    def random_move(_: Observation, script: Script) -> str:
        return script.rng.choice(actions) if actions else str(script.rng.randrange(10))

    teachers = ("expert",) if hasattr(kind, "expert") else ()
    spec = game_spec(
        name or kind.__name__.lower(),
        summary=(inspect.getdoc(kind) or kind.__name__).partition("\n")[0],
        make=lambda: wrapper(_instance(kind), actions),
        random_move=random_move,
        moves=move,
        max_turns=turns,
        per_turn=True,
        teacher=(*teachers, "random")[0],
        ladder=(*(() if actions else ("silence",)), "random", *teachers),
    )
    if teachers:
        spec = replace(spec, policies={**spec.policies, "expert": _expert})
    if (
        not actions and not teachers
    ):  # random digits teach nobody, no words of theirs are known, and a game's recipe begins with both
        spec = replace(spec, teacher=None, language=Language(), recipe=None)
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
    if not any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in _parameters(reset)):
        raise ConfigError(
            f"{kind.__name__}.reset takes no seed; expected reset(self, seed), because the episodes of a group begin alike"
        )


def _is_gymnasium(kind: type) -> bool:
    """Whether it is a class of Gymnasium's, told by its bases, so that nothing has to be installed for any other."""
    return any(f"{base.__module__}.{base.__qualname__}" == "gymnasium.core.Env" for base in kind.__mro__)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _instance(kind: type) -> Any:
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{kind.__name__} cannot be made: {type(error).__name__}: {error}") from error


def _turns(first: Any) -> int:
    turns = _said(first, "max_turns", _TURNS)
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"{type(first).__name__}.max_turns is {turns!r}; expected a whole number from 1 on")
    return turns


def _actions(first: Any) -> Sequence[str]:
    given, name = _said(first, "actions", ()), type(first).__name__
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{name}.actions is {given!r}; expected a list of texts, the answers it understands")
    if len({each.strip() for each in given}) < len(set(given)):
        raise ConfigError(f"{name}.actions is {given!r}; expected texts that differ by more than spaces at an end")
    return given


def _said(first: Any, name: str, default: Any) -> Any:
    try:
        return getattr(first, name, default)
    except (Exception, SystemExit) as error:  # a property that needs a reset before it
        raise ConfigError(
            f"{type(first).__name__}.{name} cannot be read: {type(error).__name__}: {error}; expected what is known before a reset"
        ) from error


def _expert(argument: str | None) -> Policy:
    if argument is not None:
        raise ConfigError(f"policy 'expert' takes no argument, got {argument!r}")
    return _Expert()


class _Expert:
    """Answers what the class's own ``expert`` says. Where it raises, or says what is no answer, that episode fails."""

    name = "expert"

    def start(self, episodes: Sequence[EpisodeStart]) -> _ExpertSession:
        return _ExpertSession([each.environment for each in episodes])


class _ExpertSession:
    def __init__(self, environments: Sequence[Any]) -> None:
        self._environments = environments

    def act(self, requests: Sequence[Request]) -> list[Action]:
        return [_expert_action(self._environments[each.row]) for each in requests]

    def close(self) -> None: ...


def _expert_action(environment: Any) -> Action:
    try:
        return Action(text=environment.expert())
    except (Exception, SystemExit) as error:
        return Action(text="", failure=Failure(stage="act", type=type(error).__name__, message=f"expert: {error}"))


class ClassEnvironment:
    """An instance of the class, spoken to as Gradus speaks to every environment."""

    def __init__(self, inner: Any, actions: Sequence[str] = ()) -> None:
        self._inner = inner
        self._actions = {each.strip(): each for each in actions}
        self._name = type(inner).__name__
        self._episode_id, self._steps = "", 0
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """The class's own rules, with the answers that it understands if it names none."""
        given = getattr(self._inner, "system_prompt", "")
        rules = str((settled(given()) if callable(given) else given) or "")
        return rules or (f"Answer with one of: {', '.join(sorted(self._actions))}." if self._actions else "")

    def expert(self) -> str:
        """What the class itself would answer now. Raises EnvironmentFault if that is none of its actions, or nothing at all."""
        given = settled(self._inner.expert())
        if given is None or (self._actions and str(given).strip() not in self._actions):
            expected = f"one of {', '.join(sorted(self._actions))}" if self._actions else "an answer"
            raise EnvironmentFault(f"{self._name}.expert gave {given!r:.60}; expected {expected}")
        return str(given)

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of steps."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin; options go to the class's own reset."""
        return self._began(settled(self._inner.reset(seed=seed, **options)), seed, episode_id)

    def step(self, action: str) -> Observation:
        """Pass the answer on. If the class names its actions and this is none, a random one stands in for it and the answer
        counts as invalid: if it were skipped, silence would win wherever steps cost something."""
        taken, error = self._understood(action)
        return self._took(settled(self._inner.step(taken)), error)

    def _began(self, given: Any, seed: int | None, episode_id: str | None) -> Observation:
        self._steps, self._episode_id = 0, episode_id or f"{self._name}-{seed}"
        self._rng = child_rng(seed or 0, "invalid action")
        if isinstance(given, Observation):
            return given
        with_info = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        return Observation(text=as_text(given[0] if with_info else given))

    def _understood(self, action: str) -> tuple[str, str | None]:
        """What the class is given, and what was wrong with the answer."""
        if not self._actions:
            return action, None
        if (known := self._actions.get(action.strip())) is not None:
            return known, None
        names = sorted(self._actions)
        return self._actions[names[self._rng.randrange(len(names))]], f"expected one of {', '.join(names)}"

    def _took(self, given: Any, error: str | None) -> Observation:
        self._steps += 1
        if isinstance(given, Observation):
            return given if error is None else replace(given, action_valid=False, action_error=error)
        if not isinstance(given, tuple) or len(given) not in (3, 4, 5):
            raise EnvironmentFault(f"{self._name}.step returned {type(given).__name__}; expected {_FORMS}")
        seen, reward, terminated, *rest = given
        return Observation(
            text=as_text(seen),
            reward=self._reward(reward),
            terminated=bool(terminated),
            truncated=bool(rest[0]) if len(given) == 5 or (rest and _is_truth(rest[0])) else False,
            action_valid=error is None,
            action_error=error,
        )

    def _reward(self, given: Any) -> float | None:
        try:
            number = None if given is None else float(given)
        except (TypeError, ValueError):
            number = nan
        if number is not None and not isfinite(number):
            shown = repr(given) if isinstance(given, str) else given
            raise EnvironmentFault(f"{self._name}.step gave the reward {shown!s:.60}; expected a finite number or None")
        return number

    def outcome(self) -> Mapping[str, Any]:
        """What the class's own ``outcome`` says if it has one, and the number of steps."""
        own: Callable[[], Any] | None = getattr(self._inner, "outcome", None)
        return {"steps": self._steps, **((settled(own()) if own else None) or {})}

    def close(self) -> None:
        """Free what the class holds."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            settled(close())


class _WaitingEnvironment(ClassEnvironment):
    """The same for a class whose ``reset`` or ``step`` is a coroutine: episodes wait beside each other."""

    async def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> Observation:
        given = self._inner.reset(seed=seed, **options)
        return self._began(await given if inspect.isawaitable(given) else given, seed, episode_id)

    async def step(self, action: str) -> Observation:  # pyright: ignore[reportIncompatibleMethodOverride]
        taken, error = self._understood(action)
        given = self._inner.step(taken)
        return self._took(await given if inspect.isawaitable(given) else given, error)


def _is_truth(value: Any) -> bool:
    """Whether a fourth value says that the episode was cut; an info says nothing that is shown."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
