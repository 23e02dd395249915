"""The environments that come with Gradus, by name, and the way to bring one's own.

They are found by name: ``rhythm``, ``jsonl:tasks.jsonl``, or one's own as ``my_module:spec``, ``mine.py:spec`` or ``mine.py``.

A loader takes the text after the first colon (or None) and returns an EnvironmentSpec. Loaders are named, not imported, so
that looking one up costs nothing until it is used. Packages bring theirs by the entry point group ``gradus.environments``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeGuard

from gradus.core import ConfigError, EnvironmentSpec, GradusError
from gradus.core.foreign import raised_at
from gradus.core.naming import did_you_mean, import_file, import_object
from gradus.environments.options import format_of
from gradus.policies.scripted import policy_factory

Loader = Callable[[str | None], EnvironmentSpec]

_AGENT = "gradus.interop.agents.spec:load"
_OWN = {
    "arithmetic": "gradus.environments.verifiable.spec:load_arithmetic",
    "gsm8k": "gradus.environments.verifiable.from_files:load_gsm8k",
    "jsonl": "gradus.environments.verifiable.from_files:load_jsonl",
    "csv": "gradus.environments.verifiable.from_files:load_csv",
    "parquet": "gradus.environments.verifiable.from_files:load_parquet",
    "hf": "gradus.environments.verifiable.from_files:load_hf",
    "openenv": "gradus.interop.openenv.client:load",
    "reasoning-gym": "gradus.interop.suites.reasoning_gym:load",
    "textarena": "gradus.interop.suites.textarena:load",
    "gymnasium": "gradus.interop.suites.gymnasium:load",
    "verifiers": "gradus.interop.suites.verifiers:load",
    "agent": _AGENT,
    "command": "gradus.interop.agents.spec:load_command",
}
_AFTER_THE_COLON = {
    "gsm8k": "word problems with worked solutions; gsm8k:PATH, or gsm8k:openai/gsm8k to download them",
    "jsonl": "your own questions and answers, a JSON object a line; jsonl:PATH",
    "csv": "your own questions and answers in a table; csv:PATH",
    "parquet": "your own questions and answers in a Parquet file; parquet:PATH",
    "hf": "a data set of the hub; hf:OWNER/NAME[:CONFIG][@SPLIT], or the folder of one",
    "openenv": "an environment that a server runs; openenv:ws://HOST:PORT",
    "reasoning-gym": "puzzles with checked answers; reasoning-gym:NAME (gradus envs reasoning-gym: lists them)",
    "textarena": "games in words; textarena:GAME (gradus envs textarena: lists them)",
    "gymnasium": "Gymnasium's environments as text; gymnasium:ID (gradus envs gymnasium: lists them)",
    "verifiers": "an environment of verifiers; verifiers:MODULE or verifiers:FILE.py",
    "agent": "a function that talks to an OpenAI client; agent:FILE.py:NAME?tasks=rows.jsonl",
    "command": "an agent in any language; command:LINE?tasks=rows.jsonl",
}
_OTHER_FILES = (".arrow", ".xlsx", ".zip")


@cache
def _installed() -> dict[str, EntryPoint]:
    """Entry points of installed packages by name. Those of one package keep its order."""
    return {each.name: each for each in entry_points(group="gradus.environments")}


def names() -> list[str]:
    """Returns all names: installed packages' first, then Gradus's own."""
    return list(dict.fromkeys([*_installed(), *_OWN]))


def own_names() -> list[str]:
    """Returns the names of Gradus's own environments."""
    return list(_OWN)


def summary(name: str) -> str:
    """Describes a registered environment in a line, with what its name needs after a colon."""
    if name in _AFTER_THE_COLON:
        return _AFTER_THE_COLON[name]
    try:
        return load(name).summary
    except GradusError as error:  # of another package
        return f"cannot be described: {error}"


def file_name(name: str) -> str:
    """Names a file of rows as an environment: ``rows.jsonl`` is ``jsonl:rows.jsonl``. Returns every other name as it is.

    >>> file_name("rows.csv.gz?answer=target"), file_name("arithmetic")
    ('csv:rows.csv.gz?answer=target', 'arithmetic')
    """
    path = name.partition("?")[0]
    if ":" in path and not Path(path).is_file():
        return name
    if path.lower().removesuffix(".gz").endswith(_OTHER_FILES):
        raise ConfigError(
            f"{path}: rows are read from .jsonl, .json, .csv and .parquet files; convert it, for example by pandas' to_json('rows.jsonl', "
            "orient='records', lines=True), or give the rows themselves, as in gradus.audit(rows)"
        )
    kind = format_of(path)
    return name if kind is None else f"{kind}:{name}"


