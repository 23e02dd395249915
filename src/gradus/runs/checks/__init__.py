"""`gradus check`: finds what would go wrong in a run before it starts. Nothing is trained and nothing downloaded.

A check is one function from the subject to findings, and one entry in ``CHECKS``. A GradusError that escapes it is a finding
too: its message says what was expected and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gradus.core import ConfigError, GradusError
from gradus.runs.checks.data import data, environment
from gradus.runs.checks.model import base, context, memory, model, probe, too_long
from gradus.runs.checks.settings import names, settings
from gradus.runs.checks.subject import Circumstances, Finding, Subject, from_error, passed, status_of
from gradus.runs.progress import progress_bar
from gradus.runs.recipe.record import Recipe

__all__ = [
    "CHECKS",
    "Circumstances",
    "Finding",
    "check_recipe",
    "from_error",
    "require_names",
    "status_of",
]

Check = Callable[[Subject], Sequence[Finding]]

# name -> (what it does, the checks that must not have failed before it)
CHECKS: dict[str, tuple[Check, tuple[str, ...]]] = {
    "environment": (environment, ()),
    "names": (names, ("environment",)),
    "model": (model, ("environment",)),
    "data": (data, ("environment",)),
    "context": (context, ("environment", "model")),
    "memory": (memory, ("environment", "model", "context")),
    "probe": (probe, ("environment", "model", "memory")),
    "base": (base, ("environment", "model", "memory", "probe")),
    "settings": (settings, ("environment",)),
}


def check_recipe(recipe: Recipe, given: Circumstances) -> tuple[Finding, ...]:
    """All findings about a recipe that is going to be run as ``given``. Servers and hubs are asked only if that says so."""
    findings = [replace(passed(f"the recipe for {recipe.environment} is understood"), check="recipe")]
    with (
        TemporaryDirectory(prefix="gradus-check-") as scratch,
        progress_bar("check", len(CHECKS), "checks") as advance,
    ):
        subject = Subject(recipe, Path(scratch), given)
        for number, (name, (check, needs)) in enumerate(CHECKS.items()):
            advance(number, len(CHECKS), note=name)  # the data of 100,000 rows take a minute
            findings += _done(name, check, needs, subject, findings)
    return tuple(findings)


def require_names(recipe: Recipe) -> None:
    """Raise ConfigError for a policy, pair, condition, grader or promise of the recipe that is about nothing that is there, and
    for prompts and answers that are longer than the context of a model that was given.

    A run asks this before it trains; it costs next to nothing.
    """
    subject = Subject(recipe, Path(), Circumstances(online=recipe.model.path is not None))
    wrong = [finding for finding in names(subject) if finding.status == "fail"]
    if recipe.model.path is not None:
        with suppress(GradusError):  # what cannot be tried beforehand will be seen in the run
            wrong += [finding for finding in [too_long(subject)] if finding is not None]
    if wrong:
        lines = [f"{each.message}; {each.remedy}" for each in wrong]
        raise ConfigError("this run could not be finished:\n  " + "\n  ".join(lines))


def _done(name: str, check: Check, needs: Sequence[str], subject: Subject, so_far: Sequence[Finding]) -> list[Finding]:
    missing = [each.check for each in so_far if each.check in needs and each.status in ("fail", "skip")]
    if missing:
        return [Finding(check=name, status="skip", message=f"not looked at: {missing[0]} comes first")]
    try:
        return [replace(finding, check=name) for finding in check(subject)]
    except GradusError as error:
        return [from_error(error, name)]
