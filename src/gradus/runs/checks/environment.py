"""Checks of the environment: it begins, alike with the same seed, and its teacher can play it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import EnvironmentSpec, GradusError, Task
from gradus.core.waiting import blocking
from gradus.rollouts import roll_out
from gradus.rollouts.received import checked_prompt, received
from gradus.rollouts.under_way import make_environment, start_of, unequal_starts
from gradus.runs.checks.findings import Finding, failed, passed, skipped
from gradus.runs.checks.subject import Subject


def environment(subject: Subject) -> list[Finding]:
    """It can be loaded, begins an episode, begins it alike with the same seed, shows something, and can be rolled out by its teacher."""
    if "://" in subject.recipe.environment and not subject.online:
        return [skipped(f"{subject.recipe.environment} is a server and was not asked", "give --online")]
    spec = subject.spec
    task = spec.train_task(subject.recipe.grpo.first_task)
    try:
        first, again = (_begun(spec, task) for _ in range(2))
    except GradusError:
        raise
    except (Exception, SystemExit) as error:
        return [failed(f"a training task cannot be begun: {type(error).__name__}: {error}", _PLAY)]
    if not first["text"].strip():
        return [failed("the first observation of a training task is empty", "look at it with gradus play")]
    if (differing := unequal_starts(first, again)) is not None:
        return [failed(f"seed {task.seed} began with {differing}", _ALIKE)]
    if spec.teacher is not None and spec.teacher in spec.policies:
        played = roll_out(spec, spec.policy(spec.teacher), [task], grader=subject.offline_grader)
        if (fault := played.episodes[0].failure) is not None:
            told = f"an episode of {spec.teacher} failed in {fault.stage}: {fault.type}: {fault.message}"
            return [failed(told, _PLAY)]
    turns = "one turn" if spec.max_turns == 1 else f"up to {spec.max_turns} turns"
    words = len(first["system prompt"].split())
    return [passed(f"{spec.name}, {turns}, system prompt of {words} words, grader {subject.grader.name}")]


_PLAY = "look at it with gradus play; docs/own_environment.md says what reset, step and outcome should give"
_ALIKE = "a group shares its seed: draw all that is random in reset from a generator that the seed begins"


def _begun(spec: EnvironmentSpec, task: Task) -> Mapping[str, Any]:
    """Begins a task; returns everything that is known before the first answer."""
    made = blocking(make_environment(spec))
    try:
        shown = received(made.reset(seed=task.seed, **task.options), "reset")
        return start_of(shown, checked_prompt(made.system_prompt), getattr(made, "tools", ()))
    finally:
        made.close()
