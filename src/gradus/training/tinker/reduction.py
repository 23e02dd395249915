"""How a server adds up the losses of tokens, measured before anything is trained.

Servers agree on the losses of tokens and differ in what these are divided by, which decides how much a long answer counts beside a short
one. With both decay rates 0 and a very large epsilon an Adam step is proportional to the gradient: how far it moves a log-prob shows the
divisor, on a server that gives no norm of the gradient too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.core import ConfigError
from gradus.policies.tinker.policy import TinkerPolicy
from gradus.policies.tinker.service import TinkerService

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
_SMALL = 0.05  # nats that a step moves the token
_ABOVE_NOISE = 30.0  # or so many times what sampler and trainer differ by
_ABOUT, _FURTHEST = 1.25, 30.0  # factors: how near a step comes to that, and by which a rate changes at once
_FIRST_RATE, _TRIES = 0.01, 10
_CLIP, _CLIPPED = 1e-6, 0.1  # a bound that stops any gradient, and the share of the response that is then left at most
_EXACT = 1e-3  # nats: below, sampler and trainer are one function
_ANSWERS, _ANSWER = 4, 16  # samples that are compared, and their tokens
_WORDS = 64  # random ids that sequences are made of


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a server divides losses by, and what else the probe of it has shown.

    ``name``: the row of ``DIVISORS``. ``clips``: whether it bounds the gradient's norm when asked to. ``exact``: whether sampler and trainer
    give the same log-probs up to rounding in float32; ``logp_diff`` is their largest difference, nats.
    """

    name: str
    clips: bool
    exact: bool
    logp_diff: float

    def divisor(self, length: int, lengths: Sequence[int]) -> float:
        """What the loss of a sequence of ``length`` is divided by, among ``lengths``."""
        return DIVISORS[self.name](length, lengths)

    @property
    def sentence(self) -> str:
        """One line for a person."""
        clip = "the gradient is clipped" if self.clips else "the server does not clip the gradient"
        return f"losses are a {self.name}; sampler and trainer agree to {self.logp_diff:.1e} nats; {clip}"


class _Probe:
    """Steps on one token of a trained adapter. ``words``: ids that sequences are made of."""

    def __init__(self, service: TinkerService, client: Any, words: Sequence[int]) -> None:
        self._service, self._client, self._words = service, client, words

    def sequence(self, length: int) -> list[int]:
        """Ids of a sequence with ``length`` targets; longer ones go on where shorter ones end."""
        return [self._words[place % len(self._words)] for place in range(length + 1)]

    def logprob(self) -> float:
        """The log-prob of the token that is trained."""
        data = [self._datum(self.sequence(_SHORT), np.zeros(_SHORT), np.zeros(_SHORT))]
        with self._service.explained("compute log-probs"):
            future = self._client.forward(data, "importance_sampling")
        output = self._service.result(future, "compute log-probs").loss_fn_outputs[0]
        return float(output["logprobs"].to_numpy()[_PLACE])

    def response(self, lengths: Sequence[int], rate: float, *, clip: float = 0.0) -> float:
        """How far a step on one token of the first sequence moves its log-prob, nats: the mean of a step up and a step back down."""
        start = self.logprob()
        up = self._step(lengths, rate, 1.0, start, clip)
        down = self._step(lengths, rate, -1.0, up, clip)
        return (2 * up - start - down) / 2

    def _step(self, lengths: Sequence[int], rate: float, sign: float, before: float, clip: float) -> float:
        """Takes a step with one advantage of ``sign``; returns the log-prob of its token behind it."""
        types = self._service.sdk.types
        data: list[Any] = []
        for number, length in enumerate(lengths):
            advantages, denominators = np.zeros(length), np.zeros(length)
            if number == 0:
                advantages[_PLACE], denominators[_PLACE] = sign, before
            data.append(self._datum(self.sequence(length), denominators, advantages))
        adam = types.AdamParams(learning_rate=rate * _EPSILON, beta1=0.0, beta2=0.0, eps=_EPSILON, grad_clip_norm=clip)
        with self._service.explained("train with the loss importance_sampling"):
            gradient = self._client.forward_backward(data, "importance_sampling")
            step = self._client.optim_step(adam)
        self._service.result(gradient, "train with the loss importance_sampling")
        self._service.result(step, "take an optimizer step")
        return self.logprob()

    def _datum(self, ids: Sequence[int], denominators: Any, advantages: Any) -> Any:
        types = self._service.sdk.types
        columns = {
            "target_tokens": np.array(ids[1:], np.int64),
            "logprobs": denominators.astype(np.float32),
            "advantages": advantages.astype(np.float32),
        }
        inputs = {name: types.TensorData.from_numpy(values) for name, values in columns.items()}
        return types.Datum(model_input=types.ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=inputs)


