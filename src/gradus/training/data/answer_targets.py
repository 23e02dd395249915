"""From a teacher's distribution over answers to exact distributions over the next token.

Each span's answers are spelled in tokens and make a tree. After a prefix h the next token is v with the probability of the answers that
begin with h and v among those that begin with h. An answer that ends where another goes on gives its mass to what follows the span:
both readings are kept, each with its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import nan

import torch
from torch import Tensor

from gradus.core import AnswerDistribution, ConfigError
from gradus.policies.local.grammar import spell
from gradus.policies.local.renderers import ChatRenderer
from gradus.training.data.sequences import TrainingSample

Ids = tuple[int, ...]
# Tokens so far -> next token -> the answers that have it there; ~token for those that end with it.
Tree = Mapping[Ids, Mapping[int, Sequence[int]]]
Targets = Mapping[int, float]  # next token -> probability
_Place = tuple[Tree, Sequence[float]]


class AnswerTargets:
    """Spells a teacher's answers with a student's tokenizer.

    Raises ConfigError at a distribution whose spans the tokenizer does not write one by one.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer

        encode = partial(renderer.tokenizer.encode, add_special_tokens=False)
        self._spell = partial(spell, encode=encode, stop_ids=renderer.stop_ids)
        self._end: _Place = ({(): {~renderer.stop_id: (0,)}}, (1.0,))
        self._tree: Callable[[tuple[str, ...], int], Tree] = lru_cache(maxsize=1024)(self._spelled)
        self._check: Callable[[tuple[str, ...]], None] = lru_cache(maxsize=1024)(self._written)

    def of(self, stated: AnswerDistribution, said: Sequence[int]) -> list[Targets | None]:
        """The distribution of the next token before each token that was ``said``; None behind one that begins no answer."""
        if not stated:
            return [None] * len(said)
        self._check(tuple(each.answers[0] for each in stated))
        places = [(self._tree(each.answers, place), each.probabilities) for place, each in enumerate(stated)]
        readings: dict[tuple[int, Ids], float] = {(0, ()): 1.0}
        targets: list[Targets | None] = []
        for token in said:
            following, readings = _step([*places, self._end], readings, token)
            targets.append(following or None)
        return targets

    def label(self, sample: TrainingSample, stated: Sequence[AnswerDistribution]) -> TrainingSample:
        """The sample with ``soft`` targets, without the tokens that have none. ``stated``: the distribution of each turn."""
        targets = self._targets(sample, stated)
        kept = torch.tensor([each is not None for _, each in targets], dtype=torch.bool)
        return replace(sample.only(kept), soft=padded([each for _, each in targets if each is not None]))

    def logprobs(self, sample: TrainingSample, stated: Sequence[AnswerDistribution]) -> Tensor:
        """Log-probs (A,) of the tokens that were said; NaN without a target, -inf where the teacher never says so."""
        chances = [nan if each is None else each.get(token, 0.0) for token, each in self._targets(sample, stated)]
        return torch.tensor(chances).log()

    def _targets(
        self, sample: TrainingSample, stated: Sequence[AnswerDistribution]
    ) -> list[tuple[int, Targets | None]]:
        """The tokens that were said, each with its target."""
        said = sample.ids[sample.positions] if sample.targets is None else sample.targets
        by_turn: dict[int, list[int]] = {}
        for turn, token in zip(sample.turns.tolist(), said.tolist(), strict=True):
            by_turn.setdefault(turn, []).append(token)
        return [pair for turn, ids in by_turn.items() for pair in zip(ids, self.of(stated[turn], ids), strict=True)]

    def _spelled(self, answers: tuple[str, ...], place: int) -> Tree:
        tree: dict[Ids, dict[int, list[int]]] = {}
        spelled: dict[Ids, str] = {}
        for number, answer in enumerate(answers):
            ids = self._spell(answer, place)
            if spelled.setdefault(ids, answer) != answer:
                raise ConfigError(f"the tokenizer writes the answers {answer!r} and {spelled[ids]!r} alike")
            for length, token in enumerate(ids):
                key = ~token if length == len(ids) - 1 else token
                tree.setdefault(ids[:length], {}).setdefault(key, []).append(number)
        return tree

    def _written(self, words: tuple[str, ...]) -> None:
        """Raise ConfigError unless the tokenizer writes the answer of these spans as the spans one by one."""
        apart = [token for place, word in enumerate(words) for token in self._spell(word, place)]
        if self._renderer.encode_answer(" ".join(words)) != (*apart, self._renderer.stop_id):
            raise ConfigError(
                f"the student's tokenizer writes the answer {' '.join(words)!r} otherwise than its spans one by one; let the teacher "
                "state a distribution over whole answers"
            )


def _step(
    places: Sequence[_Place], readings: Mapping[tuple[int, Ids], float], token: int
) -> tuple[dict[int, float], dict[tuple[int, Ids], float]]:
    """The distribution of the next token, and what is left of the readings after ``token``."""
    following: dict[int, float] = {}
    left: dict[tuple[int, Ids], float] = {}
    for (place, so_far), mass in readings.items():
        if place == len(places):
            continue
        tree, probabilities = places[place]
        branches = {key: sum([probabilities[each] for each in found]) for key, found in tree[so_far].items()}
        total = sum(branches.values())
        for key, share in branches.items():
            word, ends = (key, False) if key >= 0 else (~key, True)
            part = mass * share / total if total else 0.0
            following[word] = following.get(word, 0.0) + part
            if word == token and part:
                reading = (place + 1, ()) if ends else (place, (*so_far, word))
                left[reading] = left.get(reading, 0.0) + part
    total = sum(left.values())
    return following, {reading: mass / total for reading, mass in left.items()}


def padded(targets: Sequence[Targets]) -> tuple[Tensor, Tensor]:
    """Ids and probabilities (A, K) of the likely next tokens, 0 where a row has fewer."""
    width = max((len(each) for each in targets), default=0)
    ids = torch.tensor([[*each, *[0] * (width - len(each))] for each in targets], dtype=torch.int64)
    chances = torch.tensor([[*each.values(), *[0.0] * (width - len(each))] for each in targets])
    return ids.view(len(targets), width), chances.view(len(targets), width)
