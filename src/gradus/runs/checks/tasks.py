"""Checks of what is asked and how it is graded: the environment, its data set, its gold answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Failure, GradusError, Task
from gradus.core.waiting import blocking
from gradus.environments.verifiable import TableTasks, check_tasks
from gradus.rollouts import roll_out
from gradus.rollouts.received import checked_prompt, received
from gradus.rollouts.under_way import make_environment, start_of, unequal_starts
from gradus.runs.checks.findings import Finding, failed, passed, skipped, warned
from gradus.runs.checks.subject import Subject
from gradus.stats import format_number

_FEW = 8  # tasks of each condition that gold answers


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
    marked = subject.trained and not subject.recipe.teach.enabled and "correct" in subject.grader.weights
    faults = check_tasks(tasks, prompt_limit=limit, measure=measure, answered=answered, marked=marked)
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
    "choices": "write the choices into the question, with the letters or numbers that the answers use",
    "context": "write it into the question if the model needs it; reward functions get it by name",
    "marks": "ask for <answer> tags in the system prompt, or reward bare answers by a function of your own",
    "duplicates": "remove the repeats, or they are trained on more often than the others",
    "contradictions": "decide which answer is right and remove the other rows",
    "overlap": "remove these questions from the training file, or what is held out proves nothing",
}


def _measure(subject: Subject) -> tuple[Callable[[str, str], int] | None, int | None]:
    """How long a prompt is in the model's tokens and how long it may be, if the model can be looked at."""
    from gradus.policies.local.loading import context_length

    try:
        renderer, config = subject.renderer, subject.config
    except GradusError:  # the check of the model says why
        return None, None
    context = context_length(config)
    limit = None if context is None else context - subject.recipe.grpo.sampling.max_new_tokens
    return lambda system, question: len(renderer.first(system, question)), limit


def gold(subject: Subject) -> list[Finding]:
    """The policy that knows the answers must earn the top of the grader's range, on every condition."""
    spec, grader = subject.spec, subject.grader
    if spec.audit.gold is None:
        return [passed("no policy knows all answers here, so there is nothing to hold the grader to")]
    if grader.remote and not subject.online:
        return [skipped(f"the grader {grader.name} asks a server and was not asked", "give --online")]
    tasks = [spec.train_task(subject.recipe.grpo.first_task + index) for index in range(_FEW)]
    for name, condition in spec.conditions.items():
        tasks += spec.tasks(name, min(_FEW, len(condition.seeds)))
    episodes = roll_out(spec, spec.policy(spec.audit.gold), tasks, grader=grader).episodes
    errors = [text for episode in episodes if (text := _error(episode)) is not None]
    if errors:
        return [failed(f"{len(errors)} of {len(episodes)} gold episodes could not be graded: {errors[0]}", _TRY)]
    top = grader.range[1] if grader.range else None
    below = [episode for episode in episodes if not _full(subject, episode, top)]
    if below:
        asked = below[0].turns[0].observation[:60] if below[0].turns else "?"
        message = f"gold does not get the full reward on {len(below)} of {len(episodes)} tasks, as in {asked!r}"
        return [failed(message, _TRY)]
    if top is not None:
        return [passed(f"{len(episodes)} gold episodes get the full reward")]
    earned, nothing = _mean_reward(episodes), None
    if "silence" in spec.policies:
        nothing = _mean_reward(roll_out(spec, spec.policy("silence"), tasks, grader=grader).episodes)
    if nothing is not None and earned <= nothing:
        message = f"gold gets a reward of {format_number(earned)} and an empty answer {format_number(nothing)} on the same tasks"
        return [failed(message, _TRY)]
    message = f"{len(episodes)} gold episodes are right, their reward is {format_number(earned)} (no range is declared)"
    return [passed(message)]


_TRY = "find out why with gradus rewards try; a grader that refuses right answers teaches wrong ones"


def _mean_reward(episodes: list[Episode]) -> float:
    values = [each.reward.value for each in episodes if each.reward is not None and each.reward.value is not None]
    return sum(values) / max(1, len(values))


def _error(episode: Episode) -> str | None:
    if episode.failure is not None:
        return f"{episode.failure.stage}: {episode.failure.message}"
    return None if episode.reward is None or episode.reward.value is not None else episode.reward.error


def _full(subject: Subject, episode: Episode, top: float | None) -> bool:
    value = episode.reward.value if episode.reward else None
    if top is not None:
        return value is not None and value >= top - 1e-6
    aim = subject.spec.true_reward(
        episode
    )  # a grader without a range is held to the true aim, if that is another figure
    return aim is not None and (aim == value or aim >= 1.0 - 1e-6)