def measure_reduction(service: TinkerService, client: Any, sampler: TinkerPolicy, vocabulary: int) -> Reduction:
    """Measures what a server divides losses by, whether it clips gradients, and how far its sampler and its trainer differ.

    Args:
        client: a training client; its weights are moved.
        sampler: a policy with the same weights.
        vocabulary: number of token ids.

    Raises:
        ConfigError: the server does not have the loss, or its divisor is none of those in ``DIVISORS``.
    """
    words: list[int] = np.random.default_rng(0).integers(0, vocabulary, _WORDS).tolist()
    logp_diff = _largest_difference(service, client, sampler, words[:_SHORT])
    probe = _Probe(service, client, words)
    wanted = max(_SMALL, _ABOVE_NOISE * logp_diff)
    rate, response = _fitting(probe, [_SHORT], _FIRST_RATE, wanted)
    # Both steps are equally far, so that the curvature of the log-prob cancels.
    faster, long_response = _fitting(probe, [_LONG, _LONGEST], rate, response)
    ratio = (response / rate) / (long_response / faster)
    clipped = probe.response([_SHORT], rate, clip=_CLIP)
    return Reduction(
        name=_nearest(ratio, service.url),
        clips=abs(clipped) < _CLIPPED * response,
        exact=logp_diff < _EXACT,
        logp_diff=logp_diff,
    )


def _fitting(probe: _Probe, lengths: Sequence[int], rate: float, wanted: float) -> tuple[float, float]:
    """A rate at which a step moves the token by about ``wanted`` nats, and by how many it does."""
    response = 0.0
    for _ in range(_TRIES):
        response = probe.response(lengths, rate)
        if 1 / _ABOUT < response / wanted < _ABOUT:
            return rate, response
        rate *= min(max(wanted / max(response, 1e-9), 1 / _FURTHEST), _FURTHEST)
    raise ConfigError(
        f"a step on one token moved its log-prob by {response:.2g} nats, expected about {wanted:.2g} after {_TRIES} rates were tried; "
        "this server's optimizer does not follow Adam's settings, so nothing can be trained there"
    )


def _nearest(ratio: float, url: str) -> str:
    """The row of the table whose divisors differ by ``ratio`` between the two batches."""
    both = [_LONG, _LONGEST]
    expected = {name: divisor(_LONG, both) / divisor(_SHORT, [_SHORT]) for name, divisor in DIVISORS.items()}
    name = min(expected, key=lambda each: abs(np.log(ratio / expected[each])))
    if not 1 / _TOLERANCE < ratio / expected[name] < _TOLERANCE:
        known = ", ".join(f"{each} {value:g}" for each, value in expected.items())
        raise ConfigError(
            f"{url} divides losses in a way that is not known: a longer sequence beside another one counts 1/{ratio:.3g} of a short one "
            f"(known are {known}); choose another server"
        )
    return name


def _largest_difference(service: TinkerService, client: Any, sampler: TinkerPolicy, prompt: list[int]) -> float:
    """The largest difference between the sampler's log-probs and the trainer's on the same tokens, nats."""
    types = service.sdk.types
    answers = sampler.read(sampler.ask(prompt, _ANSWERS, _ANSWER, 0), len(prompt))
    data: list[Any] = []
    for ids, _ in answers:
        sequence = [*prompt, *ids]
        columns = {
            "target_tokens": np.array(sequence[1:], np.int64),
            "weights": np.zeros(len(sequence) - 1, np.float32),
        }
        inputs = {name: types.TensorData.from_numpy(values) for name, values in columns.items()}
        data.append(types.Datum(model_input=types.ModelInput.from_ints(sequence[:-1]), loss_fn_inputs=inputs))
    with service.explained("compute log-probs"):
        future = client.forward(data, "cross_entropy")
    outputs = service.result(future, "compute log-probs").loss_fn_outputs
    differences = [
        np.abs(output["logprobs"].to_numpy()[len(prompt) - 1 :] - np.array(logprobs)).max()
        for output, (_, logprobs) in zip(outputs, answers, strict=True)
    ]
    return float(max(differences))
