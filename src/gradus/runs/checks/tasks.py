"""Checks of what is asked: the environment and its data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradus.core import EnvironmentSpec, Failure, GradusError, Task
from gradus.core.waiting import blocking
from gradus.environments.verifiable.checks import check_tasks
from gradus.environments.verifiable.items import TableTasks
from gradus.rollouts import roll_out
from gradus.rollouts.received import checked_prompt, received
from gradus.rollouts.under_way import make_environment, start_of, unequal_starts
from gradus.runs.checks.findings import Finding, failed, passed, skipped, warned
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
    if (fault := _teachers_fault(subject, task)) is not None:
        return [failed(f"an episode of {spec.teacher} failed in {fault.stage}: {fault.type}: {fault.message}", _PLAY)]
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


def _teachers_fault(subject: Subject, task: Task) -> Failure | None:
    """Rolls out one episode of the environment's own teacher; returns its failure, if any."""
    spec = subject.spec
    if spec.teacher is None or spec.teacher not in spec.policies:
        return None
    return roll_out(spec, spec.policy(spec.teacher), [task], grader=subject.offline_grader).episodes[0].failure


def data(subject: Subject) -> list[Finding]:
    """The whole set: columns, empty and contradictory answers, duplicates, overlap, prompts over the limit."""
    tasks = subject.spec.data_set
    if not isinstance(tasks, TableTasks):
        return [passed("tasks are made from seeds, there is no data set")]
    measure, limit = _measure(subject)
    answered = subject.spec.audit.gold is not None
    faults = check_tasks(tasks, prompt_limit=limit, measure=measure, answered=answered)
    if not faults:
        return [passed("no fault found in the questions and answers")]
    kinds: dict[str, Callable[[str, str], Finding]] = {"error": failed, "warning": warned}
    return [
        kinds[each.severity](f"{each.check}: {each.message}, as in {each.rows[0]!r}", _REMEDIES[each.check])
        for each in faults
    ]


_REMEDIES = {
    "empty answers": "remove these rows, or name the right column with answer=",
    "gold answers": "write the answers as plain values, or grade them with a reward function of your own",
    "prompt length": "remove these rows, lower grpo.sampling.max_new_tokens, or use a model with a longer context",
    "duplicates": "remove the repeats, or they are trained on more often than the others",
    "contradictions": "decide which answer is right and remove the other rows",
    "overlap": "remove these questions from the training file, or what is held out proves nothing",
}


def _measure(subject: Subject) -> tuple[Callable[[str, str], int] | None, int | None]:
    """Returns a measure of prompts in the model's tokens, and the limit; None and None if the model cannot be looked at."""
    from gradus.policies.local.loading import context_length

    try:
        renderer, config = subject.renderer, subject.config
    except GradusError:  # the check of the model says why
        return None, None
    context = context_length(config)
    limit = None if context is None else context - subject.recipe.grpo.sampling.max_new_tokens
    return lambda system, question: len(renderer.first(system, question)), limit
