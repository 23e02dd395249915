"""Checks a data set before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradus.environments.verifiable.items import Item, TableTasks, prompt_of, question_key
from gradus.environments.verifiable.policies import in_format
from gradus.environments.verifiable.rows import plain
from gradus.rewards import gold_answer, read_answer, same_answer

_CHOICES = ("choices", "options", "endings")
_CONTEXT = ("input", "context", "passage", "paragraph", "document", "article", "story", "text", "instruction", "system", "system_prompt",
            "premise", "hypothesis")  # fmt: skip
_MARKS = ("<answer>", "boxed", "####")
_LETTERS = ("A", "B", "C", "D", "E")
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
    marked: bool = False,
) -> list[DataProblem]:
    """Returns all problems of a data set.

    ``measure(system_prompt, question)`` gives a prompt's length in tokens, words if it is not given; prompts longer than
    ``prompt_limit`` are errors. ``answered``: every row needs an answer; reward functions may need none. ``marked``: only the
    prompt tells the model to mark its answer, as ``correctness`` needs it.
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
        ("choices", "error", "questions that do not show the choices of which the answer is one", [each for each in items if hides_choices(each)]),
        ("marks", "warning", "rows whose prompt does not ask to mark the answer (<answer> tags, \\boxed or ####), and only marked answers are right",
         [each for each in items if marked and not asks_for_marks(each, tasks.system_prompt)]),
        *(("context", "warning", f"the column {name!r} is not shown to the model; rows such as this have text there", [item])
          for name, item in unshown_columns(items).items()),
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


def asks_for_marks(item: Item, system_prompt: str = "") -> bool:
    """True if the prompt asks to mark the answer. ``system_prompt``: the one of rows without their own."""
    prompt = (system_prompt if item.system is None else item.system) + item.question
    return any(mark in prompt for mark in _MARKS)


def hides_choices(item: Item) -> bool:
    """True if the answer is the place or the letter of one of the row's choices, and the question does not show them.

    Choices are a list in a column of a usual name (in ARC's form it holds ``text``), or columns that have letters as names.
    """
    columns, gold = item.columns, gold_answer(item.answer)
    listed = next((columns[name] for name in _CHOICES if name in columns), None)
    listed = plain(listed.get("text") if isinstance(listed, Mapping) else listed)
    texts = [str(each) for each in listed] if isinstance(listed, list) else []
    if not texts and gold in _LETTERS:
        texts = [str(columns[each]) for each in _LETTERS if each in columns]
    return len(texts) > 1 and gold not in texts and not all(text.strip() in item.question for text in texts)


def unshown_columns(items: Sequence[Item]) -> dict[str, Item]:
    """Returns columns with a usual name for context that the questions do not show, each with a row that has text there."""
    return {
        name: item
        for item in reversed(items)
        for name in item.columns
        if name.lower() in _CONTEXT
        and isinstance(text := item.columns[name], str)
        and text.strip() not in f"{item.system}{item.question}{item.worked}{item.answer}"
    }


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
