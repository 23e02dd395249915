"""What can teach by distillation: a scripted policy that states distributions, or a model with the student's tokenizer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from gradus.core import (
    Action,
    AnswerDistribution,
    ConfigError,
    Episode,
    EpisodeStart,
    Policy,
    Request,
    Session,
    StatesDistributions,
    child_rng,
)
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.answer_targets import AnswerTargets
from gradus.training.data.sequences import TrainingSample

_Stated = dict[tuple[int, int], list[AnswerDistribution]]  # (group, member) -> the distribution of each turn
_CONVERSATION = ("zqsystemqz", "zqfirstqz", "zqanswerqz", "zqsecondqz")


class Teacher(Protocol):
    """What states a distribution of each token that was said."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> LoadedModel | None:
        """The model whose logits are compared with the student's; None if samples carry the targets."""
        ...

    def actor(self, student: Policy | None) -> Policy:
        """What rolls out: the student, with the teacher beside it if that must see the episode; the teacher for None."""
        ...

    def label(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[TrainingSample]:
        """The samples of episodes that the last actor rolled out, with targets; tokens without one are left out."""
        ...


class ScriptedTeacher:
    """A policy whose sessions state distributions of answers, which become exact targets of tokens.

    ``explore``: the share of its own answers that are drawn at random among those that it names.
    """

    model: None = None

    def __init__(self, policy: Policy, student: LoadedModel, *, explore: float = 0.0) -> None:
        self._policy, self._explore = policy, explore
        self._targets = AnswerTargets(student.renderer)
        self._stated: _Stated = {}

    @property
    def name(self) -> str:
        return self._policy.name

    def actor(self, student: Policy | None) -> Policy:
        self._stated = {}
        return _Beside(student, self._policy, self._explore, self._stated)

    def label(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[TrainingSample]:
        stated = [self._stated[episode.group, episode.member] for episode in episodes]
        return [self._targets.label(each, stated[each.episode]) for each in samples]


class ModelTeacher:
    """A model with the student's words and template, whose logits are compared with the student's."""

    def __init__(self, model: LoadedModel, student: LoadedModel, sampling: SamplingConfig) -> None:
        check_same_words(student, model)
        self.model, self._sampling = model, sampling
        model.model.requires_grad_(False)

    @property
    def name(self) -> str:
        return str(self.model.path)

    def actor(self, student: Policy | None) -> Policy:
        return student or LocalPolicy(self.model, self._sampling, name="teacher")

    def label(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[TrainingSample]:
        return list(samples)


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


class _Beside:
    """Rolls out ``actor``, or a teacher that draws from what it states, and keeps what the teacher states at every turn."""

    def __init__(self, actor: Policy | None, teacher: Policy, explore: float, stated: _Stated) -> None:
        self._actor, self._teacher, self._explore, self._stated = actor, teacher, explore, stated

    @property
    def name(self) -> str:
        return (self._actor or self._teacher).name

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        teacher = self._teacher.start(episodes)
        if not isinstance(teacher, StatesDistributions):
            teacher.close()
            raise ConfigError(
                f"{self._teacher.name} states no distributions, so there is nothing to distil; give its session a method distributions, or "
                "train on its answers with gradus teach and gradus sft"
            )
        actor = None if self._actor is None else self._actor.start(episodes)
        return _BesideSession(actor, teacher, self._explore, episodes, self._stated)


class _BesideSession:
    def __init__(
        self,
        actor: Session | None,
        teacher: StatesDistributions,
        explore: float,
        episodes: Sequence[EpisodeStart],
        stated: _Stated,
    ) -> None:
        self._actor, self._teacher, self._explore = actor, teacher, explore
        self._rngs = [child_rng(0, *each.key, "distill") for each in episodes]
        self._stated = [stated.setdefault((each.group, each.member), []) for each in episodes]

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        stated = self._teacher.distributions(requests)
        for request, each in zip(requests, stated, strict=True):
            self._stated[request.row].append(each)
        if self._actor is not None:
            return self._actor.act(requests)
        rngs = [self._rngs[request.row] for request in requests]
        return [Action(text=_drawn(each, rng, self._explore)) for each, rng in zip(stated, rngs, strict=True)]

    def close(self) -> None:
        for session in (self._actor, self._teacher):
            if session is not None:
                session.close()


def _drawn(stated: AnswerDistribution, rng: random.Random, explore: float) -> str:
    """An answer: each span from what is stated, or all of them at random."""
    anything = rng.random() < explore
    return " ".join(
        rng.choice(each.answers) if anything else rng.choices(each.answers, each.probabilities)[0] for each in stated
    )
