"""Finding an environment by name: ``rhythm``, ``jsonl:tasks.jsonl``, or ``my_package.my_module:spec`` for one's own.

A loader takes the text after the first colon (or None) and returns an EnvironmentSpec. Loaders are named, not imported, so
that looking one up costs nothing until it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from gradus.core import ConfigError, EnvironmentSpec

__all__ = ["load", "names", "register"]

Loader = Callable[[str | None], EnvironmentSpec]

_LOADERS: dict[str, str | Loader] = {
    "rhythm": "gradus.environments.rhythm:load",
    "memory": "gradus.environments.memory:load",
    "arithmetic": "gradus.environments.verifiable:load_arithmetic",
    "gsm8k": "gradus.environments.verifiable:load_gsm8k",
    "jsonl": "gradus.environments.verifiable:load_jsonl",
    "csv": "gradus.environments.verifiable:load_csv",
    "openenv": "gradus.interop.openenv.client:load",  # a server elsewhere, openenv:ws://HOST:PORT
}


def register(name: str, loader: str | Loader) -> None:
    """Add an environment: a function, or ``module:function`` to import when it is first asked for."""
    _LOADERS[name] = loader


def names() -> list[str]:
    """The registered names, in order of registration."""
    return list(_LOADERS)


def load(name: str) -> EnvironmentSpec:
    """The environment called ``name``. A ``module:attribute`` that is an EnvironmentSpec works too."""
    head, _, argument = name.partition(":")
    if head in _LOADERS:
        found = _LOADERS[head]
        loader: Loader = _import(found) if isinstance(found, str) else found
        return loader(argument or None)
    if argument:
        spec = _import(name)
        if isinstance(spec, EnvironmentSpec):
            return spec
        if callable(spec):
            spec = spec()
            if isinstance(spec, EnvironmentSpec):
                return spec
        raise ConfigError(
            f"{name!r} is a {type(spec).__name__}; expected an EnvironmentSpec or a function that returns one"
        )
    raise ConfigError(
        f"unknown environment {name!r}; known are {', '.join(_LOADERS)}, or give your own as module:attribute"
    )


def _import(path: str):
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise
        raise ConfigError(
            f"no module {module!r} for environment {path!r}; is it installed and on PYTHONPATH?"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"module {module!r} has no attribute {attribute!r}") from error
