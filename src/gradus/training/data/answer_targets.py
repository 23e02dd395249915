"""From a teacher's distribution over answers to exact distributions over the next token.

Each span's answers are spelled in tokens and make a tree. After a prefix h the next token is v with the probability of the answers that
begin with h and v among those that begin with h. An answer that ends where another goes on gives its mass to what follows the span:
both readings are kept, each with its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import nan

import torch
from torch import Tensor

from gradus.core import AnswerDistribution, ConfigError
from gradus.policies.local.grammar import spell
from gradus.policies.local.renderers import ChatRenderer
from gradus.training.data.sequences import TrainingSample, ints

Ids = tuple[int, ...]
# Tokens so far -> next token -> the answers that have it there; ~token for those that end with it.
SpellingTree = Mapping[Ids, Mapping[int, Sequence[int]]]
Targets = Mapping[int, float]  # next token -> probability
Readings = dict[tuple[int, Ids], float]  # number of the span and its tokens so far -> probability


@dataclass(frozen=True)
class _SpelledSpan:
    """The answers of a span, spelled, and the probability of each."""

    tree: SpellingTree
    probabilities: Sequence[float]

    def branches(self, tokens: Ids) -> dict[int, float]:
        """The next tokens and their probabilities, not normalized; ~token where an answer ends with it."""
        chances: dict[int, float] = {}
        for key, answers in self.tree[tokens].items():
            chances[key] = sum([self.probabilities[number] for number in answers])
        return chances


class AnswerTargets:
    """Spells a teacher's answers with a student's tokenizer.

    Raises ConfigError at a distribution whose spans the tokenizer does not write one by one.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        encode = partial(renderer.tokenizer.encode, add_special_tokens=False)
        self._spell: Callable[[str, int], Ids] = partial(spell, encode=encode, stop_ids=renderer.stop_ids)
        # The stop token is a last span, which has one answer.
        self._end = _SpelledSpan({(): {~renderer.stop_id: (0,)}}, (1.0,))
        # A teacher states the same answers in many turns.
        self._tree = lru_cache(maxsize=1024)(self._spelled)
        self._check = lru_cache(maxsize=1024)(self._check_spans)

    def of(self, stated: AnswerDistribution, tokens: Sequence[int]) -> list[Targets | None]:
        """The distribution of the next token before each of the ``tokens`` of an answer; None behind one that begins no answer."""
        if not stated:
            return [None] * len(tokens)
        self._check(tuple(span.answers[0] for span in stated))
        trees = [self._tree(span.answers, number) for number, span in enumerate(stated)]
        spans = [_SpelledSpan(tree, span.probabilities) for tree, span in zip(trees, stated, strict=True)]
        spans.append(self._end)
        readings: Readings = {(0, ()): 1.0}
        targets: list[Targets | None] = []
        for token in tokens:
            following, readings = _step(spans, readings, token)
            targets.append(following or None)
        return targets

    def label(self, sample: TrainingSample, stated: Sequence[AnswerDistribution]) -> TrainingSample:
        """The sample with ``soft`` targets, without the tokens that have none. ``stated``: the distribution of each turn."""
        targets = [target for _, target in self._targets(sample, stated)]
        mask = torch.tensor([target is not None for target in targets], dtype=torch.bool)
        present = [target for target in targets if target is not None]
        return replace(sample.only(mask), soft=padded(present))

    def logprobs(self, sample: TrainingSample, stated: Sequence[AnswerDistribution]) -> Tensor:
        """Log-probs (A,) of the tokens of the answers; NaN without a target, -inf where the teacher never says so."""
        chances: list[float] = []
        for token, target in self._targets(sample, stated):
            chances.append(nan if target is None else target.get(token, 0.0))
        return torch.tensor(chances).log()

    def _targets(
        self, sample: TrainingSample, stated: Sequence[AnswerDistribution]
    ) -> list[tuple[int, Targets | None]]:
        """The tokens of the answers, each with its target."""
        pairs: list[tuple[int, Targets | None]] = []
        for turn, rows in sample.by_turn():
            tokens = ints(sample.learned_ids[rows])
            pairs += zip(tokens, self.of(stated[turn], tokens), strict=True)
        return pairs

    def _spelled(self, answers: tuple[str, ...], span: int) -> SpellingTree:
        tree: dict[Ids, dict[int, list[int]]] = {}
        spelled: dict[Ids, str] = {}
        for number, answer in enumerate(answers):
            ids = self._spell(answer, span)
            if spelled.setdefault(ids, answer) != answer:
                raise ConfigError(f"the tokenizer writes the answers {answer!r} and {spelled[ids]!r} alike")
            for length, token in enumerate(ids):
                ends = length == len(ids) - 1
                key = ~token if ends else token
                tree.setdefault(ids[:length], {}).setdefault(key, []).append(number)
        return tree

    def _check_spans(self, words: tuple[str, ...]) -> None:
        """Raises ConfigError unless the tokenizer writes the answer of these spans as the spans one by one."""
        ids: list[int] = []
        for number, word in enumerate(words):
            ids += self._spell(word, number)
        answer = " ".join(words)
        if self._renderer.encode_answer(answer) != (*ids, self._renderer.stop_id):
            raise ConfigError(
                f"the student's tokenizer writes the answer {answer!r} otherwise than its spans one by one; let the teacher "
                "state a distribution over whole answers"
            )


def _step(spans: Sequence[_SpelledSpan], readings: Readings, token: int) -> tuple[dict[int, float], Readings]:
    """The distribution of the next token, and the readings that ``token`` leaves, with their probabilities."""
    following: dict[int, float] = {}
    remaining: Readings = {}
    for (number, tokens), mass in readings.items():
        if number == len(spans):  # the answer was complete: no token comes after its stop token
            continue
        branches = spans[number].branches(tokens)
        total = sum(branches.values())
        for key, chance in branches.items():
            ends = key < 0
            word = ~key if ends else key
            part = mass * chance / total if total else 0.0
            following[word] = following.get(word, 0.0) + part
            if word == token and part:
                reading = (number + 1, ()) if ends else (number, (*tokens, word))
                remaining[reading] = remaining.get(reading, 0.0) + part
    total = sum(remaining.values())
    return following, {reading: mass / total for reading, mass in remaining.items()}


def padded(targets: Sequence[Targets]) -> tuple[Tensor, Tensor]:
    """Ids and probabilities (A, K) of the likely next tokens, 0 where a row has fewer."""
    width = max((len(target) for target in targets), default=0)
    ids = torch.zeros((len(targets), width), dtype=torch.int64)
    chances = torch.zeros((len(targets), width), dtype=torch.float64)  # float32 would lose what they lack of 1
    for row, target in enumerate(targets):
        ids[row, : len(target)] = torch.tensor(list(target), dtype=torch.int64)
        chances[row, : len(target)] = torch.tensor(list(target.values()), dtype=torch.float64)
    return ids, chances
