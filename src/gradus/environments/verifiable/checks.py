"""Checks a data set before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradus.environments.verifiable.items import Item, TableTasks, prompt_of, question_key
from gradus.environments.verifiable.policies import in_format
from gradus.rewards import gold_answer, read_answer, same_answer

_MARKS = ("<answer>", "boxed", "####")
_Found = tuple[str, str, str, Sequence[Item]]  # the check, its severity, the fault in words, the items that have it


@dataclass(frozen=True, kw_only=True)
class DataProblem:
    """One fault of a data set. ``severity`` is error (training on it would be wrong) or warning; ``rows`` are some questions."""

    check: str
    severity: str
    message: str
    rows: Sequence[str] = ()


def check_tasks(
    tasks: TableTasks,
    *,
    prompt_limit: int | None = None,
    measure: Callable[[str, str], int] | None = None,
    answered: bool = True,
) -> list[DataProblem]:
    """Returns all problems of a data set.

    ``measure(system_prompt, question)`` gives a prompt's length in tokens, words if it is not given; prompts longer than
    ``prompt_limit`` are errors. ``answered``: every row needs an answer; reward functions may need none.
    """
    everything = [item for split in ("train", "in-distribution", "held-out") for item in tasks.splits[split]]
    items = list({id(item): item for item in everything}.values())
    length = measure or (lambda system, question: len(system.split()) + len(question.split()))

    def system(item: Item) -> str:
        return tasks.system_prompt if item.system is None else item.system

    found: list[_Found] = [
        ("empty answers", "error", "rows without an answer", [each for each in items if answered and not gold_answer(each.answer)]),
        ("gold answers", "error", "rows whose own gold answer does not score 1", [each for each in items if not _gold_scores(each)]),
        ("prompt length", "error", f"rows with a prompt of more than {prompt_limit} tokens",
         [each for each in items if prompt_limit is not None and length(system(each), each.question) > prompt_limit]),
        *_repeats(items),
        ("overlap", "error", "questions that are held out and trained on as well", _overlap(tasks)),
    ]  # fmt: skip
    return [
        DataProblem(
            check=check,
            severity=severity,
            message=f"{fault}: {len(rows)}",
            rows=[item.question[:80] for item in rows[:5]],
        )
        for check, severity, fault, rows in found
        if rows
    ]


def _gold_scores(item: Item) -> bool:
    gold = gold_answer(item.answer)
    read = read_answer(in_format("known", gold)).text
    return not gold or (read is not None and same_answer(read, gold))


def asks_for_marks(item: Item) -> bool:
    """True if the prompt asks to mark the answer."""
    return any(mark in (item.system or "") + item.question for mark in _MARKS)


def _repeats(items: Sequence[Item]) -> Iterator[_Found]:
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
    torn = [first[key] for key in twice if len(answers[key]) > 1]
    yield "duplicates", "warning", "questions that more than one row asks", [first[key] for key in twice]
    yield "contradictions", "error", "questions that have different answers in different rows", torn


def _overlap(tasks: TableTasks) -> list[Item]:
    trained = {question_key(item.question) for item in tasks.splits["train"]}
    held = {
        question_key(item.question): item for split in ("in-distribution", "held-out") for item in tasks.splits[split]
    }
    return [item for key, item in held.items() if key in trained]
