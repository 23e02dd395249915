"""What the model computes for clients: log-probs with gradients, samples, and log-probs of prompts. One call at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_seed
from gradus.core.frozen_record import frozen_record
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import AdapterShape, AdapterSlot, TrainedAdapter, Weights
from gradus.interop.tinker.losses import ServedLoss
from gradus.interop.tinker.wire import ForwardResult, SampledTokens, SampleResult, TokenDatum
from gradus.policies.local.decoding import Prompt
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample, ints, split
from gradus.training.engine.forward import PLAIN, compare_tokens, disable_dropout, score_tokens, vocabulary_size
from gradus.training.engine.tree_support import tree_attention

_PASS_TOKENS = 4096  # of one forward and backward pass
_PIECE = 16  # tokens that are sampled before their text is searched for the end


@frozen_record
class SampleOrder:
    """What is to be sampled."""

    prompt: Sequence[int]
    # Answers to it.
    count: int
    # Most tokens of an answer.
    budget: int
    sampling: SamplingConfig
    # Ids and texts that end an answer.
    stops: frozenset[int]
    stop_texts: Sequence[str]
    seed: int
    # The prompt is scored too, with so many likeliest tokens at each of its places.
    prompt_logprobs: bool = False
    likeliest: int = 0


class AdapterEngine:
    """A base model that computes for many adapters. Everything is a function of its arguments, so that a client's program gives the same
    numbers again. Not for several threads."""

    def __init__(self, loaded: LoadedModel, *, rows: int = 32) -> None:
        disable_dropout(loaded.model.eval())
        for parameter in loaded.model.parameters():
            parameter.requires_grad_(False)
        self.loaded = loaded
        self.vocabulary = vocabulary_size(loaded.model)
        self.slot = AdapterSlot(loaded)
        self._rows = rows

    def new_adapter(self, shape: AdapterShape, seed: int) -> TrainedAdapter:
        """Makes an adapter whose product is zero."""
        return TrainedAdapter(shape, self.slot.fresh(shape, seed))

    def forward(
        self, adapter: TrainedAdapter, data: Sequence[TokenDatum], loss: ServedLoss, *, backward: bool
    ) -> ForwardResult:
        """Scores the data; with ``backward`` the gradient of the summed loss is added to the adapter's."""
        samples = [_sample(datum.ids, datum.inputs["target_tokens"], index) for index, datum in enumerate(data)]
        outputs: list[dict[str, Tensor]] = [{} for _ in data]
        total = 0.0
        with self.slot.wearing(adapter.shape, adapter.weights) as (loaded, parameters), ExitStack() as stack:
            stack.enter_context(tree_attention(loaded.model))
            stack.enter_context(torch.set_grad_enabled(backward))
            # Sequences share no prefix: each is scored as if it were alone, whatever else is in the batch.
            for batch in microbatches(samples, budget=_PASS_TOKENS, share=False):
                logprobs = score_tokens(loaded.model, batch.to(loaded.device), PLAIN).logprobs
                loss_sum = logprobs.new_zeros(())
                for index, scores in _by_sequence(batch, logprobs):
                    datum = data[index]
                    inputs = {name: value.to(loaded.device).flatten() for name, value in datum.inputs.items()}
                    losses = loss.of_tokens(scores, inputs)
                    loss_sum = loss_sum + losses.sum()
                    outputs[index]["logprobs"] = _as_output(scores, datum)
                    outputs[index]["elementwise_loss"] = _as_output(losses, datum)
                if backward:
                    loss_sum.backward()
                total += float(loss_sum.detach())
            adapter.add_gradients(parameters)
        return ForwardResult(outputs=outputs, metrics={"loss:sum": total})

    def sample(self, shape: AdapterShape | None, weights: Weights, order: SampleOrder) -> SampleResult:
        """Samples answers, and scores the prompt if that is asked for. ``shape`` None: by the base."""
        with self.slot.wearing(shape, weights) as (loaded, _):
            scores = None
            likeliest = None
            if order.prompt_logprobs:
                scores, likeliest = _prompt_scores(loaded, order)
            policy = LocalPolicy(loaded, order.sampling)
            sequences: list[SampledTokens] = []
            for start in range(0, order.count, self._rows):
                numbers = range(start, min(order.count, start + self._rows))
                sequences += _answers(policy, order, numbers)
        return SampleResult(sequences=sequences, prompt_logprobs=scores, likeliest=likeliest)


def _sample(ids: Sequence[int], targets: Tensor, index: int) -> TrainingSample:
    """A sample that learns ``targets`` (T,) or (T, K), each behind the ids up to its place."""
    per_token = targets.shape[1] if targets.dim() == 2 else 1
    positions = torch.arange(1, len(ids) + 1).repeat_interleave(per_token)
    nothing = torch.zeros(len(positions), dtype=torch.int64)
    return TrainingSample(
        key=(index, 0),
        episode=index,
        ids=torch.tensor([*ids, 0]),  # the last target is predicted, never read
        positions=positions,
        logprobs=nothing.double(),
        turns=nothing,
        offsets=nothing,
        targets=targets.flatten(),
    )


