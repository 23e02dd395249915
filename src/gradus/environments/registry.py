"""Finds an environment by name: ``rhythm``, ``jsonl:tasks.jsonl``, or one's own as ``my_module:spec``, ``mine.py:spec`` or ``mine.py``.

A loader takes the text after the first colon (or None) and returns an EnvironmentSpec. Loaders are named, not imported, so
that looking one up costs nothing until it is used. Other packages add theirs by the entry point group ``gradus.environments``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeGuard

from gradus.core import ConfigError, EnvironmentSpec, GradusError
from gradus.core.naming import did_you_mean, import_file, import_object
from gradus.policies.scripted import policy_factory

Loader = Callable[[str | None], EnvironmentSpec]

_LOADERS: dict[str, str] = {
    "arithmetic": "gradus.environments.verifiable:load_arithmetic",
    "gsm8k": "gradus.environments.verifiable:load_gsm8k",
    "jsonl": "gradus.environments.verifiable:load_jsonl",
    "csv": "gradus.environments.verifiable:load_csv",
    "openenv": "gradus.interop.openenv.client:load",
    "reasoning-gym": "gradus.interop.suites.reasoning_gym:load",
    "textarena": "gradus.interop.suites.textarena:load",
    "gymnasium": "gradus.interop.suites.gymnasium:load",
    "verifiers": "gradus.interop.suites.verifiers:load",
}

_NEED_A_NAME = {  # what stands after the colon says which environment it is
    "gsm8k": "word problems with worked solutions; gsm8k:PATH, or gsm8k:openai/gsm8k to download them",
    "jsonl": "your own questions and answers, a JSON object a line; jsonl:PATH",
    "csv": "your own questions and answers in a table; csv:PATH",
    "openenv": "an environment that a server runs; openenv:ws://HOST:PORT",
    "reasoning-gym": "puzzles with checked answers; reasoning-gym:NAME (gradus envs reasoning-gym: lists them)",
    "textarena": "games in words; textarena:GAME (gradus envs textarena: lists them)",
    "gymnasium": "Gymnasium's environments as text; gymnasium:ID (gradus envs gymnasium: lists them)",
    "verifiers": "an environment of verifiers; verifiers:MODULE or verifiers:FILE.py",
}

_OWN = frozenset(_LOADERS)
_GIVEN: dict[str, Loader] = {}


def register(name: str, loader: str | Loader) -> None:
    """Add an environment: a function, or ``module:function`` to import when it is first asked for.

    Raises ConfigError for a name of Gradus's own. A function takes the place of an earlier one of the same name.
    """
    if name in _OWN:
        raise ConfigError(
            f"{name!r} is an environment that comes with Gradus; for that one give its name, for your own choose another, "
            "as in dataclasses.replace(spec, name='mine')"
        )
    if isinstance(loader, str):
        _LOADERS[name] = loader
    else:
        _GIVEN[name] = loader


def _entry(head: str) -> str | Loader | EntryPoint | None:
    return _LOADERS.get(head) or _GIVEN.get(head) or _installed().get(head)


@cache
def _installed() -> dict[str, EntryPoint]:
    """What other packages bring; a name that Gradus has itself stays its own."""
    return {each.name: each for each in entry_points(group="gradus.environments")}


def names() -> list[str]:
    """The registered names, in order of registration."""
    return list(dict.fromkeys([*_LOADERS, *_GIVEN, *_installed()]))


def own_names() -> list[str]:
    """The names of those that come in Gradus's own distribution, its guests too."""
    guests = [name for name, each in _installed().items() if each.dist is not None and each.dist.name == "gradus-rl"]
    return [*(each for each in _LOADERS if each in _OWN), *guests]


def summary(name: str) -> str:
    """A line about a registered environment: what it is, and what it wants after a colon."""
    if name in _NEED_A_NAME:
        return _NEED_A_NAME[name]
    try:
        return load(name).summary
    except GradusError as error:  # of another package
        return f"cannot be described: {error}"


def load(name: str) -> EnvironmentSpec:
    """The environment called ``name``. One's own ``module:attribute``, ``FILE.py:NAME`` or ``FILE.py`` is imported."""
    head, separator, _ = name.partition(":")
    if name.endswith(".py") and head not in names():
        name, separator = f"{name}:{_only_one(name)}", ":"
    if head in names() or not separator:
        return load_registered(name)
    return with_random(_as_spec(name, import_object(name, "environment"), None))


def from_class(kind: type) -> EnvironmentSpec:
    """The environment that a class with ``reset`` and ``step`` is."""
    of_class: Callable[[type], EnvironmentSpec] = import_object("gradus.interop.classes:class_spec", "environment")
    return of_class(kind)


def load_registered(name: str) -> EnvironmentSpec:
    """A registered environment, and nothing else: no code runs because a data file names it."""
    head, _, argument = name.partition(":")
    entry = _entry(head)
    if entry is None:
        raise ConfigError(
            f"unknown environment {name!r}{did_you_mean(head, names())}; known are {', '.join(names())}, or give your "
            "own as module:attribute, FILE.py:NAME or FILE.py"
        )
    if isinstance(entry, EntryPoint):
        return with_random(_as_spec(name, entry.load(), argument or None))
    loader: Loader = import_object(entry, "environment") if isinstance(entry, str) else entry
    return with_random(loader(argument or None))


def with_random(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The environment with a policy ``random`` if it has random answers and no such policy."""
    draw = spec.audit.random_answers
    if draw is None or "random" in spec.policies:
        return spec
    policy = policy_factory("random", lambda seen, script: draw(script.rng.randrange(2**31)))
    return replace(spec, policies={**spec.policies, "random": policy})


def is_registered_by_name(name: str) -> bool:
    """Whether another process would find it too: registered in this one as a function, it would not."""
    head = name.partition(":")[0]
    return head in names() and (head in _LOADERS or head not in _GIVEN)


def _only_one(file: str) -> str:
    """The name in a file that is an environment: ``spec``, or the one class of its own with ``reset`` and ``step``."""
    module = import_file(file, "environment")
    if hasattr(module, "spec"):
        return "spec"
    own = [name for name, each in vars(module).items() if _steps(each) and each.__module__ == module.__name__]
    if len(own) != 1:
        raise ConfigError(
            f"{file} has {', '.join(own) or 'no class with reset and step'}, and no 'spec'; expected one of them, or name it as {file}:NAME"
        )
    return own[0]


def _steps(value: object) -> TypeGuard[type]:
    return isinstance(value, type) and hasattr(value, "reset") and hasattr(value, "step")


def _as_spec(name: str, value: object, argument: str | None) -> EnvironmentSpec:
    """A spec, a class with ``reset`` and ``step``, or what a function returns that makes a spec: of the text after the colon
    if it takes it, of nothing otherwise."""
    if _steps(value):
        return from_class(value)
    if callable(value) and not isinstance(value, EnvironmentSpec):
        try:
            value = value(argument) if _takes_argument(value) else value()
        except GradusError:
            raise
        except (Exception, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"{name!r} was called for an EnvironmentSpec and raised {type(error).__name__}: {error} "
                f"({place.filename}, line {place.lineno})"
            ) from error
    if not isinstance(value, EnvironmentSpec):
        raise ConfigError(
            f"{name!r} is a {type(value).__name__}; expected an EnvironmentSpec, a function that returns one, or a class with reset and step"
        )
    return value


def _takes_argument(function: Callable[..., object]) -> bool:
    import inspect

    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    return any(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
