"""The possible answers: places and the words that are legal at each, or a pool of complete answers.

The search knows no environment. It takes the grammar if one is declared, and otherwise a pool: legal answers that the
environment can draw, answers seen in episodes, and forms of both into which the observation is copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.core import EnvironmentSpec, Episode, child_seed

COPY = "\x00"  # stands in an answer where what was shown is copied
_POOL = 24
_DRAWS = 8 * _POOL  # that must show a closed set of answers as a whole
_PIECE_WORDS = 40
_PLAIN = ("", "0", "1", "yes", "no", "A", "B", "<answer>1</answer>", "I do not know.")


@dataclass(frozen=True, kw_only=True)
class AnswerSpace:
    """``places``: the choices at each place of an answer; an answer is one choice a place, joined by spaces."""

    places: tuple[tuple[str, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(words) for words in self.places)

    def text(self, choice: Sequence[int], kept: Sequence[str | None] = ()) -> str:
        """The answer that takes word ``choice[p]`` at place p. One past the last word stands for ``kept[p]``, None for nothing."""
        words = (
            words[i] if i < len(words) else kept[p]
            for p, (words, i) in enumerate(zip(self.places, choice, strict=True))
        )
        return " ".join(word for word in words if word is not None)

    def parse(self, text: str) -> list[str | None]:
        """The word at each place of an answer, read from the end; None where no legal word is found."""
        if len(self.places) == 1:
            return [text]
        said = text.split()[-len(self.places) :]
        padded = [*[None] * (len(self.places) - len(said)), *said]
        return [word if word in legal else None for word, legal in zip(padded, self.places, strict=True)]


def render(answer: str, observation: str) -> str:
    """The answer as it is given: a form with a copy in it is repeated for each piece of what was shown."""
    if COPY not in answer:
        return answer
    if answer == COPY:
        return observation
    return "\n".join(answer.replace(COPY, json.dumps(piece)[1:-1]) for piece in _pieces(observation))


def answer_space(spec: EnvironmentSpec, seen: Iterable[Episode], *, seed: int) -> AnswerSpace:
    """The grammar's places, or one place with a pool of whole answers."""
    if spec.language.grammar:
        return AnswerSpace(places=tuple(tuple(words) for words in spec.language.grammar))
    drawn: list[str] = []
    rolled_out = [turn.action for episode in seen for turn in episode.turns if turn.valid and turn.action]
    if spec.audit.random_answers is not None:
        drawn = [spec.audit.random_answers(child_seed(seed, "audit", "pool", i) % 2**31) for i in range(_DRAWS)]
        if _is_closed(known := sorted(set(drawn)), rolled_out):
            return AnswerSpace(places=((*known, ""),))
        drawn = drawn[:_POOL]
    pool = list(dict.fromkeys([*drawn, *_spread(list(dict.fromkeys(rolled_out)), _POOL)]))
    forms = list(dict.fromkeys(form for answer in pool for form in _forms(answer)))[: _POOL // 2]
    return AnswerSpace(places=(tuple(dict.fromkeys((*pool, *forms, COPY, *_PLAIN))),))


def _is_closed(answers: Sequence[str], rolled_out: Sequence[str]) -> bool:
    """These few answers are all that there are, as the moves of a game. Any other answer is invalid, or a random move."""
    plain = not any(_forms(answer) for answer in answers)
    return 2 <= len(answers) <= _POOL and plain and set(rolled_out) <= set(answers)


def _spread(values: list[str], n: int) -> list[str]:
    """``n`` of ``values``, evenly over the list."""
    return values if len(values) <= n else [values[i * len(values) // n] for i in range(n)]


def _forms(answer: str) -> list[str]:
    """The answer with its longest free text replaced by a copy of what was shown; none if it has no such text."""
    try:
        call = json.loads(answer)
        texts = sorted(_texts(call), key=len)
    except (ValueError, RecursionError):
        tag = re.search(r">([^<>]+)</", answer)
        return [answer[: tag.start(1)] + COPY + answer[tag.end(1) :]] if tag else []
    if not texts:
        return []
    return [json.dumps(call).replace(json.dumps(texts[-1]), f'"{COPY}"')]


def _texts(value: Any) -> list[str]:
    """The strings inside a JSON value that look like free text."""
    if isinstance(value, str):
        return [value] if " " in value else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _texts(each)]


def _pieces(observation: str) -> list[str]:
    """Lines of the observation, cut so that no piece is longer than an entry usually may be."""
    pieces: list[str] = []
    for line in observation.splitlines():
        words = line.split()
        pieces += [" ".join(words[i : i + _PIECE_WORDS]) for i in range(0, len(words), _PIECE_WORDS)]
    return pieces or [""]
