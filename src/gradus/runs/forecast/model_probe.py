"""Is a model one function here? The sampler, the trainer and transformers' plain forward are asked about the same tokens.

Everything that training rests on is in the answer: chat template, cache, masks, windows, positions, shared prefixes. It takes a few
seconds and is done for the user's own model before anything is spent on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import torch

from gradus.core import ConfigError, EnvironmentSpec, GradusError, PolicyError, Task
from gradus.core.errors import first_line
from gradus.core.frozen_record import frozen_record
from gradus.interop.classes import class_spec
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import TrainingSample, episode_samples
from gradus.training.engine.forward import disable_dropout, score_tokens
from gradus.training.engine.tree_support import supports_tree, tree_attention

_SYSTEM = "You answer in one line."
_SHOWN = (
    "What is 2 + 2 ?",
    "Name a color, please. " * 4,
    "And then?",
    "No. Once more, and think of what was said before.",
)
_SHORT = ("a", "b", "c", "d")  # for a model whose context holds no more
_LONG_ENOUGH = 400  # tokens of context that the texts above need at most, spelled letter by letter
_LIMITS = {torch.float64: 1e-6, torch.float32: 2e-3}  # nats, the largest difference; for 16 bits see _limit


@frozen_record
class ModelProbe:
    """Differences of log-probs from those of a plain forward, in nats."""

    sampler: float  # the largest of what was sampled
    trainer: float  # the largest of what the trainer computes
    mean: float  # of both
    shared: bool  # the trainer computes shared prefixes once
    own_cache: bool  # the sampler uses the cache of Gradus, and not transformers' general one

    @property
    def sentence(self) -> str:
        """One line for a person."""
        cache = "over the cache of Gradus" if self.own_cache else "by transformers' generate, which is slower"
        passes = "shared prefixes" if self.shared else "plain rows"
        return (
            f"sampler ({cache}) and trainer ({passes}) agree with the plain forward to {self.sampler:.1e} and "
            f"{self.trainer:.1e} nats"
        )


def check_model(loaded: LoadedModel) -> ModelProbe:
    """:func:`probe_model`, raising ConfigError with the reason and the way out if the three differ."""
    name = type(causal_model(loaded.model)).__name__
    try:
        probe = probe_model(loaded)
    except GradusError:
        raise
    except Exception as error:  # whatever an architecture does not bear, here is where it should come out
        first = first_line(error) or type(error).__name__
        raise ConfigError(
            f"{name} cannot be sampled from or trained here ({type(error).__name__}: {first[:200]}); try attention = 'eager', "
            "or choose another model"
        ) from error
    largest, mean = _limit(loaded.dtype)
    # A mean that is not a number is not at most the limit either.
    if not (probe.sampler <= largest and probe.trainer <= largest and probe.mean <= mean):
        raise ConfigError(
            f"{name}: log-probs differ from the plain forward by {probe.sampler:.2g} nats in the sampler and {probe.trainer:.2g} "
            f"in the trainer, expected at most {largest:.2g}; try attention = 'eager' or dtype = 'float32', or choose another model"
        )
    return probe


def _limit(dtype: torch.dtype) -> tuple[float, float]:
    """Largest and mean difference that rounding explains. 16 bits round a log-prob by some hundredths, rarely by more."""
    if dtype in _LIMITS:
        return _LIMITS[dtype], _LIMITS[dtype]
    return 1.0, 0.1


def probe_model(loaded: LoadedModel) -> ModelProbe:
    """Sample two groups over two turns, then compute each token's log-prob by the trainer and by one plain forward a sequence.

    All three in the weights' own dtype, also if the run samples and trains under autocast: its rounding would hide a wrong mask.
    """
    # Rounding of autocast is larger than what a wrong mask does to a short text.
    loaded = replace(loaded, autocast=False)
    disable_dropout(loaded.model)
    sampling = SamplingConfig(max_new_tokens=6)
    policy = LocalPolicy(loaded, sampling, name="probe")
    system, shown = _SYSTEM, _SHOWN
    if loaded.context is not None and loaded.context < _LONG_ENOUGH:
        system, shown = "", _SHORT
    sequences = _sampled(policy, _conversation(system, shown))
    sampled = torch.cat([sequence.logprobs for sequence in sequences]).numpy()
    plain = np.concatenate([_plain(loaded, sequence) for sequence in sequences])
    trained = _trained(loaded, sequences, sampling)
    sampler, trainer = np.abs(sampled - plain), np.abs(trained - plain)
    return ModelProbe(
        sampler=_largest(sampler),
        trainer=_largest(trainer),
        mean=float(np.mean([sampler, trainer])),
        shared=supports_tree(loaded.model),
        own_cache=policy.plan is not None,
    )


def _largest(gaps: np.ndarray) -> float:
    """The largest gap; infinite if one is not a number."""
    return float(gaps.max()) if np.isfinite(gaps).all() else float("inf")


def _conversation(system: str, shown: Sequence[str]) -> EnvironmentSpec:
    """Episodes of two turns: the members of a group read the same first, and other things later.

    Equal beginnings are what the trainer shares, and different ends are what it must keep apart.
    """
    number = count()

    class TwoTurns:
        system_prompt = system
        max_turns = 2

        def reset(self, seed: int) -> str:
            return shown[seed]

        def step(self, answer: str) -> tuple[str, float, bool]:
            return shown[2 + next(number) % 2], 0.0, False

    return class_spec(TwoTurns)


def _sampled(policy: LocalPolicy, spec: EnvironmentSpec) -> list[TrainingSample]:
    """What two members of two groups read and said."""
    tasks = [Task(environment=spec.name, seed=group) for group in range(2)]
    sequences: list[TrainingSample] = []
    for number, episode in enumerate(roll_out(spec, policy, tasks, group_size=2, key=("probe",)).episodes):
        if episode.failure is not None:
            raise PolicyError(f"the model cannot answer: {episode.failure.message}")
        sequences += episode_samples(episode, index=number)
    return sequences


@torch.no_grad()
def _plain(loaded: LoadedModel, sequence: TrainingSample) -> np.ndarray:
    """The log-probs of a sequence's sampled tokens by one plain forward."""
    ids = sequence.ids.to(loaded.device)
    logprobs = loaded.model(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)
    places = sequence.positions.to(loaded.device)
    # The logits at a place are those of the token behind it.
    return logprobs[places - 1].gather(1, ids[places][:, None])[:, 0].double().cpu().numpy()


@torch.no_grad()
def _trained(loaded: LoadedModel, sequences: Sequence[TrainingSample], sampling: SamplingConfig) -> np.ndarray:
    """The trainer's log-probs, in the order of the sequences' tokens."""
    scored: dict[int, np.ndarray] = {}
    with tree_attention(loaded.model):
        for batch in microbatches(sequences, budget=4096, share=supports_tree(loaded.model)):
            logprobs = score_tokens(loaded.model, batch.to(loaded.device), sampling).logprobs.double().cpu().numpy()
            rows = batch.labels.row.cpu().numpy()
            for row, index in enumerate(batch.sequences):  # microbatches are sorted by length
                scored[index] = logprobs[rows == row]
    return np.concatenate([scored[index] for index in range(len(sequences))])
