"""Shared by all suites: lists of names, and the message if a package is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

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


def started(worker: Worker, suite: str, requirement: str) -> Worker:
    """``worker``, running. Raises ConfigError if its package is not installed."""
    try:
        worker.start()
    except WorkerError as error:
        if error.type != "ModuleNotFoundError":
            raise ConfigError(f"{suite} cannot be started: {error}") from error
        raise ConfigError(f"{suite}: needs a package that is not installed: pip install {requirement}") from error
    return worker
