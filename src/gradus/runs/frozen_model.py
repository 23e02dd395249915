"""A frozen language model that is asked single questions: by name, with a cache, a budget, and a share asked twice."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from gradus.core import (
    Action,
    ConfigError,
    Environment,
    EpisodeStart,
    Observation,
    Policy,
    PolicyError,
    Request,
    Task,
    read_text,
    without_thoughts,
)
from gradus.core.answer_cache import AnswerCache, content_key, is_drawn
from gradus.core.frozen_record import frozen_record
from gradus.core.money import Price
from gradus.core.values import JsonDict
from gradus.environments.verifiable.from_rows import one_turn
from gradus.runs.policies import make_policy

_AT_ONCE = 16  # questions: a local model keeps keys and values for each


class FrozenModelConfig(BaseModel):
    """How a frozen model is asked. The fields stand in a TOML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str  # a model folder, a GGUF file, or remote:MODEL behind any OpenAI-compatible server
    max_tokens: int = Field(default=48, ge=1)  # longest answer; thoughts count too
    recheck: float = Field(default=0.1, ge=0, le=1)  # share of questions that a server is asked twice
    cache: str | None = None  # a file that keeps answers by their content
    base_url: str | None = None  # the server; OPENAI_BASE_URL if unset
    concurrency: int = Field(default=8, ge=1)  # requests at once
    price: tuple[NonNegativeFloat, NonNegativeFloat] | None = None  # US dollars of a million tokens, as in [prices]
    budget: float | None = Field(default=None, gt=0)  # US dollars after which nothing more is asked


@frozen_record
class FrozenAnswer:
    """The first line of an answer. ``error`` says why there is none. ``agrees``: a second answer was the same; None if it was asked once."""

    text: str = ""
    error: str | None = None
    agrees: bool | None = None


class _Question(NamedTuple):
    text: str
    sample: int  # 1 for the second time that it is asked, below 0 for what else is drawn of it


class FrozenModel:
    """Answers questions under one system prompt, at temperature 0; what was asked before is not asked again."""

    def __init__(self, config: FrozenModelConfig, system_prompt: str) -> None:
        if config.budget is not None and config.price is None:
            raise ConfigError("a budget needs price = [dollars per million prompt tokens, and completion tokens]")
        self.name = config.model
        self._config, self._system_prompt = config, system_prompt
        self._is_remote = config.model.startswith("remote:")
        self._kept = AnswerCache(config.cache, "answer")

    @cached_property
    def policy(self) -> Policy:
        """The model, loaded when it is first asked."""
        config = self._config
        # A policy is made for an environment. Of this one nothing is asked but the sampling of a model that has none of its own.
        row = {"question": "?"}
        spec = one_turn([row], judge=lambda row, text: 0.0, test=[row])
        server: JsonDict = {}
        if self._is_remote:
            price = None if config.price is None else Price(prompt=config.price[0], completion=config.price[1])
            server = {"base_url": config.base_url, "concurrency": config.concurrency, "price": price}
        policy = make_policy(spec, config.model, temperature=0.0, max_new_tokens=config.max_tokens, remote=server)
        usage = getattr(policy, "usage", None)  # of a server
        if usage is not None:
            usage.account.limit = config.budget
        return policy

    @property
    def servers(self) -> Sequence[Policy]:
        """The policy, if a server is paid for its answers; an environment names it in ``asks``."""
        return [self.policy] if self._is_remote else []

    def ask(self, texts: Sequence[str]) -> list[FrozenAnswer]:
        """Return an answer to each question."""
        questions = [_Question(text, sample) for text in dict.fromkeys(texts) for sample in range(self._times(text))]
        # The cache is asked first: what a killed run paid for is not paid again.
        unasked = [question for question in questions if self._key(question) not in self._kept]
        errors: dict[_Question, str] = {}
        for start in range(0, len(unasked), _AT_ONCE):
            errors |= self._ask(unasked[start : start + _AT_ONCE])
        return [self._answer(text, errors) for text in texts]

    def _times(self, text: str) -> int:
        """Count how often a question is asked. A local model at temperature 0 only repeats itself."""
        return 1 + (self._is_remote and is_drawn(self._key(_Question(text, -1)), self._config.recheck))

    def _ask(self, questions: Sequence[_Question]) -> dict[_Question, str]:
        """Ask, and keep what was answered; returns the errors of questions without an answer."""
        texts = [question.text for question in questions]
        try:
            actions = _ask_policy(self.policy, texts, system_prompt=self._system_prompt, keys=questions)
        except PolicyError as error:
            return dict.fromkeys(questions, str(error))
        errors: dict[_Question, str] = {}
        for question, action in zip(questions, actions, strict=True):
            if action.failure is None:
                lines = without_thoughts(action.text).strip().splitlines()
                self._kept.keep(self._key(question), lines[0].strip() if lines else "")
            else:
                errors[question] = action.failure.message
        return errors

    def _answer(self, text: str, errors: dict[_Question, str]) -> FrozenAnswer:
        first, again = _Question(text, 0), _Question(text, 1)
        if first in errors:
            return FrozenAnswer(error=f"{self.name} gave no answer: {errors[first]}")
        answer = self._kept[self._key(first)]
        second = self._kept.get(self._key(again)) if self._times(text) > 1 else None
        return FrozenAnswer(text=answer, agrees=None if second is None else second == answer)

    def _key(self, question: _Question) -> str:
        config = self._config
        return content_key([config.model, config.base_url, config.max_tokens, self._system_prompt, question])


def frozen_model(name: str, system_prompt: str) -> FrozenModel:
    """Return a model by its name: a model folder, a GGUF file, ``remote:MODEL``, or a TOML file with the fields of :class:`FrozenModelConfig`.

    Each call gives one of its own, so two jobs in one process have two budgets. Raises ConfigError.
    """
    config = FrozenModelConfig(model=name)
    if name.endswith(".toml"):
        try:
            config = FrozenModelConfig.model_validate(tomllib.loads(read_text(Path(name))))
        except (ValidationError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{name} names no model to ask: {error}") from error
    server = config.base_url or os.environ.get("OPENAI_BASE_URL")
    return FrozenModel(config.model_copy(update={"base_url": server}), system_prompt)


def _ask_policy(
    policy: Policy, prompts: Sequence[str], *, system_prompt: str, keys: Sequence[tuple[int | str, ...]]
) -> Sequence[Action]:
    """Ask a policy single questions, all at once; return an answer each, or its failure. ``keys``: seed keys of what it may draw.

    Raises PolicyError if it cannot be reached.
    """
    start = EpisodeStart(
        task=Task(environment="questions", seed=0),
        system_prompt=system_prompt,
        key=(),
        group=0,
        member=0,
        environment=cast(Environment, None),  # only privileged policies look at it
    )
    starts = [replace(start, key=key, group=number) for number, key in enumerate(keys)]
    with closing(policy.start(starts)) as session:
        requests = [Request(row=row, observation=Observation(text=text)) for row, text in enumerate(prompts)]
        return session.act(requests)
