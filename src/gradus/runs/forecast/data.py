"""Checks of the environment and of a data set: empty and contradictory answers, repeats, overlap, prompts over the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradus.core import GradusError
from gradus.core.findings import Finding
from gradus.environments.verifiable.items import Item, TableTasks, prompt_of, question_key
from gradus.rewards import gold_answer, same_answer
from gradus.rollouts import roll_out
from gradus.rollouts.under_way import first_sight, unequal_starts
from gradus.runs.forecast.subject import Subject, failed, not_checked, passed, warned

Length = Callable[[str, str], int]  # tokens of system prompt and question


def data(subject: Subject) -> list[Finding]:
    """The whole set, if there is one."""
    tasks = subject.spec.data_set
    if not isinstance(tasks, TableTasks):
        return [passed("tasks are made from seeds, there is no data set")]
    length, limit = _length(subject)
    findings = faults(tasks, length, limit, answered=subject.spec.audit.gold is not None)
    return findings or [passed("no fault in the questions and answers")]


def faults(tasks: TableTasks, length: Length, limit: int | None, *, answered: bool = True) -> list[Finding]:
    """Returns the faults of a data set. Prompts longer than ``limit`` fail. ``answered``: every row needs an answer; reward functions may need none."""
    items = tasks.items
    repeated, contradicted = _repeats(items)
    unanswered = [item for item in items if answered and not gold_answer(item.answer)]
    too_long: list[Item] = []
    for item in items:
        system = tasks.system_prompt if item.system is None else item.system
        if limit is not None and length(system, item.question) > limit:
            too_long.append(item)

    # Report, fault, rows, remedy: failures spoil a run or its proof, the others cost some of it.
    rules = [
        (failed, "empty answers: rows without an answer", unanswered,
         "remove these rows, or name the right column with answer="),
        (failed, f"prompt length: rows with a prompt of more than {limit} tokens", too_long,
         "remove these rows, lower grpo.sampling.max_new_tokens, or use a model with a longer context"),
        (warned, "duplicates: questions that more than one row asks", repeated,
         "remove the repeats, or they are trained on more often than the others"),
        (failed, "contradictions: questions that have different answers in different rows", contradicted,
         "decide which answer is right and remove the other rows"),
        (failed, "overlap: questions that are held out and trained on as well", _overlap(tasks),
         "remove these questions from the training file, or what is held out proves nothing"),
    ]  # fmt: skip
    return [
        report(f"{fault}: {len(rows)}, as in {rows[0].question[:80]!r}", remedy)
        for report, fault, rows, remedy in rules
        if rows
    ]


def _length(subject: Subject) -> tuple[Length, int | None]:
    """Returns the measure of prompts, and the limit; None if the model cannot be looked at."""
    try:
        renderer, context = subject.renderer, subject.shape.context
    except GradusError:  # the check of the model says why
        return lambda system, question: 0, None
    limit = None if context is None else context - subject.recipe.grpo.sampling.max_new_tokens
    return lambda system, question: len(renderer.first(system, question)), limit


def _repeats(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Finds questions that several rows ask, and those of them whose answers differ."""
    rows: dict[tuple[str | None, str], list[Item]] = {}
    for item in items:
        rows.setdefault(prompt_of(item), []).append(item)
    repeated = [group for (_, question), group in rows.items() if question and len(group) > 1]
    return [group[0] for group in repeated], [group[0] for group in repeated if _answers_differ(group)]


def _answers_differ(items: Sequence[Item]) -> bool:
    """True if rows of one question have other answers than the first: 1,680 minutes and 1680 are one answer."""
    golds = list(dict.fromkeys(gold_answer(item.answer) for item in items))
    return any(not same_answer(golds[0], gold) for gold in golds[1:])


def _overlap(tasks: TableTasks) -> list[Item]:
    """Held-out rows whose question is trained on."""
    trained = {question_key(item.question) for item in tasks.splits["train"]}
    held_out = [*tasks.splits["in-distribution"], *tasks.splits["held-out"]]
    held = {question_key(item.question): item for item in held_out}  # each question once
    return [item for key, item in held.items() if key in trained]


def environment(subject: Subject) -> list[Finding]:
    """It can be loaded, begins an episode, begins it alike with the same seed, shows something, and can be rolled out by its teacher."""
    if "://" in subject.recipe.environment and not subject.online:
        return [not_checked(f"{subject.recipe.environment} is a server and was not asked", "give --online")]
    spec = subject.spec
    task = spec.train_task(subject.recipe.grpo.first_task)
    try:
        first, again = first_sight(spec, task), first_sight(spec, task)
    except GradusError:
        raise
    except (Exception, SystemExit) as error:
        return [failed(f"a training task cannot be begun: {type(error).__name__}: {error}", _PLAY)]
    if not first["text"].strip():
        remedy = "look at it with gradus show ENVIRONMENT --play"
        return [failed("the first observation of a training task is empty", remedy)]
    differing = unequal_starts(first, again)
    if differing is not None:
        return [failed(f"seed {task.seed} began with {differing}", _ALIKE)]
    if spec.teacher is not None and spec.teacher in spec.policies:
        episode = roll_out(spec, spec.policy(spec.teacher), [task], grader=subject.offline_grader).episodes[0]
        fault = episode.failure
        if fault is not None:
            evidence = f"an episode of {spec.teacher} failed in {fault.stage}: {fault.type}: {fault.message}"
            return [failed(evidence, _PLAY)]
    turns = "one turn" if spec.max_turns == 1 else f"up to {spec.max_turns} turns"
    words = len(first["system prompt"].split())
    return [passed(f"{spec.name}, {turns}, system prompt of {words} words, grader {subject.grader.name}")]


_PLAY = "look at it with gradus show ENVIRONMENT --play; docs/own_environment.md says what reset, step and outcome should give"
_ALIKE = "a group shares its seed: draw all that is random in reset from a generator that the seed begins"
