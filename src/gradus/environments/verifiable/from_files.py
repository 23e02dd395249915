"""Data sets in files as environments: ``gsm8k:``, ``jsonl:`` and ``csv:``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader
from gradus.environments.verifiable.datasets import DataSource, parse_source, read_tasks
from gradus.environments.verifiable.from_rows import graded, judge_value, one_turn_of
from gradus.environments.verifiable.items import TableTasks
from gradus.environments.verifiable.spec import table_spec


def load_gsm8k(argument: str | None = None) -> EnvironmentSpec:
    """``gsm8k:PATH`` (a JSONL file, or a folder with train.jsonl and test.jsonl) or ``gsm8k:HUB/NAME``."""
    return _load("gsm8k", argument, "grade-school problems in words", recipe="gsm8k.toml")


def load_jsonl(argument: str | None = None) -> EnvironmentSpec:
    """``jsonl:PATH`` with options, see the module ``datasets``."""
    return _load("jsonl", argument, "questions and answers out of a JSONL file")


def load_csv(argument: str | None = None) -> EnvironmentSpec:
    """``csv:PATH`` with options, see the module ``datasets``."""
    return _load("csv", argument, "questions and answers out of a CSV file")


def _load(kind: str, argument: str | None, summary: str, recipe: str | None = None) -> EnvironmentSpec:
    source = parse_source(kind, argument)
    tasks = read_tasks(source)
    if tasks.splits["train"][0].answer:  # all have one, or none
        return table_spec(tasks, summary, recipe)
    return _unanswered(source, tasks)


def _unanswered(source: DataSource, tasks: TableTasks) -> EnvironmentSpec:
    """Questions alone, for reward functions that need no gold answer. Without those nothing can be graded."""
    have = ", ".join(tasks.splits["train"][0].columns)

    def refuse(episodes: Sequence[Episode]) -> list[Any]:
        raise ConfigError(
            f"{source.place} has no answers in a column {source.answer or 'answer'!r}; it has {have}; map it as in "
            f"{source.kind}:{source.place}?question=COLUMN&answer=COLUMN, or give reward functions that need none (--reward)"
        )

    return one_turn_of(
        tasks,
        items=tasks.splits["train"],
        judge=judge_value,
        graders=[Grader(name="answers", compute=refuse, summary="none: the rows have no answers, so give rewards")],
        summary=f"questions out of a {'CSV' if source.kind == 'csv' else 'JSONL'} file, for rewards of your own",
        write=lambda _, answer: answer,
        true_reward=graded,
    )
