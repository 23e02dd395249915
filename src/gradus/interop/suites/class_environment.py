"""An object with ``reset`` and ``step`` as Gradus speaks to every environment. What it returns may have the form of Gymnasium."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.core import EnvironmentFault, Observation, child_rng
from gradus.core.values import stand_in
from gradus.core.waiting import settled

_FORMS = "(observation, reward, done), (observation, reward, terminated, truncated), the same with an info behind it, or an Observation"


def as_text(seen: Any) -> str:
    """Text as it is, anything else as JSON."""
    return seen if isinstance(seen, str) else json.dumps(seen, default=stand_in, ensure_ascii=False)


class ClassEnvironment:
    """An instance of a class. ``restart``: each turn is a prompt of its own, without the turns before.

    ``reset`` and ``step`` give what the rollout waits for, if those of the class are coroutines: episodes wait beside each other.
    """

    restart = False

    def __init__(self, inner: Any, actions: Sequence[str] = ()) -> None:
        self._inner = inner
        self._actions = {each.strip(): each for each in actions}
        self._name = type(inner).__name__
        self._episode_id, self._steps = "", 0
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """The class's own rules; if it has none, the answers that it understands."""
        rules = str(getattr(self._inner, "system_prompt", None) or "")
        return rules or (f"Answer with one of: {', '.join(sorted(self._actions))}." if self._actions else "")

    def expert(self) -> str:
        """Returns the class's own answer of this moment. Raises EnvironmentFault if that is not one of its actions."""
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
        self._steps, self._episode_id = 0, episode_id or f"{self._name}-{seed}"
        self._rng = child_rng(seed or 0, "invalid action")
        return _behind(self._reset_inner(seed, options), self._began)

    def step(self, action: str) -> Observation:
        """Pass the answer on. A random action stands in for an answer that is not an action, and the answer counts as invalid:
        if it were skipped, silence would win wherever steps cost something."""
        taken, error = self._understood(action)
        return _behind(self._inner.step(taken), lambda given: self._took(given, error))

    def outcome(self) -> Mapping[str, Any]:
        """Returns the number of steps, and the class's own ``outcome`` if it has one."""
        own: Callable[[], Any] | None = getattr(self._inner, "outcome", None)
        return {"steps": self._steps, **((settled(own()) if own else None) or {})}

    def close(self) -> None:
        """Free what the class holds."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            settled(close())

    def _reset_inner(self, seed: int | None, options: Mapping[str, Any]) -> Any:
        return self._inner.reset(seed=seed, **options)

    def _began(self, given: Any) -> Observation:
        if isinstance(given, Observation):
            return given
        with_info = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        return Observation(text=self._text(given[0] if with_info else given))

    def _text(self, seen: Any) -> str:
        return as_text(seen)

    def _understood(self, action: str) -> tuple[Any, str | None]:
        """Returns what the class is given, and what was wrong with the answer."""
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
            text=self._text(seen),
            restart=self.restart,
            reward=reward,  # the rollout looks at it
            terminated=bool(terminated),
            truncated=bool(rest)
            and not isinstance(rest[0], Mapping)
            and bool(rest[0]),  # a fourth value may be an info
            action_valid=error is None,
            action_error=error,
        )


def _behind(given: Any, then: Callable[[Any], Observation]) -> Any:
    """``then`` of what was given, or of what comes of it, if it is awaited."""
    if not inspect.isawaitable(given):
        return then(given)

    async def waited() -> Observation:
        return then(await given)

    return waited()
