"""Sampling by transformers' own ``generate``, for architectures that keep their past in a form of their own.

Mamba and its hybrids hold states instead of keys, some models place positions or masks themselves. They are driven here by the
code that transformers has for them, cache included; only the draw is ours, so that tokens and log-probs are what they are for
any other model. It is slower: every turn reads its whole prompt again, and rows share a batch only if their prompts have equal
length, because padding would change a state.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from gradus.policies.local.decoding import Answer, Drawing, Masks, Prompt
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.sampling import NEVER, SamplingConfig


class GeneralDecoder:
    """As :class:`~gradus.policies.local.decoding.Decoder`, without a cache from turn to turn."""

    def __init__(self, loaded: LoadedModel, sampling: SamplingConfig, stops: frozenset[int]) -> None:
        self._loaded = loaded
        self.sampling = sampling
        self._stops = stops
        self._masks: Masks = {}
        self._read: dict[int, list[int]] = {}  # what each row has read and said, but for its last token

    def answer(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Read all prompts and sample an answer to each."""
        batches: dict[tuple[int, int], list[Prompt]] = {}
        for prompt in prompts:
            earlier = self._read.get(prompt.row, [])
            ids = [*earlier[: prompt.past], *prompt.new]
            self._read[prompt.row] = ids
            # Padding would change the state of a recurrent model, so a batch has one length.
            batches.setdefault((len(ids), prompt.budget), []).append(prompt)
        answers: dict[int, Answer] = {}
        for batch in batches.values():
            answers |= self._generate(batch)
        for row, answer in answers.items():
            self._read[row] += answer.ids[:-1]
        return [answers[prompt.row] for prompt in prompts]

    def _generate(self, prompts: Sequence[Prompt]) -> dict[int, Answer]:
        """Answers to prompts of one length and one budget, by row."""
        model: Any = causal_model(self._loaded.model)
        rows = [prompt.row for prompt in prompts]
        ids = [self._read[row] for row in rows]
        read = torch.tensor(ids, device=self._loaded.device)
        stops = sorted(self._stops)
        drawing = Drawing(prompts, self.sampling, self._stops, self._masks)
        config = GenerationConfig(
            # The draw is ours; generate takes what is left over as the likeliest.
            do_sample=False,
            max_new_tokens=prompts[0].budget,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
            use_cache=True,
        )

        def choose(ids: Tensor, scores: Tensor) -> Tensor:
            """Leave the drawn token, greedy decoding, no other choice."""
            step = ids.shape[1] - read.shape[1]
            tokens = drawing.draw(scores, rows, step)
            return torch.full_like(scores, NEVER).scatter_(1, tokens[:, None], 0.0)

        with evaluating(self._loaded), _generating_by(model, config):
            model.generate(
                input_ids=read,
                attention_mask=torch.ones_like(read),
                logits_processor=LogitsProcessorList([cast(Any, choose)]),
            )
        return drawing.answers


@contextmanager
def _generating_by(model: Any, config: GenerationConfig) -> Generator[None]:
    """transformers fills a config that it is given with the model's own penalties and limits; here there are none."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before
