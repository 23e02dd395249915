"""A teacher behind a vLLM server: of each token it knows the likeliest words and their log-probs."""

from __future__ import annotations

import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import exp

import torch
from torch import Tensor

from gradus.core import ConfigError, Episode, Policy, PolicyError
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.vllm.http_sampler import HttpSampler, served_model
from gradus.training.data.answer_targets import padded
from gradus.training.data.sequences import TrainingSample

_WORDS = 20  # of each place; vLLM gives no more unless it is started with --max-logprobs


class ServedTeacher:
    """A model behind ``address`` (as in ``http://localhost:8000/v1``) with the student's words and template.

    The server scores the token ids that were sampled. What its 20 likeliest words lack of 1 is one word ``other``.
    """

    model: None = None

    def __init__(self, address: str, student: LoadedModel, sampling: SamplingConfig) -> None:
        if sampling.temperature != 1.0 or sampling.top_k or sampling.top_p < 1.0:
            raise ConfigError(
                "a server scores at temperature 1 without top_p and top_k; sample so too, or name a model folder as the teacher"
            )
        server = served_model(address, api_key=None)
        self._server = HttpSampler(
            server, base_url=address, renderer=student.renderer, sampling=sampling, name=f"{server} at {address}"
        )
        self._check_same_words(student)

    @property
    def name(self) -> str:
        return self._server.name

    def actor(self) -> Policy:
        return self._server

    def label(
        self, samples: Sequence[TrainingSample], episodes: Sequence[Episode], actor: Policy
    ) -> list[TrainingSample]:
        return [
            replace(sample, soft=padded([{word: exp(each) for word, each in found.items()} for found in scored]))
            for sample, scored in zip(samples, self._scored(samples, _WORDS), strict=True)
        ]

    def logprobs(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[Tensor]:
        return [
            torch.tensor(
                [found[word] for found, word in zip(scored, sample.ids[sample.positions].tolist(), strict=True)]
            )
            for sample, scored in zip(samples, self._scored(samples, 0), strict=True)
        ]

    def _scored(self, samples: Sequence[TrainingSample], words: int) -> list[list[dict[int, float]]]:
        """Of each trained token of each sample: the log-probs of that many likeliest words, and of the one that was said."""

        def score(sample: TrainingSample) -> list[dict[int, float]]:
            scored = self._server.score(sample.ids.tolist(), words)
            return [scored[place] for place in sample.positions.tolist()]

        with ThreadPoolExecutor(self._server.concurrency) as threads:
            return list(threads.map(score, samples))

    def _check_same_words(self, student: LoadedModel) -> None:
        """Raises ConfigError unless the server renders a conversation of all printable characters into the student's ids."""
        try:
            theirs = self._server.rendered(string.printable.strip())
        except PolicyError as error:
            raise ConfigError(
                f"{self.name} cannot teach: {error}; a teacher's server is vLLM, with its route /tokenize"
            ) from error
        if tuple(theirs) != tuple(student.renderer.first("", string.printable.strip())):
            raise ConfigError(
                f"{self.name} has another tokenizer or chat template than the student {student.path}, so its probabilities are those "
                "of other tokens; serve a teacher with the student's, or train on its text with gradus teach and gradus sft"
            )
