"""What SFT learns, again from the episodes: the text of their answers, all episodes once an epoch, and the loss of the first step by a plain pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gradus.core import Episode, Renderer
from gradus.core.records import FAULTS
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.laws.draws import check_size, plain_scores
from gradus.training.laws.runner import NotMeasured, Pair

_EPISODES = 8  # whose text is looked at
Samples = Sequence[TrainingSample]


def lesson_text(renderer: Renderer, episodes: Sequence[Episode], samples: Samples) -> Iterator[Pair]:
    """The learned tokens of each valid answer are its text and the token that ends it; those of an invalid one are not learned."""
    learned: dict[tuple[int, int], list[int]] = {}
    for sample in samples:
        stands = sample.learned_ids.equal(sample.ids[sample.positions])
        yield Pair(stands, True, 0.0, f"episode {sample.episode}: whether it learns the tokens that it reads")
        for turn, token in zip(ints(sample.turns), ints(sample.learned_ids), strict=True):
            learned.setdefault((sample.episode, turn), []).append(token)
    for number, episode in enumerate(episodes[:_EPISODES]):
        for turn in episode.turns if episode.stop not in FAULTS else ():
            ids = learned.get((number, turn.index), [])
            place = f"episode {number}, turn {turn.index}"
            yield Pair(bool(ids), turn.valid, 0.0, f"{place}: whether it is learned")
            if ids and turn.asked is None and not episode.tools:
                said = renderer.decode(ids).strip()
                yield Pair(turn.action.strip() in said, True, 0.0, f"{place}: whether the learned text is the answer's")
                ends = ids[-1] in renderer.stop_ids
                yield Pair(ends, not turn.cut, 0.0, f"{place}: whether the token that ends an answer is learned")


def epoch_again(batches: Sequence[Samples], samples: Samples) -> Iterator[Pair]:
    """The batches of an epoch hold each episode once."""
    taken = Counter(sample.episode for batch in batches for sample in batch)
    expected = Counter(sample.episode for sample in samples)
    parted = sorted(number for number in taken | expected if taken[number] != expected[number])
    yield Pair(len(parted), 0.0, 0.0, f"episodes that an epoch has more or less than once ({parted[:3]})")


@torch.no_grad()
def plain_loss(loaded: LoadedModel, samples: Samples) -> float:
    """The mean negative log-likelihood of the learned tokens, each sample alone. Raises NotMeasured for samples that are too long."""
    values: list[torch.Tensor] = []
    for sample in samples:
        check_size(loaded, len(sample))
        scores = plain_scores(loaded, SamplingConfig(), sample)
        values.append(scores.gather(1, sample.learned_ids[:, None].to(scores.device))[:, 0])
    return -float(torch.cat(values).mean())


def loss_again(loss: float, again: float, loaded: LoadedModel) -> Iterator[Pair]:
    """The loss of a step is that of a plain pass."""
    exact = loaded.dtype == torch.float32 and not loaded.autocast
    yield Pair(loss, again, (1e-4 if exact else 0.05) * max(1.0, again), "the loss of the first step")


def lowest_again(metrics: Path, best: float | None) -> Iterator[Pair]:
    """The loss that chose the best weights is the lowest of the validations in the metrics."""
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    losses = [record["validation_loss"] for record in records if record.get("validation_loss") is not None]
    if not losses or best is None:
        raise NotMeasured("a validation")
    yield Pair(best, min(losses), 0.0, "the lowest validation loss")
