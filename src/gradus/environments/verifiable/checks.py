"""What is wrong with a data set, before anything is trained on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradus.environments.verifiable.items import Item, TableTasks, plain, prompt_of, question_key
from gradus.environments.verifiable.policies import in_format
from gradus.rewards import gold_answer, read_answer, same_answer

_CHOICES = ("choices", "options", "endings")
_CONTEXT = ("input", "context", "passage", "paragraph", "document", "article", "story", "text", "instruction", "system", "system_prompt",
            "premise", "hypothesis")  # fmt: skip
_MARKS = ("<answer>", "boxed", "####")
_LETTERS = ("A", "B", "C", "D", "E")


@dataclass(frozen=True, kw_only=True)
class DataProblem:
    """``severity`` is error (training on it would be wrong) or warning. ``rows`` are some examples, by question."""

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
    """All problems of a data set; an empty list means that there is none.

    ``measure(system_prompt, question)`` gives a prompt's length in tokens, words if it is not given; prompts longer than
    ``prompt_limit`` are errors. ``answered``: whether every row needs an answer; reward functions may need none. ``marked``: whether
    only what a prompt asks for tells the model to mark its answer, as ``correctness`` needs it.
    """
    everything = {split: tasks.splits[split] for split in ("train", "in-distribution", "held-out")}
    items = list({id(item): item for rows in everything.values() for item in rows}.values())
    problems = [
        _problem(
            "empty answers",
            "error",
            [item for item in items if answered and not gold_answer(item.answer)],
            "rows without an answer",
        ),
        _problem(
            "gold answers",
            "error",
            [item for item in items if not _gold_scores(item)],
            "rows whose own gold answer does not score 1",
        ),
        _problem(
            "structured answers",
            "warning",
            [item for item in items if _is_python(item)],
            "gold answers that are lists or objects with texts, which an answer has to repeat as Python writes them",
        ),
        _problem(
            "prompt length",
            "error",
            _overlong(tasks, items, prompt_limit, measure),
            f"rows with a prompt of more than {prompt_limit} tokens",
        ),
        _problem(
            "choices",
            "error",
            [item for item in items if hides_choices(item)],
            "questions that do not show the choices of which the answer is one",
        ),
        _problem(
            "marks",
            "warning",
            [item for item in items if marked and not asks_for_marks(item, tasks.system_prompt)],
            "rows whose prompt does not ask to mark the answer (<answer> tags, \\boxed or ####), and only marked answers are right",
        ),
        *_unshown(items),
        *_repeats(items),
        _problem("overlap", "error", _overlap(tasks), "questions that are held out and trained on as well"),
    ]
    return [problem for problem in problems if problem is not None]


def _problem(check: str, severity: str, items: Sequence[Item], what: str) -> DataProblem | None:
    if not items:
        return None
    return DataProblem(
        check=check,
        severity=severity,
        message=f"{what}: {len(items)}",
        rows=[item.question[:80] for item in items[:5]],
    )


def _gold_scores(item: Item) -> bool:
    gold = gold_answer(item.answer)
    read = read_answer(in_format("known", gold)).text
    return not gold or (read is not None and same_answer(read, gold))


def asks_for_marks(item: Item, system_prompt: str = "") -> bool:
    """Whether the prompt asks to mark the answer. ``system_prompt``: the one of rows without their own."""
    prompt = (system_prompt if item.system is None else item.system) + item.question
    return any(mark in prompt for mark in _MARKS)


def hides_choices(item: Item) -> bool:
    """Whether the answer is the place or the letter of one of the row's choices, and the question does not show them.

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
    """Columns of a usual name for what a question is about that the questions do not show -> a row that has text there."""
    return {
        name: item
        for item in reversed(items)
        for name in item.columns
        if name.lower() in _CONTEXT
        and isinstance(text := item.columns[name], str)
        and text.strip() not in f"{item.system}{item.question}{item.worked}{item.answer}"
    }


def _unshown(items: Sequence[Item]) -> list[DataProblem | None]:
    return [
        _problem(
            "context",
            "warning",
            [item],
            f"the column {name!r} is not shown to the model; rows such as this have text there",
        )
        for name, item in unshown_columns(items).items()
    ]


def _is_python(item: Item) -> bool:
    own = item.columns.get("answer")
    return isinstance(own, list | Mapping) and item.answer != json.dumps(own, ensure_ascii=False, default=str)


def _overlong(
    tasks: TableTasks, items: Sequence[Item], limit: int | None, measure: Callable[[str, str], int] | None
) -> list[Item]:
    if limit is None:
        return []
    length = measure or (lambda system, question: len(system.split()) + len(question.split()))
    return [
        item
        for item in items
        if length(tasks.system_prompt if item.system is None else item.system, item.question) > limit
    ]


def _repeats(items: Sequence[Item]) -> list[DataProblem | None]:
    keys = [prompt_of(item) for item in items]
    counts = Counter(keys)
    answers: dict[tuple[str | None, str], list[str]] = {}
    for key, item in zip(keys, items, strict=True):
        told, gold = answers.setdefault(key, []), gold_answer(item.answer)
        # Two tell that they differ: thousands of rows may ask the same. 1,680 minutes and 1680 are one answer.
        if len(told) < 2 and not any(gold == other or same_answer(gold, other) for other in told):
            told.append(gold)
    first = dict(zip(reversed(keys), reversed(items), strict=True))
    twice = [first[key] for key, count in counts.items() if count > 1 and key[1]]
    torn = [first[key] for key, count in counts.items() if count > 1 and key[1] and len(answers[key]) > 1]
    return [
        _problem("duplicates", "warning", twice, "questions that more than one row asks"),
        _problem("contradictions", "error", torn, "questions that have different answers in different rows"),
    ]


def _overlap(tasks: TableTasks) -> list[Item]:
    trained = {question_key(item.question) for item in tasks.splits["train"]}
    held = {
        question_key(item.question): item for split in ("in-distribution", "held-out") for item in tasks.splits[split]
    }
    return [item for key, item in held.items() if key in trained]
