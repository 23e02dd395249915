"""``gymnasium:ID``: Gymnasium's environments with discrete actions, as text. The way out, to Gymnasium, is ``interop/gymnasium.py``.

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

from gradus.core import ConfigError, EnvironmentFault, EnvironmentSpec, Observation, child_rng
from gradus.interop.suites.games import game_spec
from gradus.interop.suites.naming import SuiteNames, read_options
from gradus.interop.suites.shown import as_text
from gradus.policies.scripted import Script

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_ENDS = ("\x1b[0m", "\x1b[m")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MEANINGS = {  # where the environment's own description does not say it
    "TaxiEnv": "yellow: the taxi, empty; green: the taxi with the passenger; blue: the passenger; magenta: the destination."
}
_NUMBERS = re.compile(r"(?:(?<!\w)[-−])?\d+(?:\.\d+)*")  # a hyphen behind a letter or digit is no minus
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
    return _spec(f"gymnasium:{argument}", name, f"Gymnasium's {name} as text", lambda: _made(name, options))


def of_class(kind: type) -> EnvironmentSpec:
    """The environment that a class of Gymnasium's is: its actions are numbers, and what it draws as text is shown."""
    parameters = inspect.signature(kind).parameters.values()
    taken = any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)
    options = _drawn_as_text(kind) if taken else {}
    name = kind.__name__

    def make() -> Any:
        try:
            return kind(**options)
        except Exception as error:
            raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error

    return _spec(
        name.lower(),
        name,
        f"Gymnasium's {name} as text",
        make,
        turns=getattr(kind, "max_turns", None),
    )


def _spec(
    called: str, name: str, summary: str, make: Callable[[], Any], *, turns: int | None = None
) -> EnvironmentSpec:
    first = GymnasiumText(name, make)
    actions = first.actions
    limit = turns or first.max_steps or _TURNS
    with suppress(Exception, SystemExit):  # some need a reset before it; a close that fails after one is told
        first.close()
    return game_spec(
        called,
        summary=f"{summary}, {actions} actions",
        make=lambda: GymnasiumText(name, make),
        random_move=lambda _, script: _random_action(script, actions),
        moves=lambda seed: str(seed % actions),
        max_turns=limit,
        per_turn=True,
        ladder=("random",),
    )


class GymnasiumText:
    """One environment; an action is the number of a choice, the last number in the answer."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._env = make()
        self._name = name
        space: Any = getattr(self._env, "action_space", None)
        if type(space).__name__ != "Discrete":
            self._env.close()
            found = "no action_space" if space is None else f"actions of kind {type(space).__name__}"
            raise ConfigError(f"{name} has {found}; expected Discrete")
        self.actions, self._first = int(space.n), int(space.start)
        self.max_steps: int | None = self._env.spec.max_episode_steps if self._env.spec else None
        self._steps = 0
        self._episode_id = ""
        self._over = True
        self._colored = False
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """What the actions are, in the environment's own words if it has some."""
        rules = inspect.getdoc(type(self._env.unwrapped)) or ""
        section = re.search(r"## Action Space\n(.*?)(?=\n\s*## |\Z)", rules, re.DOTALL)
        text = section[1].strip()[:_RULES] if section else ""
        asked = (
            f"You act in {self._name}. Answer with the number of an action, 0 to {self.actions - 1}.\n{text}".strip()
        )
        return f"{asked}\n{self._legend()}".strip()

    def _legend(self) -> str:
        """What the colors of the last drawing are, if there are several."""
        if not self._colored:
            return ""
        meanings = _MEANINGS.get(type(self._env.unwrapped).__name__, "")
        return f"In the drawing the color of a character stands before it in angle brackets. {meanings}".strip()

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of steps."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin; options go to the environment's own reset."""
        seen, _ = self._env.reset(seed=seed, options=options or None)
        self._steps, self._over = 0, False
        self._rng = child_rng(seed or 0, "invalid action")
        self._episode_id = episode_id or f"{self._name}-{seed}"
        return Observation(text=self._text(seen))

    def step(self, action: str) -> Observation:
        """Take the last number in the answer. An answer without a legal one is invalid, and a random action stands in for it:
        if it were skipped, silence would win wherever steps cost something."""
        if self._over:
            raise EnvironmentFault("expected reset before this step: the episode is over, or has not begun")
        named = _number(action[-50:])
        valid = named is not None and named < self.actions
        choice = named if named is not None and valid else self._rng.randrange(self.actions)
        seen, reward, terminated, truncated, _ = self._env.step(self._first + choice)
        self._steps += 1
        self._over = bool(terminated or truncated)
        return Observation(
            text=self._text(seen),
            restart=True,  # the observation is all there is to know, so that long episodes need no long prompts
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            action_valid=valid,
            action_error=None if valid else f"expected a number from 0 to {self.actions - 1}",
        )

    def outcome(self) -> Mapping[str, Any]:
        """The number of steps."""
        return {"steps": self._steps}

    def close(self) -> None:
        """Free what the environment holds."""
        self._env.close()

    def _text(self, seen: Any) -> str:
        if self._env.render_mode == "ansi":
            drawn = str(self._env.render())
            self._colored = len({code for code in _COLORS.findall(drawn) if code not in _ENDS}) > 1
            return _COLORS.sub(lambda code: self._mark(code[0]), drawn).strip()
        return as_text(seen)

    def _mark(self, code: str) -> str:
        """What stands for a color's code: its name, or a star where a drawing has one color."""
        if code in _ENDS:
            return ""
        return f"<{_color(code)}>" if self._colored else "*"


def _color(code: str) -> str:
    """The name of a color's code (its letters or its background), or its numbers if they have no name."""
    numbers = [int(number) for number in re.findall(r"\d+", code)]
    named = [_NAMES[number % 10] for number in numbers if number // 10 in (3, 4, 9, 10) and number % 10 < len(_NAMES)]
    return named[0] if len(named) == 1 else code[2:-1]


def _number(answer: str) -> int | None:
    """The last number, if it is one that can be an action: -1 and 1.5 are none, though they have digits that are."""
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


def _random_action(script: Script, actions: int) -> str:
    return str(script.rng.randrange(actions))
