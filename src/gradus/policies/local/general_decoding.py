"""Sampling by transformers' own ``generate``, for architectures that keep their past in a form of their own.

Mamba and its hybrids hold states instead of keys, some models place positions or masks themselves. They are driven here by the
code that transformers has for them, cache included; only the draw is ours, so that tokens and log-probs are what they are for
any other model. It is slower: every turn reads its whole prompt again, and rows share a batch only if their prompts have equal
length, because padding would change a state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from gradus.policies.local.decoding import Answer, Prompt
from gradus.policies.local.grammar import WordGrammar
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.sampling import SamplingConfig, draw_tokens, legal_mask


class GeneralDecoder:
    """As :class:`~gradus.policies.local.decoding.Decoder`, without a cache from turn to turn."""

    def __init__(self, loaded: LoadedModel, sampling: SamplingConfig, grammar: WordGrammar | None) -> None:
        self._loaded, self.sampling, self._grammar = loaded, sampling, grammar
        self._read: dict[int, list[int]] = {}  # what each row has read and said, but for its last token

    def answer(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Read all prompts and sample an answer to each."""
        answers = [Answer(legal=[] if self._grammar else None) for _ in prompts]
        alike: dict[tuple[int, int], list[int]] = {}
        for index, prompt in enumerate(prompts):
            ids = [*self._read.get(prompt.row, [])[: prompt.past], *prompt.new]
            self._read[prompt.row] = ids
            alike.setdefault((len(ids), prompt.budget), []).append(index)
        for (_, budget), chosen in alike.items():
            ids = [self._read[prompts[index].row] for index in chosen]
            uniforms = np.stack([prompts[index].uniforms for index in chosen])
            self._generate(ids, uniforms, [answers[index] for index in chosen], budget)
        for prompt, answer in zip(prompts, answers, strict=True):
            self._read[prompt.row] += answer.ids[:-1]
        return answers

    def _generate(self, ids: list[list[int]], uniforms: np.ndarray, answers: Sequence[Answer], budget: int) -> None:
        model: Any = causal_model(self._loaded.model)
        given = torch.tensor(ids, device=self._loaded.device)
        stops = sorted(self._loaded.renderer.stop_ids)
        drawer = _Drawer(self.sampling, self._grammar, torch.from_numpy(uniforms), answers, stops)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=budget,
            eos_token_id=stops,
            pad_token_id=stops[0],
            use_cache=True,
        )
        with evaluating(self._loaded), _generating_by(model, config):
            model.generate(
                input_ids=given, attention_mask=torch.ones_like(given), logits_processor=LogitsProcessorList([drawer])
            )


@contextmanager
def _generating_by(model: Any, config: GenerationConfig) -> Iterator[None]:
    """transformers fills a config that it is given with the model's own penalties and limits; here there are none."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


class _Drawer(LogitsProcessor):
    """Draws the next token of each row and leaves the likeliest, greedy decoding, no other choice."""

    def __init__(
        self,
        sampling: SamplingConfig,
        grammar: WordGrammar | None,
        uniforms: Tensor,
        answers: Sequence[Answer],
        stops: Sequence[int],
    ) -> None:
        self._sampling, self._grammar, self._uniforms, self._answers = sampling, grammar, uniforms, answers
        self._stops = frozenset(stops)
        self._states: list[Hashable] = [grammar.begin() for _ in answers] if grammar else []
        self._step = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        legal = [self._grammar.legal(state) for state in self._states] if self._grammar else None
        mask = None if legal is None else legal_mask(legal, scores.shape[-1], device=scores.device)
        drawn, logprobs = draw_tokens(scores, self._uniforms[:, self._step].to(scores.device), self._sampling, mask)
        values = logprobs.tolist()
        for row, (answer, token) in enumerate(zip(self._answers, drawn.tolist(), strict=True)):
            if answer.stopped:
                continue
            answer.ids.append(token)
            answer.logprobs.append(values[row])
            answer.stopped = token in self._stops
            if legal is not None and answer.legal is not None and self._grammar is not None:
                answer.legal.append(legal[row])
                if not answer.stopped:
                    self._states[row] = self._grammar.advance(self._states[row], token)
        self._step += 1
        return torch.full_like(scores, float("-inf")).scatter_(1, drawn[:, None], 0.0)  # type: ignore[return-value]
