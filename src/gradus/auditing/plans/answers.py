"""The possible answers: places and the words that are legal at each, or a pool of complete answers.

The search knows no environment. It takes the grammar if one is declared, and otherwise a pool: legal answers that the
environment can draw, answers seen in episodes, and what was shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradus.core import EnvironmentSpec, Episode, child_seed

COPY = "\x00"  # stands for an answer that copies what was shown
_POOL = 24
_DRAWS = 8 * _POOL  # that must show a closed set of answers as a whole
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
    return AnswerSpace(places=(tuple(dict.fromkeys((*pool, COPY, *_PLAIN))),))


def _is_closed(answers: Sequence[str], rolled_out: Sequence[str]) -> bool:
    """These few words are all that there are, as the moves of a game. Any other answer is invalid, or a random move."""
    plain = not any("<" in answer or "{" in answer for answer in answers)
    return 2 <= len(answers) <= _POOL and plain and set(rolled_out) <= set(answers)


def _spread(values: list[str], n: int) -> list[str]:
    """``n`` of ``values``, evenly over the list."""
    return values if len(values) <= n else [values[i * len(values) // n] for i in range(n)]
