"""Teachers for distillation: a scripted policy that states distributions, or a model with the student's tokenizer, here or on a server."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import exp
from typing import Protocol

import torch
from torch import Tensor

from gradus.core import (
    Action,
    AnswerDistribution,
    ConfigError,
    EnvironmentSpec,
    EpisodeStart,
    Policy,
    PolicyError,
    Request,
    Session,
    SpanDistribution,
    StatesDistributions,
    child_rng,
)
from gradus.policies.local.loading import LoadedModel, LoadedTokenizer
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.vllm.http_sampler import HttpSampler
from gradus.rollouts import replay
from gradus.training.data.answer_targets import AnswerTargets, padded
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import Episodes, Samples, TrainingSample, ints
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.tree_support import supports_tree, tree_attention

_FAR = 10.0  # nats between teacher and student that count
_TOKENS = 16384  # of a pass that only scores
_LEAST = 2.0**-24  # that float32 tells from 1
_WORDS = 20  # of each place; vLLM gives no more unless it is started with --max-logprobs
_CONVERSATION = ("zqsystemqz", "zqfirstqz", "zqanswerqz", "zqsecondqz")


class Teacher(Protocol):
    """States a distribution of each token that was said."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> LoadedModel | None:
        """The model whose logits are compared with the student's; None if samples carry the targets."""
        ...

    def actor(self) -> Policy:
        """Returns the policy that rolls out the teacher's own episodes."""
        ...

    def label(self, samples: Samples, episodes: Episodes) -> list[TrainingSample]:
        """Returns the samples of these episodes with targets; tokens without one are left out."""
        ...

    def logprobs(self, samples: Samples, episodes: Episodes) -> list[Tensor]:
        """Returns the teacher's log-probs (A,) of the tokens of each sample, NaN where it has none."""
        ...


class ScriptedTeacher:
    """A policy whose sessions state distributions of answers, which become exact targets of tokens.

    One that only answers states its answer.
    """

    model: None = None

    def __init__(
        self,
        policy: Policy,
        spec: EnvironmentSpec,
        student: LoadedTokenizer,
    ) -> None:
        self._policy, self._spec = policy, spec
        self._targets = AnswerTargets(student.renderer)
        self.stated: Sequence[
            Sequence[AnswerDistribution]
        ] = ()  # of the episodes that it was asked about last, turn by turn

    @property
    def name(self) -> str:
        return self._policy.name

    def actor(self) -> Policy:
        return _Drawing(self._policy)

    def label(self, samples: Samples, episodes: Episodes) -> list[TrainingSample]:
        self.stated = replay(self._spec, self._policy, episodes, state)
        return [self._targets.label(sample, self.stated[sample.episode]) for sample in samples]

    def logprobs(self, samples: Samples, episodes: Episodes) -> list[Tensor]:
        self.stated = replay(self._spec, self._policy, episodes, state)
        return [self._targets.logprobs(sample, self.stated[sample.episode]) for sample in samples]


def state(session: Session, requests: Sequence[Request]) -> Sequence[AnswerDistribution]:
    """Returns what a session states: distributions, or its answer alone; nothing if it fails."""
    if isinstance(session, StatesDistributions):
        return session.distributions(requests)
    return [_certain(action) for action in session.act(requests)]


def _certain(action: Action) -> AnswerDistribution:
    return () if action.failure else (SpanDistribution("answer", (action.text,), (1.0,)),)


class ModelTeacher:
    """A model with the student's words and template, whose logits are compared with the student's."""

    def __init__(
        self,
        model: LoadedModel,
        spec: EnvironmentSpec,
        student: LoadedTokenizer,
        sampling: SamplingConfig,
    ) -> None:
        check_same_words(student, model)
        self.model, self._sampling, self._grammar = model, sampling, spec.language.grammar
        model.model.requires_grad_(False)

    @property
    def name(self) -> str:
        return str(self.model.path)

    def actor(self) -> Policy:
        return LocalPolicy(self.model, self._sampling, name="teacher", grammar=self._grammar)

    def label(self, samples: Samples, episodes: Episodes) -> list[TrainingSample]:
        return list(samples)

    @torch.no_grad()
    def logprobs(self, samples: Samples, episodes: Episodes) -> list[Tensor]:
        logprobs = [torch.empty(0)] * len(samples)
        model = self.model.model
        batches = microbatches(samples, budget=_TOKENS, share=supports_tree(model), vocabulary=vocabulary_size(model))
        for batch in batches:
            with tree_attention(model):
                scores = score_tokens(model, batch.to(self.model.device), self._sampling)
            for index, part in batch.by_sequence(scores.logprobs.cpu()):
                logprobs[index] = part
        return logprobs


