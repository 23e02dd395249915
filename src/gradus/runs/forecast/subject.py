"""Findings of a check, and its subject: a job with its model and sample episodes, each made when first needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from gradus.core import ConfigError, Episode, Grader, GradusError, Turn
from gradus.core.errors import first_line
from gradus.core.findings import Finding
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.folders import adapter_base, check_model_source, find_model, tokenizer_source
from gradus.policies.local.loading import LoadedTokenizer
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.scripted import constant_policy
from gradus.rollouts import roll_out
from gradus.runs.job import Job, vocabulary_of
from gradus.runs.policies import scripted_names
from gradus.runs.shapes import ModelShape, read_shape
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.data.sft_sequences import text_sequences


def passed(evidence: str) -> Finding:
    """Returns the finding that nothing is wrong."""
    return Finding(status="pass", subject="", evidence=evidence)


def warned(evidence: str, remedy: str) -> Finding:
    """Returns the finding that a run would go through, and disappoint."""
    return Finding(status="warn", subject="", evidence=evidence, remedy=remedy)


def failed(evidence: str, remedy: str) -> Finding:
    """Returns the finding that a run would break, or train on something wrong."""
    return Finding(status="fail", subject="", evidence=evidence, remedy=remedy)


def not_checked(evidence: str, remedy: str = "") -> Finding:
    """Returns the finding that something could not be looked at."""
    return Finding(status="open", subject="", evidence=evidence, remedy=remedy)


def from_error(error: GradusError, subject: str = "", remedy: str = "") -> Finding:
    """Returns the finding of an error. Errors end in the way out, behind a semicolon."""
    evidence, _, way_out = str(error).partition("; ")
    return Finding(status="fail", subject=subject, evidence=evidence, remedy=way_out or remedy)


@frozen_record
class Longest:
    """The longest training sequence among some episodes, in tokens."""

    turns: int
    first: int  # the prompt of the first turn
    prompts: int  # of all turns
    answers: int  # of all turns
    answer: int  # the longest single answer
    needed: int  # what the context must hold if the model's last answer is as long as it may be


@frozen_record
class Circumstances:
    """The circumstances of a run that has not begun."""

    online: bool = False  # servers and hubs may be asked
    time: str | None = None  # what the run may take
    fixed: Collection[str] = ()  # keys of settings that the time does not change
    memory: str | None = None  # size of the card that it is for; this machine's if None


class Subject:
    """A job, and what follows from it. ``scratch``: a folder for a nano model."""

    def __init__(self, job: Job, scratch: Path, circumstances: Circumstances) -> None:
        self.job, self.scratch, self.circumstances = job, scratch, circumstances
        self.recipe, self.spec, self.grader = job.recipe, job.environment, job.grader
        self.online = circumstances.online

    @property
    def offline_grader(self) -> Grader:
        """The grader; one that gives no rewards in place of a judge that asks a server."""
        if not self.grader.remote:
            return self.grader
        return Grader(name=self.grader.name, summary="not asked", compute=lambda episodes: [None] * len(episodes))

    @cached_property
    def model(self) -> str:
        """A model folder, or a name on the hub; a nano model is made in the scratch folder. Raises ConfigError."""
        from gradus.policies.nano.model import make_nano

        path = self.recipe.model.path
        if path is not None:
            return str(find_model(path) or check_model_source(path))
        return str(make_nano(self.scratch / "model", vocabulary_of(self.spec), self.recipe.model.nano))

    @cached_property
    def shape(self) -> ModelShape:
        """The shape of the model that GRPO trains; its config is read from the disk unless ``online``. Raises ConfigError."""
        return read_shape(self.model, online=self.online)

    @cached_property
    def renderer(self) -> ChatRenderer:
        """The chat template in pieces. Raises ConfigError if it cannot be extended turn by turn."""
        from transformers import AutoTokenizer

        base = adapter_base(self.model)
        # Adapters may have no tokenizer beside them; then it is that of their base.
        source = tokenizer_source(base, self.model) if base else self.model
        try:
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(source, local_files_only=not self.online)
        except Exception as error:  # a file of another form can fail anywhere in a tokenizer's own code
            lookup = "" if self.online else "; a name on the hub is looked up with --online"
            raise ConfigError(
                f"{source} gives no tokenizer: {type(error).__name__}: {first_line(error)}; a model is a folder with "
                f"config.json, weights and tokenizer files{lookup}"
            ) from error
        return ChatRenderer(tokenizer, **self.job.template())

    @cached_property
    def episodes(self) -> list[Episode]:
        """A few training tasks, rolled out by the best policy at hand: gold, the teacher, any scripted policy, or a constant answer."""
        few = 64 if self.spec.max_turns == 1 else 2  # a game may take minutes
        tasks = [self.spec.train_task(self.recipe.grpo.first_task + index) for index in range(few)]
        scripted = scripted_names(self.spec)
        # Answers that earn the most are about as long as those that GRPO will find.
        best_first = [name for name in (self.spec.audit.gold, self.spec.teacher, *scripted) if name in scripted]
        # A constant answer has the same prompts.
        policy = self.spec.policy(best_first[0]) if best_first else constant_policy("0")
        limit = self.recipe.grpo.max_turns or self.spec.max_turns
        return roll_out(self.spec, policy, tasks, grader=self.offline_grader, max_turns=limit).episodes

    @cached_property
    def longest(self) -> Longest:
        """The longest training sequence among :attr:`episodes`, in the model's tokens."""
        words = LoadedTokenizer(tokenizer=self.renderer.tokenizer, renderer=self.renderer, path=self.model)
        # A constant answer may be invalid, and is as long as it is.
        episodes = [replace(episode, turns=tuple(map(_valid, episode.turns))) for episode in self.episodes]
        allowed = self.recipe.grpo.sampling.max_new_tokens
        sequences = [_lengths(sample, allowed) for sample in text_sequences(words, episodes)]
        answer = max(sequence.answer for sequence in sequences)
        longest = max(sequences, key=lambda sequence: sequence.needed)
        return replace(longest, answer=answer)


def _valid(turn: Turn) -> Turn:
    return replace(turn, valid=True)


def _lengths(sample: TrainingSample, allowed: int) -> Longest:
    """The lengths of a training sequence. ``allowed``: tokens of the model's last answer."""
    # Turns of other sequences have no token here.
    answers = [count for count in ints(sample.turns.bincount()) if count]
    return Longest(
        turns=len(answers),
        first=int(sample.positions[0]),
        prompts=len(sample) - sample.actions,
        answers=sample.actions,
        answer=max(answers),
        needed=len(sample) - answers[-1] + allowed,
    )