def _by_sequence(batch: MicroBatch, values: Tensor) -> list[tuple[int, Tensor]]:
    """The index of each sequence of a batch, and its part of ``values`` (A,)."""
    lengths = ints(torch.bincount(batch.labels.row))
    return list(zip(batch.sequences, split(values, lengths), strict=True))


def _as_output(values: Tensor, datum: TokenDatum) -> Tensor:
    return values.detach().float().cpu().reshape(datum.inputs["target_tokens"].shape)


def _prompt_scores(loaded: LoadedModel, order: SampleOrder) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Log-probs (T,) of the prompt's tokens, NaN at the first, which nothing predicts, and (T, K) likeliest ids with theirs."""
    count = order.likeliest
    # Each token but the first is a target behind those before it.
    sample = _sample(order.prompt[:-1], torch.tensor(order.prompt[1:]), 0)
    (batch,) = microbatches([sample], budget=len(order.prompt), share=False)
    batch = batch.to(loaded.device)

    def table(logits: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        """(A, 1 + 2 K): the target's log-prob, then the likeliest ones and their ids, which float64 holds exactly."""
        logprobs = logits.double().log_softmax(-1)
        of_targets = logprobs.gather(1, batch.labels.target[rows, None])
        top = logprobs.topk(count)
        return torch.cat([of_targets, top.values, top.indices.double()], dim=1)

    with torch.no_grad(), tree_attention(loaded.model):
        columns = compare_tokens(loaded.model, batch, table)[0].cpu()
    nothing = torch.full_like(columns[:1], torch.nan)
    columns = torch.cat([nothing, columns])
    scores = columns[:, 0].float()
    best = columns[:, 1 : 1 + count].float()
    best_ids = columns[:, 1 + count :].nan_to_num().long()
    return scores, (best_ids, best) if count else None


def _answers(policy: LocalPolicy, order: SampleOrder, numbers: range) -> list[SampledTokens]:
    """Samples the answers with these numbers together. Each has randomness of its own."""
    rows = [_SampledRow(np.random.default_rng(child_seed(order.seed, "sample", number))) for number in numbers]
    decoder = policy.decoder(len(rows), stops=order.stops)
    # Texts that end an answer are looked for behind each piece, so that little is sampled in vain.
    piece = min(order.budget, _PIECE) if order.stop_texts else order.budget
    ending = _text_end(policy.loaded.tokenizer, order.stop_texts)
    while going := [place for place, row in enumerate(rows) if not row.stop]:
        prompts = [rows[place].prompt(place, order, piece) for place in going]
        for place, answer in zip(going, decoder.answer(prompts), strict=True):
            row = rows[place]
            row.ids += answer.ids
            row.logprobs += answer.logprobs
            if not np.isfinite(answer.logprobs).all():
                raise ApiError("the model's logits are not finite, so nothing can be drawn; load earlier weights")
            length = ending(row.ids)
            if length is not None:
                del row.ids[length:]
                del row.logprobs[length:]
            if length is not None or answer.stopped:
                row.stop = "stop"
            elif len(row.ids) >= order.budget:
                row.stop = "length"
    return [SampledTokens(ids=row.ids, logprobs=row.logprobs, stop=row.stop) for row in rows]


@dataclass
class _SampledRow:
    """One answer on its way."""

    randomness: np.random.Generator
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    # Why it has ended; empty before.
    stop: str = ""

    def prompt(self, place: int, order: SampleOrder, piece: int) -> Prompt:
        """What is read before the next piece."""
        tokens = (*order.prompt, *self.ids)
        # The last token of an answer is not in the cache yet.
        past = len(tokens) - 1 if self.ids else 0
        budget = min(piece, order.budget - len(self.ids))
        # A whole piece is drawn in any case, so that the next one does not depend on how long this one may be.
        uniforms = self.randomness.random(piece)
        return Prompt(row=place, past=past, new=tokens[past:], uniforms=uniforms, budget=budget)


def _text_end(tokenizer: Any, texts: Sequence[str]) -> Callable[[list[int]], int | None]:
    """Returns a function that says how many ids an answer has until a stop text is complete in it; None while none is."""

    def length(ids: list[int]) -> int | None:
        def is_complete(count: int) -> bool:
            text = tokenizer.decode(ids[:count])
            return any(stop in text for stop in texts)

        if not texts or not is_complete(len(ids)):
            return None
        return next(count for count in range(1, len(ids) + 1) if is_complete(count))

    return length
