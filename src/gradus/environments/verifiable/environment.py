"""One question, one answer: the text layer of every verifiable task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation, Span
from gradus.environments.verifiable.items import SPLITS, Item, TaskSource
from gradus.rewards import gold_answer, is_strict_format, read_answer, same_answer

__all__ = ["VerifiableEnvironment"]

_BLOCKS = {name: re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("reasoning", "answer")}


class VerifiableEnvironment:
    """Shows a question, takes one answer, and ends. Its own reward is 1 for the right answer, else 0.

    ``reset`` takes ``split``, one of train (default), in-distribution, held-out and harder. An answer without a marked value
    is a counted invalid action.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._item: Item | None = None
        self._episode_id = ""
        self._given: str | None = None
        self._correct: bool | None = None
        self._format: bool | None = None

    @property
    def system_prompt(self) -> str:
        """How to answer."""
        return self._source.system_prompt

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of answers taken."""
        return {"episode_id": self._episode_id, "step_count": int(self._correct is not None)}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Ask the question that belongs to ``seed`` in ``options["split"]``."""
        split = options.pop("split", "train")
        if options or split not in SPLITS:
            raise ConfigError(f"reset takes split, one of {', '.join(SPLITS)}; got split = {split!r} and {options}")
        self._item = self._source.item(split, seed or 0)
        self._episode_id = episode_id or f"{self._source.name}-{split}-{seed or 0}"
        self._given = self._correct = self._format = None
        return Observation(text=self._item.question, data={"question": self._item.question})

    def step(self, action: str) -> Observation:
        """Take the answer. A second one is a fault of the caller."""
        if self._item is None or self._correct is not None:
            raise EnvironmentFault("expected reset before this step: a verifiable task takes exactly one answer")
        reading = read_answer(action)
        self._given = reading.text
        self._format = is_strict_format(action)
        self._correct = reading.text is not None and same_answer(reading.text, gold_answer(self._item.answer))
        return Observation(
            text="",
            reward=float(self._correct),
            terminated=True,
            action_valid=reading.text is not None,
            action_error=reading.problem,
            action_spans=_spans(action),
            action_data={"given": reading.text},
        )

    def outcome(self) -> Mapping[str, Any]:
        """Gold answer, what was given, whether it was right, the worked solution and the row's columns."""
        if self._item is None:
            return {}
        return {
            "answer": gold_answer(self._item.answer),
            "given": self._given,
            "correct": None if self._correct is None else float(self._correct),
            "format": None if self._format is None else float(self._format),
            "worked": self._item.worked,
            "columns": {**self._item.columns, "answer": self._item.answer},
        }

    def close(self) -> None:
        """Nothing is held."""


def _spans(action: str) -> tuple[Span, ...]:
    matches = {name: pattern.search(action) for name, pattern in _BLOCKS.items()}
    return tuple(Span(name=name, start=match.start(1), end=match.end(1)) for name, match in matches.items() if match)
