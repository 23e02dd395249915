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

from gradus.core import ConfigError, EnvironmentSpec, Observation
from gradus.interop.suites.class_environment import ClassEnvironment, as_text
from gradus.interop.suites.games import game_spec
from gradus.interop.suites.naming import SuiteNames, read_options

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_ENDS = ("\x1b[0m", "\x1b[m")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MEANINGS = {  # where the environment's own description does not say it
    "TaxiEnv": "yellow: the taxi, empty; green: the taxi with the passenger; blue: the passenger; magenta: the destination."
}
_NUMBERS = re.compile(r"(?:(?<!\w)[-−])?\d+(?:\.\d+)*")  # a hyphen behind a letter or digit is not a minus
_TURNS = 100
_RULES = 1200  # characters of an environment's own description


def suite_names() -> SuiteNames:
    """Registered ids with the module that has them; those without discrete actions are refused when they are loaded."""
    return {name: str(spec.entry_point).partition(":")[0] for name, spec in sorted(_gymnasium().registry.items())}


def load(argument: str | None = None) -> EnvironmentSpec:
    """``ID`` or ``ID?option=value&...``."""
    if not argument:
        raise ConfigError("gymnasium takes an id, as in gymnasium:FrozenLake-v1; gradus envs gymnasium: lists them")
    name, _, query = argument.partition("?")
    options = read_options(f"gymnasium:{argument}", query)
    return _spec(f"gymnasium:{argument}", name, lambda: _made(name, options))


def of_class(kind: type) -> EnvironmentSpec:
    """Returns the environment of a class of Gymnasium's: its actions are numbers, and what it draws as text is shown."""
    parameters = inspect.signature(kind).parameters.values()
    taken = any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)
    options = _drawn_as_text(kind) if taken else {}
    name = kind.__name__

    def make() -> Any:
        try:
            return kind(**options)
        except Exception as error:
            raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error

    return _spec(name.lower(), name, make, turns=getattr(kind, "max_turns", None))


def _spec(called: str, name: str, make: Callable[[], Any], *, turns: int | None = None) -> EnvironmentSpec:
    first = GymnasiumText(name, make)
    actions = first.actions
    with suppress(Exception, SystemExit):  # some need a reset before it; a close that fails after one is told
        first.close()
    return game_spec(
        called,
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
        super().__init__(make())
        self._name = name
        space: Any = getattr(self._inner, "action_space", None)
        if type(space).__name__ != "Discrete":
            self._inner.close()
            found = "no action_space" if space is None else f"actions of kind {type(space).__name__}"
            raise ConfigError(f"{name} has {found}; expected Discrete")
        self.actions, self._first = int(space.n), int(space.start)
        self.max_steps: int | None = self._inner.spec.max_episode_steps if self._inner.spec else None
        self._colored = False

    @property
    def system_prompt(self) -> str:
        """Says what the actions are, in the environment's own words if it has some, and what the drawing's colors are if it has several."""
        kind = type(self._inner.unwrapped)
        section = re.search(r"## Action Space\n(.*?)(?=\n\s*## |\Z)", inspect.getdoc(kind) or "", re.DOTALL)
        text = section[1].strip()[:_RULES] if section else ""
        asked = (
            f"You act in {self._name}. Answer with the number of an action, 0 to {self.actions - 1}.\n{text}".strip()
        )
        if not self._colored:
            return asked
        legend = "In the drawing the color of a character stands before it in angle brackets."
        return f"{asked}\n{legend} {_MEANINGS.get(kind.__name__, '')}".strip()

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin; options go to the environment's own reset."""
        return self._began(self._inner.reset(seed=seed, options=options or None), seed, episode_id)

    def outcome(self) -> Mapping[str, Any]:
        """The number of steps."""
        return {"steps": self._steps}

    def _understood(self, action: str) -> tuple[int, str | None]:
        named = _number(action[-50:])
        if named is not None and named < self.actions:
            return self._first + named, None
        return self._first + self._rng.randrange(self.actions), f"expected a number from 0 to {self.actions - 1}"

    def _text(self, seen: Any) -> str:
        if self._inner.render_mode != "ansi":
            return as_text(seen)
        drawn = str(self._inner.render())
        self._colored = len({code for code in _COLORS.findall(drawn) if code not in _ENDS}) > 1
        return _COLORS.sub(lambda code: self._mark(code[0]), drawn).strip()

    def _mark(self, code: str) -> str:
        """Returns what stands for a color's code: its name, or a star where a drawing has one color."""
        if code in _ENDS:
            return ""
        return f"<{_color(code)}>" if self._colored else "*"


def _color(code: str) -> str:
    """The name of a color's code (its letters or its background), or its numbers if they have no name."""
    numbers = [int(number) for number in re.findall(r"\d+", code)]
    named = [_NAMES[number % 10] for number in numbers if number // 10 in (3, 4, 9, 10) and number % 10 < len(_NAMES)]
    return named[0] if len(named) == 1 else code[2:-1]


def _number(answer: str) -> int | None:
    """The last number, if it is one that can be an action: -1 and 1.5 are not, though single digits in them are."""
    numbers = _NUMBERS.findall(answer)
    return int(numbers[-1]) if numbers and numbers[-1].isdecimal() and len(numbers[-1]) < 10 else None


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ConfigError(
            "gymnasium: needs a package that is not installed: pip install 'gradus-rl[gymnasium]'"
        ) from error
    return gymnasium


def _made(name: str, options: Mapping[str, Any]) -> Any:
    gymnasium = _gymnasium()
    module, _, registered = name.rpartition(":")  # MODULE:ID as in gymnasium.make: the module registers the id
    try:
        if module:
            importlib.import_module(module)
        entry = gymnasium.spec(registered).entry_point
        kind = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
        return gymnasium.make(registered, **_drawn_as_text(kind), **options)
    except Exception as error:  # an unknown id, a missing package, an option that is refused: all say so
        hint = ""
        if module:
            hint = "; your own class is FILE.py:CLASS"
        elif registered not in gymnasium.registry:
            hint = "; an id that another package registers is PACKAGE:ID"
        given = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        said = f"KeyError: {error}" if isinstance(error, KeyError) else error  # whose text is the key alone
        raise ConfigError(f"gymnasium:{name} cannot be made{given}: {said}{hint}") from error


def _drawn_as_text(kind: Any) -> dict[str, str]:
    """The option that makes an environment draw itself as text, if it can."""
    metadata = getattr(kind, "metadata", None)  # of a wrapper's class it is a property
    return (
        {"render_mode": "ansi"} if isinstance(metadata, Mapping) and "ansi" in metadata.get("render_modes", ()) else {}
    )
