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
from gradus.core.findings import Finding
from gradus.runs.forecast.data import data, environment
from gradus.runs.forecast.model import base, context, memory, model, probe, reference, server
from gradus.runs.forecast.settings import names, settings
from gradus.runs.forecast.subject import Circumstances, Subject, from_error
from gradus.runs.job import Job
from gradus.runs.progress import progress_bar

_HERE, _SERVED = {"memory", "probe", "base"}, {"server"}  # checks of a model in this process, and of one on a server
Check = Callable[[Subject], Sequence[Finding]]

# name -> (what it does, the checks that must not have failed before it); in the order in which they are made
CHECKS: dict[str, tuple[Check, tuple[str, ...]]] = {
    "environment": (environment, ()),
    "names": (names, ("environment",)),
    "model": (model, ("environment",)),
    "data": (data, ("environment",)),
    "context": (context, ("environment", "model")),
    "reference": (reference, ("environment",)),
    "server": (server, ("environment", "model")),
    "memory": (memory, ("environment", "model", "context")),
    "probe": (probe, ("environment", "model", "memory")),
    "base": (base, ("environment", "model", "memory", "probe")),
    "settings": (settings, ("environment",)),
}


def check_job(job: Job, circumstances: Circumstances) -> tuple[Finding, ...]:
    """All findings about a job that is going to be run under these circumstances. Servers and hubs are asked only if they say so."""
    evidence = f"the recipe for {job.recipe.environment} is understood"
    findings = [Finding(status="pass", subject="recipe", evidence=evidence)]
    # A model on a server has no weights here, and one here has no server.
    needless = _SERVED if job.address() is None else _HERE
    checks = {name: check for name, check in CHECKS.items() if name not in needless}
    with (
        TemporaryDirectory(prefix="gradus-check-") as scratch,
        progress_bar("check", len(checks), "checks") as advance,
    ):
        subject = Subject(job, Path(scratch), circumstances)
        for number, (name, (check, needs)) in enumerate(checks.items()):
            advance(number, len(checks), note=name)  # the data of 100,000 rows take a minute
            findings += _findings(name, check, needs, subject, findings)
    return tuple(findings)


def require_names(job: Job) -> None:
    """Raise ConfigError for a policy, pair, condition, grader or promise of the recipe that does not exist. For a model that was named also if
    prompts and answers are longer than its context, reference answers than what may be sampled, or if these do not earn the most.

    A run asks this before it trains; it costs next to nothing.
    """
    pretrained = job.recipe.model.path is not None
    subject = Subject(job, Path(), Circumstances(online=pretrained))
    findings = names(subject)
    if pretrained:
        with suppress(GradusError):  # what cannot be tried beforehand will be seen in the run
            findings += [*context(subject), *reference(subject)]
    lines = [f"{finding.evidence}; {finding.remedy}" for finding in findings if finding.status == "fail"]
    if lines:
        raise ConfigError("this run could not be finished:\n  " + "\n  ".join(lines))


def setting_warnings(job: Job) -> list[Finding]:
    """Returns the warnings about settings that a run prints before anything is spent; none for a quick run, which proves nothing."""
    if job.recipe.quick:
        return []
    return [finding for finding in settings(Subject(job, Path(), Circumstances())) if finding.status == "warn"]


def _findings(
    name: str, check: Check, needs: Sequence[str], subject: Subject, earlier: Sequence[Finding]
) -> list[Finding]:
    """The findings of one check; one that says so if a check that it needs did not pass."""
    unsettled = [finding.subject for finding in earlier if finding.status in ("fail", "open")]
    missing = [check_name for check_name in unsettled if check_name in needs]
    if missing:
        return [Finding(status="open", subject=name, evidence=f"not looked at: {missing[0]} comes first")]
    try:
        return [replace(finding, subject=name) for finding in check(subject)]
    except GradusError as error:
        return [from_error(error, name)]