class ServedTeacher:
    """A model behind ``address`` (as in ``http://localhost:8000/v1``) with the student's words and template.

    The server scores the token ids that were sampled. What its 20 likeliest words lack of 1 is one word ``other``.
    """

    model: None = None

    def __init__(
        self,
        address: str,
        student: LoadedTokenizer,
        sampling: SamplingConfig,
    ) -> None:
        if sampling.temperature != 1.0 or sampling.top_k or sampling.top_p < 1.0:
            raise ConfigError(
                "a server scores at temperature 1 without top_p and top_k; sample so too, or name a model folder as the teacher"
            )
        self._server = HttpSampler(base_url=address, renderer=student.renderer, sampling=sampling)
        self._check_same_words(student)

    @property
    def name(self) -> str:
        return self._server.name

    def actor(self) -> Policy:
        return self._server

    def label(self, samples: Samples, episodes: Episodes) -> list[TrainingSample]:
        labeled: list[TrainingSample] = []
        for sample, scored in zip(samples, self._scored(samples, _WORDS), strict=True):
            targets = [_probabilities(logprobs) for logprobs in scored]
            labeled.append(replace(sample, soft=padded(targets)))
        return labeled

    def logprobs(self, samples: Samples, episodes: Episodes) -> list[Tensor]:
        taught: list[Tensor] = []
        for sample, scored in zip(samples, self._scored(samples, 0), strict=True):
            words = ints(sample.ids[sample.positions])
            taught.append(torch.tensor([row[word] for row, word in zip(scored, words, strict=True)]))
        return taught

    def _scored(self, samples: Samples, words: int) -> list[list[dict[int, float]]]:
        """The log-probs of that many likeliest words, and of the sampled one, at each trained token of each sample."""

        def score(sample: TrainingSample) -> list[dict[int, float]]:
            scored = self._server.score(ints(sample.ids), words)
            return [scored[place] for place in ints(sample.positions)]

        with ThreadPoolExecutor(self._server.concurrency) as threads:
            return list(threads.map(score, samples))

    def _check_same_words(self, student: LoadedTokenizer) -> None:
        """Raises ConfigError unless the server renders a conversation of all printable characters into the student's ids."""
        try:
            ids = self._server.rendered(string.printable.strip())
        except PolicyError as error:
            raise ConfigError(
                f"{self.name} cannot teach: {error}; a teacher's server is vLLM, with its route /tokenize"
            ) from error
        if tuple(ids) != tuple(student.renderer.first("", string.printable.strip())):
            raise ConfigError(
                f"{self.name} has another tokenizer or chat template than the student {student.path}, so its probabilities are those "
                "of other tokens; serve a teacher with the student's, or train on its text with gradus sft --teacher"
            )


def with_teacher(samples: Samples, logprobs: Sequence[Tensor], coef: float) -> list[TrainingSample]:
    """Add to each token's advantage ``coef`` times how much likelier it is to the teacher than it was to the sampler, in nats.

    This is the policy gradient of reverse KL. What the teacher never says counts as 10 nats; a token without a target gets nothing.
    """
    taught: list[TrainingSample] = []
    for sample, theirs in zip(samples, logprobs, strict=True):
        gain = (theirs.double() - sample.logprobs).clamp(-_FAR, _FAR).nan_to_num(0.0)
        taught.append(replace(sample, advantages=sample.credited + coef * gain))
    return taught


def _probabilities(logprobs: Mapping[int, float]) -> dict[int, float]:
    """Probabilities of the named words. A softmax leaves something to all others, which a server's float32 may round away."""
    named = {word: exp(logprob) for word, logprob in logprobs.items()}
    excess = sum(named.values()) / (1.0 - _LEAST)
    return {word: chance / max(1.0, excess) for word, chance in named.items()}


def check_same_words(student: LoadedTokenizer, teacher: LoadedTokenizer) -> None:
    """Raises ConfigError unless both models have one vocabulary and render one conversation alike."""
    system, first, answer, second = _CONVERSATION

    def rendered(loaded: LoadedTokenizer) -> list[object]:
        renderer = loaded.renderer
        return [
            loaded.tokenizer.get_vocab(),
            renderer.first(system, first),
            renderer.encode_answer(answer),
            renderer.following(second),
        ]

    if rendered(student) != rendered(teacher):
        raise ConfigError(
            f"the teacher {teacher.path} has another vocabulary or chat template than the student {student.path}, so its probabilities are "
            "those of other tokens; name a teacher with the student's, or train on the teacher's text with gradus sft --teacher"
        )


class _Drawing:
    """A teacher that draws its answers from what it states."""

    def __init__(self, teacher: Policy) -> None:
        self._teacher, self.name = teacher, teacher.name

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        session = self._teacher.start(episodes)
        return _DrawingSession(session, episodes) if isinstance(session, StatesDistributions) else session


class _DrawingSession:
    """Each span of an answer is drawn from what is stated."""

    def __init__(self, teacher: StatesDistributions, episodes: Sequence[EpisodeStart]) -> None:
        self._teacher = teacher
        self._rngs = [child_rng(0, *start.key, "distill") for start in episodes]

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        actions: list[Action] = []
        for request, stated in zip(requests, self._teacher.distributions(requests), strict=True):
            rng = self._rngs[request.row]
            words = (rng.choices(span.answers, span.probabilities)[0] for span in stated)
            actions.append(Action(text=" ".join(words)))
        return actions

    def close(self) -> None:
        self._teacher.close()
