"""Checks of a data set: empty and contradictory answers, repeats, overlap, prompts over the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gradus.core import GradusError
from gradus.environments.verifiable.items import Item, TableTasks, prompt_of, question_key
from gradus.environments.verifiable.policies import in_format
from gradus.rewards import gold_answer, read_answer, same_answer
from gradus.runs.checks.findings import Finding, failed, passed, warned
from gradus.runs.checks.subject import Subject

Length = Callable[[str, str], int]  # tokens of system prompt and question


def data(subject: Subject) -> list[Finding]:
    """The whole set, if there is one."""
    tasks = subject.spec.data_set
    if not isinstance(tasks, TableTasks):
        return [passed("tasks are made from seeds, there is no data set")]
    length, limit = _length(subject)
    found = faults(tasks, length, limit, answered=subject.spec.audit.gold is not None)
    return found or [passed("no fault found in the questions and answers")]


def faults(tasks: TableTasks, length: Length, limit: int | None, *, answered: bool = True) -> list[Finding]:
    """Returns the faults of a data set. Prompts longer than ``limit`` fail. ``answered``: every row needs an answer; reward functions may need none."""
    everything = [item for split in ("train", "in-distribution", "held-out") for item in tasks.splits[split]]
    items = list({id(item): item for item in everything}.values())
    twice, torn = _repeats(items)

    def too_long(item: Item) -> bool:
        system = tasks.system_prompt if item.system is None else item.system
        return limit is not None and length(system, item.question) > limit

    rules = [
        (failed, "empty answers: rows without an answer", [each for each in items if answered and not gold_answer(each.answer)],
         "remove these rows, or name the right column with answer="),
        (failed, "gold answers: rows whose own gold answer does not score 1", [each for each in items if not _gold_scores(each)],
         "write the answers as plain values, or grade them with a reward function of your own"),
        (failed, f"prompt length: rows with a prompt of more than {limit} tokens", [each for each in items if too_long(each)],
         "remove these rows, lower grpo.sampling.max_new_tokens, or use a model with a longer context"),
        (warned, "duplicates: questions that more than one row asks", twice,
         "remove the repeats, or they are trained on more often than the others"),
        (failed, "contradictions: questions that have different answers in different rows", torn,
         "decide which answer is right and remove the other rows"),
        (failed, "overlap: questions that are held out and trained on as well", _overlap(tasks),
         "remove these questions from the training file, or what is held out proves nothing"),
    ]  # fmt: skip
    return [
        kind(f"{fault}: {len(rows)}, as in {rows[0].question[:80]!r}", way) for kind, fault, rows, way in rules if rows
    ]


def _length(subject: Subject) -> tuple[Length, int | None]:
    """Returns the measure of prompts, and the limit; None if the model cannot be looked at."""
    from gradus.policies.local.loading import context_length

    try:
        renderer, context = subject.renderer, context_length(subject.config)
    except GradusError:  # the check of the model says why
        return lambda system, question: 0, None
    limit = None if context is None else context - subject.recipe.grpo.sampling.max_new_tokens
    return lambda system, question: len(renderer.first(system, question)), limit


def _gold_scores(item: Item) -> bool:
    gold = gold_answer(item.answer)
    read = read_answer(in_format("known", gold)).text
    return not gold or (read is not None and same_answer(read, gold))


def _repeats(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Finds questions that several rows ask, and those of them whose answers differ."""
    keys = [prompt_of(item) for item in items]
    counts = Counter(keys)
    answers: dict[tuple[str | None, str], list[str]] = {}
    for key, item in zip(keys, items, strict=True):
        told, gold = answers.setdefault(key, []), gold_answer(item.answer)
        # Two are enough to differ: thousands of rows may ask the same. 1,680 minutes and 1680 are one answer.
        if len(told) < 2 and not any(gold == other or same_answer(gold, other) for other in told):
            told.append(gold)
    first = dict(zip(reversed(keys), reversed(items), strict=True))
    twice = [key for key, count in counts.items() if count > 1 and key[1]]
    return [first[key] for key in twice], [first[key] for key in twice if len(answers[key]) > 1]


def _overlap(tasks: TableTasks) -> list[Item]:
    trained = {question_key(item.question) for item in tasks.splits["train"]}
    held = {
        question_key(item.question): item for split in ("in-distribution", "held-out") for item in tasks.splits[split]
    }
    return [item for key, item in held.items() if key in trained]
