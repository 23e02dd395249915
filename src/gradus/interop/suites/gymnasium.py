"""``gymnasium:ID``: Gymnasium's environments with discrete actions, as text.

An observation is what the environment draws as text (``render_mode="ansi"``) if it can, and the observation's numbers otherwise.
Options go to ``gymnasium.make``, as in ``gymnasium:FrozenLake-v1?is_slippery=false``.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.values import Json
from gradus.environments.options import json_options
from gradus.environments.tools.environment import as_text
from gradus.interop.suites.games import ClassEnvironment, game_spec
from gradus.interop.suites.naming import SuiteNames

_COLORS = re.compile(r"\x1b\[([0-9;]*)m")
_ENDS = ("0", "")  # codes that end a color
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_NUMBERS = re.compile(r"[-−.\d]*\d")  # a number with a sign or a fraction is one, and not an action
_ACTIONS = re.compile(r"## Action Space\n(.*?)(?=\n\s*## |\Z)", re.DOTALL)
_TURNS = 100
_RULES = 1200  # characters of an environment's own description
_ANSWER = 50  # characters at the end of an answer in which its number is looked for


def suite_names() -> SuiteNames:
    """Registered ids with the module that has them; those without discrete actions are refused when they are loaded."""
    registry = sorted(_gymnasium().registry.items())
    return {name: str(spec.entry_point).partition(":")[0] for name, spec in registry}


def load(argument: str | None = None) -> EnvironmentSpec:
    """``ID`` or ``ID?option=value&...``."""
    if not argument:
        raise ConfigError("gymnasium takes an id, as in gymnasium:FrozenLake-v1; gradus envs gymnasium: lists them")
    name, _, query = argument.partition("?")
    full_name = f"gymnasium:{argument}"
    options = json_options(full_name, query)
    return _spec(full_name, name, lambda: _make(name, options))


def of_class(kind: type) -> EnvironmentSpec:
    """Returns the environment of a class of Gymnasium's: its actions are numbers, and what it draws as text is shown."""
    name = kind.__name__
    parameters = inspect.signature(kind).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    takes_mode = takes_any or "render_mode" in parameters
    options = _drawn_as_text(kind) if takes_mode else {}
    return _spec(name.lower(), name, lambda: kind(**options), turns=getattr(kind, "max_turns", None))


def _spec(full_name: str, name: str, make: Callable[[], Any], *, turns: int | None = None) -> EnvironmentSpec:
    first = GymnasiumText(name, make)
    with suppress(Exception):  # some need a reset before it; a close that fails after one is told
        first.close()
    actions = first.actions
    return game_spec(
        full_name,
        summary=f"Gymnasium's {name} as text, {actions} actions",
        make=lambda: GymnasiumText(name, make),
        random_move=lambda _, script: str(script.rng.randrange(actions)),
        moves=lambda seed: str(seed % actions),
        max_turns=turns or first.max_steps or _TURNS,
        per_turn=True,
        ladder=("random",),
    )


class GymnasiumText(ClassEnvironment):
    """One environment; an action is the number of a choice, the last number in the answer."""

    restart = True  # the observation is all there is to know, so that long episodes need no long prompts

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        try:
            super().__init__(make())
        except Exception as error:  # an unknown id, a missing package, an option that is refused: all say so
            raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
        self._name = name
        space = self.inner.action_space
        if type(space).__name__ != "Discrete":
            self.inner.close()
            raise ConfigError(f"{name} has actions of kind {type(space).__name__}; expected Discrete")
        self.actions = int(space.n)
        self._lowest = int(space.start)
        self.max_steps: int | None = self.inner.spec.max_episode_steps if self.inner.spec else None
        self._colored = False

    @property
    def system_prompt(self) -> str:
        """Says what the actions are, in the environment's own words if it has some, and how colors of a drawing are told."""
        section = _ACTIONS.search(inspect.getdoc(self.inner.unwrapped.__class__) or "")
        rules = section[1].strip()[:_RULES] if section else ""
        prompt = f"You act in {self._name}. Answer with the number of an action, 0 to {self.actions - 1}.\n{rules}"
        prompt = prompt.strip()
        if self._colored:
            prompt += "\nIn the drawing the color of a character stands before it in angle brackets."
        return prompt

    def _reset_inner(self, seed: int | None, options: Json) -> Any:
        return self.inner.reset(seed=seed, options=dict(options) or None)

    def _understood(self, action: str) -> tuple[int, str | None]:
        # The last number counts: models reason before they answer.
        numbers: list[str] = _NUMBERS.findall(action[-_ANSWER:])
        if numbers and numbers[-1].isdecimal() and int(numbers[-1]) < self.actions:
            return self._lowest + int(numbers[-1]), None
        return self._lowest + self._rng.randrange(self.actions), f"expected a number from 0 to {self.actions - 1}"

    def _text(self, observation: Any) -> str:
        if self.inner.render_mode != "ansi":
            return as_text(observation)
        drawing = str(self.inner.render())
        colors = set(_COLORS.findall(drawing)).difference(_ENDS)
        # One color marks a single thing; several must be told apart.
        self._colored = len(colors) > 1
        return _COLORS.sub(lambda code: self._mark(code[1]), drawing).strip()

    def _mark(self, code: str) -> str:
        """Returns what stands for a color's code: its name, or a star where a drawing has one color."""
        if code in _ENDS:
            return ""
        # The last digit of a code is the color: 31 is a red character, 41 a red ground.
        digit = int(code.partition(";")[0]) % 10
        color = _NAMES[digit % 8]
        return f"<{color}>" if self._colored else "*"


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ConfigError(
            "gymnasium: needs a package that is not installed: pip install 'gradus-rl[gymnasium]'"
        ) from error
    return gymnasium


def _make(name: str, options: Json) -> Any:
    gymnasium = _gymnasium()
    module, _, registered = name.rpartition(":")  # MODULE:ID as in gymnasium.make: the module registers the id
    if module:
        importlib.import_module(module)
    entry = gymnasium.spec(registered).entry_point
    kind = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
    return gymnasium.make(registered, **_drawn_as_text(kind), **options)


def _drawn_as_text(kind: Any) -> dict[str, str]:
    """The option that makes an environment draw itself as text, if it can."""
    metadata: Any = getattr(kind, "metadata", None)  # of a wrapper's class it is a property
    can = isinstance(metadata, Mapping) and "ansi" in metadata.get("render_modes", ())
    return {"render_mode": "ansi"} if can else {}
