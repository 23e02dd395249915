"""An environment of one question and one answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation, Span
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, plain
from gradus.environments.verifiable.items import SPLITS, Item, TaskSource
from gradus.rewards import gold_answer, is_strict_format, read_answer, same_answer

_BLOCKS = {name: re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("reasoning", "answer")}


@frozen_record
class Judgement:
    """What a judge says of an answer.

    ``score``: None if it could not judge, and then ``error`` says why.
    ``answer``: what was read in the text, None without one; then the turn is invalid, and ``problem`` says why.
    """

    score: float | None
    answer: str | None
    problem: str | None = None
    error: str | None = None


Judge = Callable[[Item, str], Judgement]


def judge_marked(item: Item, text: str) -> Judgement:
    """Scores 1 if the marked answer states the gold value, else 0."""
    reading = read_answer(text)
    right = reading.text is not None and same_answer(reading.text, gold_answer(item.answer))
    return Judgement(score=float(right), answer=reading.text, problem=reading.problem)


class VerifiableEnvironment:
    """Shows a question, takes one answer, and ends. Its own reward is the judge's score: 1 for the right answer, else 0.

    ``reset`` takes ``split``, one of train (default), in-distribution, held-out and harder. An answer without a marked value
    is a counted invalid action.
    """

    def __init__(self, source: TaskSource, judge: Judge = judge_marked) -> None:
        self._source = source
        self._judge = judge
        self._item: Item | None = None
        self._judgement: Judgement | None = None
        self._format: float | None = None

    @property
    def system_prompt(self) -> str:
        """Says how to answer: the row's own system prompt, or the data set's."""
        if self._item is None or self._item.system is None:
            return self._source.system_prompt
        return self._item.system

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Asks the question that belongs to ``seed`` in ``options["split"]``."""
        split = options.pop("split", "train")
        # A misspelled option would quietly train on another split.
        if options or split not in SPLITS:
            raise ConfigError(f"reset takes split, one of {', '.join(SPLITS)}; got split = {split!r} and {options}")
        # The same seed gives the same question: members of a group must compare.
        self._item = self._source.item(split, seed or 0)
        self._judgement = self._format = None
        question = self._item.question
        return Observation(text=question, messages=self._item.messages, data={"question": question})

    def step(self, action: str) -> Observation:
        """Takes the answer. A second one is a fault of the caller."""
        if self._item is None or self._judgement is not None:
            raise EnvironmentFault("expected reset before this step: a task of one turn takes exactly one answer")
        self._judgement = judgement = self._judge(self._item, action)
        self._format = float(is_strict_format(action))
        return Observation(
            text="",
            reward=judgement.score,
            terminated=True,
            action_valid=judgement.answer is not None,
            action_error=judgement.problem,
            action_spans=_spans(action),
            action_data={"given": judgement.answer},
        )

    def outcome(self) -> Json:
        """Returns gold answer, given answer, its score, 1 if it is the gold answer word for word, and the row's columns."""
        item = self._item
        if item is None:
            return {}
        gold = gold_answer(item.answer)
        # Privileged policies ask for the gold answer before there is a judgement.
        judgement = self._judgement or Judgement(score=None, answer=None)
        return {
            "answer": gold,
            "given": judgement.answer,
            "correct": judgement.score,
            "exact": _exact(judgement.answer, gold) if self._judgement else None,
            "error": judgement.error,
            "format": self._format,
            "worked": item.worked,
            "columns": {"answer": item.answer, **plain(dict(item.columns))},
        }

    def close(self) -> None:
        """Nothing is held."""


def _exact(answer: str | None, gold: str) -> float | None:
    """Returns 1 if the gold answer was given word for word: a judge that can be fooled is compared with it. None without a gold."""
    return float((answer or "").split() == gold.split()) if gold else None


def _spans(action: str) -> tuple[Span, ...]:
    matches = {name: pattern.search(action) for name, pattern in _BLOCKS.items()}
    return tuple(Span(name=name, start=match.start(1), end=match.end(1)) for name, match in matches.items() if match)
