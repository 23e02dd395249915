"""An update through the requests of a Tinker server is the local update, whatever the server divides losses by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pytest
import torch
from short_runs import sampled
from torch import Tensor

from gradus.algorithms import algorithm_names
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.tinker.policy import TokenCounts
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.update import UpdateOptions, policy_update
from gradus.training.tinker.reduction import DIVISORS, Reduction, measure_reduction
from gradus.training.tinker.remote import RemoteModel
from gradus.training.tinker.requests import TrainingRequests
from gradus.training.tinker.update import remote_update


class Here:
    """What the requests need of a server's address and client."""

    url = "here"


@dataclass(frozen=True, kw_only=True)
class ServedHere(TrainingRequests):
    """``importance_sampling`` by torch on a model in this process, with losses divided as ``reduction`` says."""

    model: Any
    optimizer: torch.optim.Optimizer
    reduction: str = "sum"

    @classmethod
    def of(cls, loaded: LoadedModel, optimizer: torch.optim.Optimizer, reduction: str) -> Self:
        return cls(service=Here(), client=None, model=loaded.model, optimizer=optimizer, reduction=reduction)  # type: ignore[arg-type]

    def datum(self, ids: Sequence[int], targets: Any, **inputs: Any) -> Any:
        tensors = {name: torch.tensor(values) for name, values in inputs.items()}
        return {"ids": torch.tensor(ids[:-1]), "targets": torch.tensor(targets), **tensors}

    def scores(self, datum: Mapping[str, Tensor]) -> Tensor:
        logits = self.model(datum["ids"][None]).logits[0]
        return logits.log_softmax(-1).gather(1, datum["targets"][:, None])[:, 0]

    @torch.no_grad()
    def forward(self, data: Sequence[Any]) -> list[Tensor]:
        return [self.scores(datum) for datum in data]

    def step(self, data: Sequence[Any], adam: Mapping[str, float]) -> float | None:
        lengths = [len(datum["targets"]) for datum in data]
        for datum, length in zip(data, lengths, strict=True):
            ratio = torch.exp(self.scores(datum) - datum["logprobs"])
            loss = -(ratio * datum["advantages"]).sum() / DIVISORS[self.reduction](length, lengths)
            loss.backward()
        # An Adam of no decay and a large epsilon is this descent.
        rate = adam["learning_rate"] / adam["eps"] if adam["eps"] > 1 else adam["learning_rate"]
        limit = adam["grad_clip_norm"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)


def batch(loaded: LoadedModel, settings: GrpoConfig) -> list[TrainingSample]:
    """Sequences of unequal length, with old log-probs near the new ones and advantages of both signs."""
    draw = torch.Generator().manual_seed(0)
    samples: list[TrainingSample] = []
    for number, sample in enumerate(sampled(loaded, settings)):
        kept = torch.arange(sample.actions) <= number % sample.actions
        cut = sample.only(kept) if number % 2 else sample
        advantages = torch.randn(cut.actions, generator=draw, dtype=torch.float64)
        samples.append(replace(cut, advantages=advantages))
    return samples


def moved(loaded: LoadedModel, update: Any) -> Tensor:
    """How far an update moves the weights, which are then put back."""
    parameters = list(loaded.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    update(torch.optim.SGD(parameters, lr=1.0))
    change = torch.cat([(old - new.detach()).flatten() for old, new in zip(before, parameters, strict=True)])
    with torch.no_grad():
        for parameter, old in zip(parameters, before, strict=True):
            parameter.copy_(old)
    return change


def config(**settings: Any) -> GrpoConfig:
    sampling = SamplingConfig(max_new_tokens=4)
    return GrpoConfig(groups=4, group_size=4, max_turns=3, grad_clip=0, sampling=sampling, **settings)


CASES = [("gradus", name) for name in DIVISORS] + [
    (name, "mean over tokens, then sequences") for name in algorithm_names()
]


@pytest.mark.parametrize(("algorithm", "reduction"), CASES)
def test_an_update_is_the_local_one(loaded: LoadedModel, algorithm: str, reduction: str) -> None:
    settings = config(algorithm=algorithm, minibatches=2, epochs=2)
    samples = batch(loaded, settings)

    def remote(optimizer: torch.optim.Optimizer) -> None:
        requests = ServedHere.of(loaded, optimizer, reduction)
        model = RemoteModel(requests=requests, reduction=Reduction(name=reduction, clips=True), counts=TokenCounts())
        remote_update(model, samples, settings, 0.1)

    expected = moved(
        loaded, lambda optimizer: policy_update(loaded, optimizer, samples, settings, 0.1, options=UpdateOptions())
    )
    assert expected.abs().max() > 0
    assert (moved(loaded, remote) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("reduction", DIVISORS)
def test_the_divisor_is_measured(loaded: LoadedModel, reduction: str) -> None:
    def measure(optimizer: torch.optim.Optimizer) -> None:
        requests = ServedHere.of(loaded, optimizer, reduction)
        assert measure_reduction(requests, loaded.model.config.vocab_size) == Reduction(name=reduction, clips=True)

    moved(loaded, measure)
