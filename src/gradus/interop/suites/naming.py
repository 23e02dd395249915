"""Shared by all suites: lists of names, options behind a name, and the message if a package is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

from gradus.core import ConfigError
from gradus.sandbox.worker import Worker, WorkerError

SuiteNames = Mapping[str, str]  # name -> a line about it

SUITES = {
    "reasoning-gym": "gradus.interop.suites.reasoning_gym",
    "textarena": "gradus.interop.suites.textarena",
    "gymnasium": "gradus.interop.suites.gymnasium",
    "verifiers": "gradus.interop.suites.verifiers",
}


def list_suite(suite: str) -> SuiteNames:
    """The names that ``SUITE:NAME`` takes, each with a line about it."""
    if suite not in SUITES:
        raise ConfigError(f"no suite {suite!r}; there are {', '.join(SUITES)}")
    names: Callable[[], SuiteNames] = import_module(SUITES[suite]).suite_names
    return names()


def read_options(name: str, query: str) -> dict[str, Any]:
    """The options behind a name, as in ``max_terms=2&style=short``. Raises ConfigError if they cannot be read."""
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigError(f"{name} should have options such as ?option=value&other=value; {error}") from error
    return {key: _value(text) for key, text in given}


def known_options(name: str, query: str, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The options behind a name that takes these and no others. ``known``: str, int or float; numbers are above 0."""
    options: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise ConfigError(f"unknown option {key!r} in {name}; known are {', '.join(known)}")
        try:
            options[key] = value = known[key](text)
        except ValueError:
            value = None
        if not value or (not isinstance(value, str) and not value > 0):
            expected = "a text" if known[key] is str else "a number above 0"
            raise ConfigError(f"the option {key} of {name} is {text!r}; expected {expected}")
    return options


def _value(text: str) -> Any:
    """The value of an option as JSON, or as the text that it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def started(worker: Worker, suite: str, requirement: str) -> Worker:
    """``worker``, running. Raises ConfigError if its package is not installed."""
    try:
        worker.start()
    except WorkerError as error:
        if error.type != "ModuleNotFoundError":
            raise ConfigError(f"{suite} cannot be started: {error}") from error
        raise ConfigError(f"{suite}: needs a package that is not installed: pip install {requirement}") from error
    return worker
