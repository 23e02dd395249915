"""The protocols between the parts. Anything with these methods fits; nothing needs to inherit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gradus.core.frozen_record import frozen_record
from gradus.core.records import Action, Episode, Message, Observation, Reward, Task
from gradus.core.values import Json


@runtime_checkable
class Environment(Protocol):
    """The text layer of an environment; one instance runs one episode at a time.

    ``reset`` may be called again at any time. An environment with an attribute
    ``tools`` (JSON schemas, valid after ``reset``) is told the message with its calls if the policy could read it.
    ``reset``, ``step`` and ``outcome`` may be coroutines. With an attribute ``plain_data = True`` its data are stored unchecked.
    """

    @property
    def system_prompt(self) -> str:
        """The rules, said once. Valid after ``reset``."""
        ...

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begin an episode. The same seed and options give the same episode."""
        ...

    def step(self, action: Any) -> Observation:
        """Take a policy's answer: a text, or with tools perhaps a :class:`Message`. An answer that cannot be parsed is a counted invalid action, not an error."""
        ...

    def outcome(self) -> Json:
        """Return what may be known after the end, hidden truth included, as JSON values; graders and reports read it."""
        ...

    def close(self) -> None:
        """Free what the environment holds."""
        ...


@frozen_record
class EpisodeStart:
    """The start of an episode, as a policy learns it before the first turn.

    ``key`` are the seed keys of this member: ``child_seed(*key, ...)`` is all the randomness a policy may use.
    ``by_content``: a turn's randomness is keyed by its prompt and by how often the episode has shown it, not by the turn's number.
    ``environment`` is for privileged policies only (a clairvoyant asks it for hidden state); no other may touch it.
    """

    task: Task
    system_prompt: str
    key: tuple[int | str, ...]
    group: int
    member: int
    environment: Environment
    tools: tuple[Json, ...] = ()  # what the policy can call in this episode, as JSON schemas
    by_content: bool = False


@frozen_record
class Request:
    """``row`` is the episode's index in the list that ``Policy.start`` was given."""

    row: int
    observation: Observation


class Session(Protocol):
    """A policy in the middle of many episodes at once; it keeps what it needs of each (caches, posteriors)."""

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        """Answer all requests, in order. A row that fails says so in its Action; the others are answered."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Relabelable(Protocol):
    """A session that remembers its own answers and can be told what was really answered in its place."""

    def replace_action(self, row: int, text: str) -> None:
        """Replace the last answer of a row in the session's memory."""
        ...


@dataclass(frozen=True)
class SpanDistribution:
    """The distribution of one span of an answer: ``answers`` and their ``probabilities``, which add up to 1."""

    span: str
    answers: tuple[str, ...]
    probabilities: Sequence[float]


# The spans of an answer in the order of its text, a space between two; one span for a distribution over whole answers.
AnswerDistribution = Sequence[SpanDistribution]


@runtime_checkable
class StatesDistributions(Session, Protocol):
    """A session that can say how likely each answer is, not only give one: what distillation learns from a scripted teacher."""

    def distributions(self, requests: Sequence[Request]) -> Sequence[AnswerDistribution]:
        """Return the distribution of the answer to each request, in order. ``act`` may be called for the same requests."""
        ...


class Policy(Protocol):
    """Something that answers observations."""

    @property
    def name(self) -> str: ...

    def start(self, episodes: Sequence[EpisodeStart]) -> Session:
        """Open a session for episodes that run at once, members of a group next to each other."""
        ...


class Renderer(Protocol):
    """Turns conversation into token ids, so that a later prompt extends the earlier tokens exactly."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def first(self, system_prompt: str, observation: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids of the whole prompt of a training sequence, up to where the model speaks."""
        ...

    def following(self, observation: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids between the last sampled stop token and where the model speaks again."""
        ...

    def decode(self, action_ids: Sequence[int]) -> str:
        """Return the text of an action, stop token left out."""
        ...


# One entry per episode, in order. A plain number is the reward of the whole episode; None says that it has no reward.
Rewarded = Sequence[Reward] | Sequence[float | None]
GraderFunction = Callable[[Sequence[Episode]], Rewarded | Awaitable[Rewarded]]
