"""How a server adds up the losses of tokens, measured before anything is trained.

Servers agree on the losses of tokens and differ in what these are divided by, which decides how much a long answer counts beside a short
one. With both decay rates 0 and a very large epsilon an Adam step is proportional to the gradient: how far it moves a log-prob shows the
divisor, on a server that gives no norm of the gradient too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.training.tinker.requests import TrainingRequests

Divisor = Callable[[int, Sequence[int]], float]

# A sequence's length and those of all sequences of an update -> what its loss is divided by. Lengths are numbers of targets.
DIVISORS: Mapping[str, Divisor] = {
    "sum": lambda length, lengths: 1.0,
    "mean over sequences": lambda length, lengths: float(len(lengths)),
    "mean over a sequence's tokens": lambda length, lengths: float(length),
    "mean over tokens, then sequences": lambda length, lengths: float(length * len(lengths)),
    "mean over all tokens": lambda length, lengths: float(sum(lengths)),
}
_SHORT, _LONG, _LONGEST = 8, 32, 96  # tokens: with these each row of the table is twice the one before it
_PLACE = 3  # of the token that is trained
_TOLERANCE = 1.3  # factor by which a measured divisor may be off
_EPSILON = 1e6
_SHIFT = 0.05  # nats that a step moves the token
_ABOVE_NOISE = 30.0  # or so many times what one prefix differs by between two sequences
_NEAR, _FURTHEST = (
    1.25,
    10.0,
)  # factors: how near a step comes to that, and by which a rate changes at once: too far is no way back
_FIRST_RATE, _TRIES = 1e-5, 12
_CLIP, _CLIPPED = 1e-6, 0.1  # a bound that stops any gradient, and the share of the response that is then left at most
_WORDS = 64  # random ids that sequences are made of


@frozen_record
class Reduction:
    """What a server divides losses by: a row of ``DIVISORS``. ``clips``: whether it bounds the gradient's norm when asked to."""

    name: str
    clips: bool

    def divisor(self, length: int, lengths: Sequence[int]) -> float:
        """What the loss of a sequence of ``length`` is divided by, among ``lengths``."""
        return DIVISORS[self.name](length, lengths)


@frozen_record
class _Probe:
    """Steps on one token of a trained adapter. ``words``: ids that sequences are made of."""

    requests: TrainingRequests
    words: Sequence[int]

    def response(self, lengths: Sequence[int], rate: float, *, clip: float = 0.0) -> float:
        """How far a step on one token of the first sequence moves its log-prob, nats: the mean of a step up and a step back down."""
        start = self._logprob()
        up = self._step(lengths, rate, 1.0, start, clip)
        down = self._step(lengths, rate, -1.0, up, clip)
        return (2 * up - start - down) / 2

    def fit(self, lengths: Sequence[int], rate: float, shift: float) -> tuple[float, float]:
        """A rate at which a step moves the token by about ``shift`` nats, and by how many it does."""
        response = 0.0
        for _ in range(_TRIES):
            response = self.response(lengths, rate)
            if 1 / _NEAR < response / shift < _NEAR:
                return rate, response
            rate *= min(max(shift / max(response, 1e-9), 1 / _FURTHEST), _FURTHEST)
        raise ConfigError(
            f"a step on one token moved its log-prob by {response:.2g} nats, expected about {shift:.2g} after {_TRIES} rates were tried; "
            "this server's optimizer does not follow Adam's settings, so nothing can be trained there"
        )

    def noise(self) -> float:
        """The largest difference between log-probs of a prefix, alone and in a longer sequence, nats: what rounding does."""
        alone, longer = self._logprobs(_SHORT), self._logprobs(_LONGEST)
        return float((alone - longer[:_SHORT]).abs().max())

    def _ids(self, length: int) -> list[int]:
        """Ids of a sequence with ``length`` targets; longer ones go on where shorter ones end."""
        return [self.words[place % len(self.words)] for place in range(length + 1)]

    def _logprobs(self, length: int) -> Tensor:
        ids = self._ids(length)
        return self.requests.forward([self.requests.datum(ids, np.array(ids[1:]))])[0]

    def _logprob(self) -> float:
        """The log-prob of the token that is trained."""
        return float(self._logprobs(_SHORT)[_PLACE])

    def _step(self, lengths: Sequence[int], rate: float, sign: float, before: float, clip: float) -> float:
        """Takes a step with one advantage of ``sign``; returns the log-prob of its token behind it."""
        data: list[object] = []
        for number, length in enumerate(lengths):
            ids, one = self._ids(length), np.zeros(length, np.float32)
            one[_PLACE] = number == 0
            logprobs, advantages = one * np.float32(before), one * np.float32(sign)
            data.append(self.requests.datum(ids, np.array(ids[1:]), logprobs=logprobs, advantages=advantages))
        adam = {"learning_rate": rate * _EPSILON, "beta1": 0.0, "beta2": 0.0, "eps": _EPSILON, "grad_clip_norm": clip}
        self.requests.step(data, adam)
        return self._logprob()


def measure_reduction(requests: TrainingRequests, vocabulary: int) -> Reduction:
    """Measures what a server divides losses by, and whether it clips gradients. The weights are moved.

    ``vocabulary``: number of token ids. Raises ConfigError if the server does not have the loss, or its divisor is none of ``DIVISORS``.
    """
    words: list[int] = np.random.default_rng(0).integers(0, vocabulary, _WORDS).tolist()
    probe = _Probe(requests=requests, words=words)
    rate, response = probe.fit([_SHORT], _FIRST_RATE, max(_SHIFT, _ABOVE_NOISE * probe.noise()))
    # Both steps are equally far, so that the curvature of the log-prob cancels.
    faster, long_response = probe.fit([_LONG, _LONGEST], rate, response)
    ratio = (response / rate) / (long_response / faster)
    clipped = probe.response([_SHORT], rate, clip=_CLIP)
    return Reduction(name=_nearest(ratio, requests.service.url), clips=abs(clipped) < _CLIPPED * response)


def _nearest(ratio: float, url: str) -> str:
    """The row of the table whose divisors differ by ``ratio`` between the two batches."""
    both = [_LONG, _LONGEST]
    expected = {name: divisor(_LONG, both) / divisor(_SHORT, [_SHORT]) for name, divisor in DIVISORS.items()}
    name = min(expected, key=lambda each: abs(np.log(ratio / expected[each])))
    if 1 / _TOLERANCE < ratio / expected[name] < _TOLERANCE:
        return name
    raise ConfigError(
        f"{url} divides losses by none of {', '.join(DIVISORS)}: a token of a longer sequence beside another one counts 1/{ratio:.3g} of "
        "that of a short one; choose another server"
    )