def load(name: str) -> EnvironmentSpec:
    """Loads an environment. One's own ``module:attribute``, ``FILE.py:NAME`` or ``FILE.py`` is imported."""
    head, separator, _ = name.partition(":")
    if name.endswith(".py") and head not in names():
        name = f"{name}:{_only_one(name)}"
        separator = ":"
    if head in names() or not separator:
        return load_registered(name)
    value = import_object(name.partition("?")[0], "environment")
    if _is_agent(value):
        return load_registered(f"agent:{name}")
    return with_random(_as_spec(name, value, None))


def load_stored(name: str) -> EnvironmentSpec:
    """Loads the environment that a stored file names. Raises ConfigError if that would import code or ask a server."""
    head, _, argument = name.partition(":")
    if head in ("verifiers", "openenv", "agent", "command", "hf") or (head == "gymnasium" and ":" in argument):
        raise ConfigError(
            f"the file names the environment {name!r}, which runs other code; if you trust it, name it with --env {name}"
        )
    return load_registered(name)


def load_registered(name: str) -> EnvironmentSpec:
    """Loads a registered environment, and nothing else: no code runs because a data file names it."""
    head, _, argument = name.partition(":")
    loader = _OWN.get(head) or _installed().get(head)
    if loader is None:
        raise ConfigError(
            f"unknown environment {name!r}{did_you_mean(head, names())}; known are {', '.join(names())}, or give your "
            "own as module:attribute, FILE.py:NAME or FILE.py"
        )
    if isinstance(loader, EntryPoint):
        return with_random(_as_spec(name, loader.load(), argument or None))
    make: Loader = import_object(loader, "environment")
    return with_random(make(argument or None))


def from_class(kind: type) -> EnvironmentSpec:
    """Makes an environment of a class with ``reset`` and ``step``."""
    of_class: Callable[[type], EnvironmentSpec] = import_object("gradus.interop.classes:class_spec", "environment")
    return of_class(kind)


def with_random(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Adds a policy ``random`` if the environment has random answers and no such policy."""
    draw = spec.audit.random_answers
    if draw is None or "random" in spec.policies:
        return spec
    policy = policy_factory("random", lambda seen, script: draw(script.rng.randrange(2**31)))
    return replace(spec, policies={**spec.policies, "random": policy})


def is_registered(name: str) -> bool:
    """Says whether a name is that of Gradus's own environments or an installed package's, and no path to code of one's own."""
    return name.partition(":")[0] in names()


def _only_one(file: str) -> str:
    """Finds the environment in a file: ``spec``, or the one class of its own with ``reset`` and ``step``."""
    module = import_file(file, "environment")
    if hasattr(module, "spec"):
        return "spec"
    # What the file imports from elsewhere is not its own.
    classes = [name for name, each in vars(module).items() if _steps(each) and each.__module__ == module.__name__]
    if len(classes) != 1:
        raise ConfigError(
            f"{file} has {', '.join(classes) or 'no class with reset and step'}, and no 'spec'; expected one of them, or name it as {file}:NAME"
        )
    return classes[0]


def _is_agent(value: object) -> bool:
    """True for a function of a task and a client."""
    if not callable(value) or isinstance(value, type | EnvironmentSpec):
        return False
    # By name, for the arrows of the library point from interop to here.
    has_client: Callable[[object], bool] = import_object("gradus.interop.agents.spec:is_agent", "environment")
    return has_client(value)


def _steps(value: object) -> TypeGuard[type]:
    return isinstance(value, type) and hasattr(value, "reset") and hasattr(value, "step")


def _as_spec(name: str, value: object, argument: str | None) -> EnvironmentSpec:
    """Makes an environment of a spec, a class with ``reset`` and ``step``, or a function that returns a spec."""
    if _steps(value):
        return from_class(value)
    if callable(value) and not isinstance(value, EnvironmentSpec):
        try:
            value = value(argument) if _takes_argument(value) else value()
        except GradusError:
            raise
        except (Exception, SystemExit) as error:
            raised = f"{type(error).__name__}: {error}{raised_at(error)}"
            raise ConfigError(f"{name!r} was called for an EnvironmentSpec and raised {raised}") from error
    if not isinstance(value, EnvironmentSpec):
        raise ConfigError(
            f"{name!r} is a {type(value).__name__}; expected an EnvironmentSpec, a function that returns one, or a class with reset and step"
        )
    return value


def _takes_argument(function: Callable[..., object]) -> bool:
    kinds = {each.kind for each in inspect.signature(function).parameters.values()}
    return bool(kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
