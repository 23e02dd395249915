"""Teachers for distillation: a scripted policy that states distributions, or a model with the student's tokenizer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from gradus.core import (
    Action,
    AnswerDistribution,
    ConfigError,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Policy,
    Request,
    Session,
    SpanDistribution,
    StatesDistributions,
    child_rng,
)
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import replay
from gradus.training.data.answer_targets import AnswerTargets
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.tree_support import supports_tree, tree_attention

_FAR = 10.0  # nats between teacher and student that count
_TOKENS = 16384  # of a pass that only scores
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

    def label(
        self, samples: Sequence[TrainingSample], episodes: Sequence[Episode], actor: Policy
    ) -> list[TrainingSample]:
        """The samples of these episodes with targets; tokens that have none are left out. ``actor``: the policy that rolled them out."""
        ...

    def logprobs(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[Tensor]:
        """The teacher's log-probs (A,) of the tokens of each sample, NaN where it has none."""
        ...


class ScriptedTeacher:
    """A policy whose sessions state distributions of answers, which become exact targets of tokens.

    One that only answers states its answer.
    """

    model: None = None

    def __init__(self, policy: Policy, spec: EnvironmentSpec, student: LoadedModel) -> None:
        self._policy, self._spec = policy, spec
        self._targets = AnswerTargets(student.renderer)

    @property
    def name(self) -> str:
        return self._policy.name

    def actor(self) -> Policy:
        return _Drawing(self._policy)

    def label(
        self, samples: Sequence[TrainingSample], episodes: Sequence[Episode], actor: Policy
    ) -> list[TrainingSample]:
        drawn = isinstance(actor, _Drawing)  # what it stated when it drew is not worked out again
        stated = actor.stated if drawn else replay(self._spec, self._policy, episodes, state)
        return [self._targets.label(each, stated[each.episode]) for each in samples]

    def logprobs(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[Tensor]:
        stated = replay(self._spec, self._policy, episodes, state)
        return [self._targets.logprobs(each, stated[each.episode]) for each in samples]


def state(session: Session, requests: Sequence[Request]) -> Sequence[AnswerDistribution]:
    """Returns what a session states: distributions, or its answer alone; nothing if it fails."""
    if isinstance(session, StatesDistributions):
        return session.distributions(requests)
    return [_answered(action) for action in session.act(requests)]


def _answered(action: Action) -> AnswerDistribution:
    return () if action.failure else (SpanDistribution("answer", (action.text,), (1.0,)),)


class ModelTeacher:
    """A model with the student's words and template, whose logits are compared with the student's."""

    def __init__(
        self, model: LoadedModel, spec: EnvironmentSpec, student: LoadedModel, sampling: SamplingConfig
    ) -> None:
        check_same_words(student, model)
        self.model, self._sampling, self._grammar = model, sampling, spec.language.grammar
        model.model.requires_grad_(False)

    @property
    def name(self) -> str:
        return str(self.model.path)

    def actor(self) -> Policy:
        return LocalPolicy(self.model, self._sampling, name="teacher", grammar=self._grammar)

    def label(
        self, samples: Sequence[TrainingSample], episodes: Sequence[Episode], actor: Policy
    ) -> list[TrainingSample]:
        return list(samples)

    @torch.no_grad()
    def logprobs(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[Tensor]:
        found = [torch.empty(0)] * len(samples)
        words = vocabulary_size(self.model.model)
        for batch in microbatches(samples, budget=_TOKENS, share=supports_tree(self.model.model), vocabulary=words):
            with tree_attention(self.model.model):
                scored = score_tokens(self.model.model, batch.to(self.model.device), self._sampling).logprobs.cpu()
            parts = scored.split([samples[index].actions for index in batch.sequences])
            for index, part in zip(batch.sequences, parts, strict=True):
                found[index] = part
        return found


def with_teacher(
    samples: Sequence[TrainingSample], episodes: Sequence[Episode], teacher: Teacher, coef: float
) -> list[TrainingSample]:
    """Add to each token's advantage ``coef`` times how much likelier it is to the teacher than it was to the sampler, in nats.

    This is the policy gradient of reverse KL. What the teacher never says counts as 10 nats; a token without a target gets nothing.
    """
    taught: list[TrainingSample] = []
    for sample, theirs in zip(samples, teacher.logprobs(samples, episodes), strict=True):
        gain = (theirs.double() - sample.logprobs).clamp(-_FAR, _FAR).nan_to_num(0.0)
        assert sample.advantages is not None
        taught.append(replace(sample, advantages=sample.advantages + coef * gain))
    return taught


def check_same_words(student: LoadedModel, teacher: LoadedModel) -> None:
    """Raises ConfigError unless both have one vocabulary and render one conversation alike."""
    system, first, answer, second = _CONVERSATION

    def rendered(loaded: LoadedModel) -> list[tuple[int, ...]]:
        renderer = loaded.renderer
        return [renderer.first(system, first), renderer.encode_answer(answer), renderer.following(second)]

    if student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab():
        reason = "another vocabulary"
    elif rendered(student) != rendered(teacher):
        reason = "another chat template"
    else:
        return
    raise ConfigError(
        f"the teacher {teacher.path} has {reason} than the student {student.path}, so its probabilities are those of other tokens; "
        "name a teacher with the student's tokenizer, or train on the teacher's text with gradus teach and gradus sft"
    )


class _Drawing:
    """A teacher that draws its answers from what it states. ``stated``: of each episode so far, turn by turn."""

    def __init__(self, teacher: Policy) -> None:
        self._teacher = teacher
        self.stated: list[list[AnswerDistribution]] = []

    @property
    def name(self) -> str:
        return self._teacher.name

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        session = _DrawingSession(self._teacher.start(episodes), episodes)
        self.stated += session.stated
        return session


class _DrawingSession:
    def __init__(self, teacher: Session, episodes: Sequence[EpisodeStart]) -> None:
        self._teacher = teacher
        self._rngs = [child_rng(0, *each.key, "distill") for each in episodes]
        self.stated: list[list[AnswerDistribution]] = [[] for _ in episodes]

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        if isinstance(self._teacher, StatesDistributions):
            stated = self._teacher.distributions(requests)
            rngs = [self._rngs[request.row] for request in requests]
            actions = [Action(text=_drawn(each, rng)) for each, rng in zip(stated, rngs, strict=True)]
        else:
            actions = self._teacher.act(requests)
            stated = [_answered(action) for action in actions]
        for request, each in zip(requests, stated, strict=True):
            self.stated[request.row].append(each)
        return actions

    def close(self) -> None:
        self._teacher.close()


def _drawn(stated: AnswerDistribution, rng: random.Random) -> str:
    """An answer: each span is drawn from what is stated."""
    return " ".join(rng.choices(each.answers, each.probabilities)[0] for each in stated)
