"""The base model asked in its best way: a prompt of its own and a long limit, so that form and skill are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from smollm2 import model_file

from gradus.core import (
    Action,
    Environment,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Message,
    Observation,
    Policy,
    Request,
    Session,
)

if TYPE_CHECKING:
    from gradus.policies.local.loading import LoadedModel

TEMPERATURE = 0.7  # of what is sampled here; recipes may train and sample at a higher one


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A way to ask. ``shots`` are questions and answers that stand before the task's as earlier turns; ``limit`` is in tokens."""

    system: str = ""
    question: str = "{question}"
    shots: Sequence[tuple[str, str]] = ()
    limit: int = 48

    def messages(self, asked: str) -> tuple[Message, ...]:
        """The conversation that the model sees."""
        earlier = [
            Message(role=role, content=text)
            for question, answer in self.shots
            for role, text in (("user", self.question.format(question=question)), ("assistant", answer))
        ]
        return (*earlier, Message(role="user", content=self.question.format(question=asked)))


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A policy that asks another one in the way of a prompt."""

    name: str
    inner: Policy
    prompt: Prompt

    def start(self, episodes: Sequence[EpisodeStart]) -> PromptedSession:
        """Opens a session under the prompt's own system prompt."""
        session = self.inner.start([replace(each, system_prompt=self.prompt.system) for each in episodes])
        return PromptedSession(session, self.prompt)


@dataclass(frozen=True)
class PromptedSession:
    """Episodes of which every question is asked anew."""

    inner: Session
    prompt: Prompt

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        """Answers all requests, in order."""
        return self.inner.act([self._asked(request) for request in requests])

    def close(self) -> None:
        """Closes the other policy's session."""
        self.inner.close()

    def _asked(self, request: Request) -> Request:
        messages = self.prompt.messages(request.observation.data["question"])
        return replace(request, observation=replace(request.observation, text=messages[-1].content, messages=messages))


class Asked:
    """An environment of one turn whose questions are asked in the way of a prompt: a student that begins as the base's best."""

    def __init__(self, inner: Environment, prompt: Prompt) -> None:
        self._inner, self._prompt, self.system_prompt = inner, prompt, prompt.system
        self.step, self.outcome, self.close = inner.step, inner.outcome, inner.close

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begins the episode; its question comes as the prompt's messages."""
        shown = self._inner.reset(seed=seed, **options)
        messages = self._prompt.messages(shown.data["question"])
        return replace(shown, text=messages[-1].content, messages=messages)


def asked_by(spec: EnvironmentSpec, prompt: Prompt) -> EnvironmentSpec:
    """The environment with every question asked in the way of the prompt."""
    return replace(spec, make=lambda: Asked(spec.make(), prompt))


def with_prompted(spec: EnvironmentSpec, prompt: Prompt, cluster: Callable[[Episode], str]) -> EnvironmentSpec:
    """The environment with the policies ``prompted`` and ``prompted-greedy``; its intervals count the tasks of one cluster as one."""

    conditions = {name: replace(each, cluster=cluster) for name, each in spec.conditions.items()}
    made = {name: lambda _, name=name: prompted(prompt, name) for name in ("prompted", "prompted-greedy")}
    return replace(spec, conditions=conditions, policies={**spec.policies, **made})


def prompted(prompt: Prompt, name: str = "prompted-greedy") -> Prompted:
    """The base model under a prompt, as a policy; greedy if its name says so."""
    from gradus.policies.local.policy import LocalPolicy
    from gradus.policies.local.sampling import SamplingConfig

    sampling = SamplingConfig(max_new_tokens=prompt.limit, temperature=TEMPERATURE)
    chosen = sampling.changed(temperature=0) if name.endswith("greedy") else sampling
    return Prompted(name=name, inner=LocalPolicy(_base(), chosen), prompt=prompt)


@cache
def _base() -> LoadedModel:
    from gradus.policies.local.gguf import dequantized
    from gradus.policies.local.loading import load_model

    model = model_file()
    folder = model if model.is_dir() else dequantized(model)
    return load_model(folder, autocast="auto", keep_history=True)
