"""The words of the domain: what a policy did, what came of it, and its reward.

All records are frozen. They hold plain Python values, so that core depends on nothing and every record can be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from math import fsum
from typing import Any

from gradus.core.frozen_record import frozen_record

LARGEST_REWARD = 1e100  # squares of larger ones add up to infinity, and every advantage would be 0


class StopReason(StrEnum):
    """The reason why an episode ended. Exactly one holds; only ``TERMINATED`` is a finished episode."""

    TERMINATED = "terminated"  # the environment reached its own end
    TRUNCATED = "truncated"  # the environment was cut by its own limit
    TURN_LIMIT = "turn_limit"  # cut by the rollout's turn budget
    TOKEN_LIMIT = "token_limit"  # cut by a token budget or by the model's context
    BROKEN = "broken"  # the model made its agent or environment fail; see Episode.failure. It is graded, and trained on
    FAILED = "failed"  # any other error was captured: what became of the episode is missing


FAULTS = (StopReason.BROKEN, StopReason.FAILED)  # nobody should learn such an episode from a teacher


@frozen_record
class Task:
    """One thing to solve: an environment, a condition's name, a seed, and further options of reset.

    ``id`` names what the task is: two tasks of the same content have the same (``EnvironmentSpec.identify``).
    """

    environment: str
    seed: int
    condition: str = "train"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = field(default="", compare=False)


@frozen_record
class Span:
    """A named stretch of an action's text: characters ``start`` to ``end``, end exclusive."""

    name: str
    start: int
    end: int


@frozen_record
class ToolCall:
    """One call of a tool: characters ``start`` to ``end`` of the action's text, end exclusive.

    ``fault`` is None for a call that was carried out, else ``malformed`` (it could not be read), ``refused`` (no such tool, or
    arguments that do not fit its schema) or ``failed`` (the tool raised); ``error`` says what was wrong.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""  # unique within the episode; the message with the result has the same
    start: int = 0
    end: int = 0
    fault: str | None = None
    error: str | None = None


@frozen_record
class Message:
    """One message of a conversation. ``role`` is system, user, assistant or tool.

    ``calls`` are an assistant's. ``call_id`` and ``name`` say which call of which tool a tool's message answers.
    """

    role: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


@frozen_record
class Asked:
    """A call of a foreign agent, beside its messages: what it offers, and limits on the answer.

    ``tools``: as JSON schemas. ``after``: the turn whose prompt and answer the messages of a restart begin with, the first ``known`` of
    them; None without such a turn. ``seed`` is one more key of the randomness, for members of a group must differ. ``choice``: the tool
    that must be called, or ``required`` for any. ``prefill``: the beginning of the answer; ``schema``: of the JSON that it should be. ``spelled``: the text of each token is wanted.
    ``parallel``: it waited together with the call before it, and both share an index in credit.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    choice: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    seed: int | None = None
    prefill: str = ""
    schema: Mapping[str, Any] | None = None
    spelled: bool = False
    after: int | None = None
    known: int = 0
    parallel: bool = False


@frozen_record
class Observation:
    """One thing that an environment shows.

    ``text`` is what a language model reads; ``messages`` are the same as messages with roles, for environments with tools;
    without any, ``text`` is one message of the user. A system message in front takes the place of the system prompt. ``data`` is the same in structured form (JSON values only, public: no hidden
    state), for scripted policies, graders and people. ``reward`` is the environment's own reward for the action just taken,
    None after a reset or if it has none. ``restart`` says that the policy must not see its earlier turns again: the
    prompt starts anew with the system prompt and this text. ``asked``: a foreign agent asks.

    The last six fields say what became of the action just taken: whether it was valid, what was wrong, its spans, the typed
    action that was understood, the calls of tools in it, and whether nobody waited for it any more.
    """

    text: str
    messages: tuple[Message, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    restart: bool = False
    asked: Asked | None = None
    action_valid: bool = True
    action_error: str | None = None
    action_spans: tuple[Span, ...] = ()
    action_data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    action_calls: tuple[ToolCall, ...] = ()
    undelivered: bool = False

    @property
    def shown(self) -> str | tuple[Message, ...]:
        """Return the messages, or the text if there are no messages: a renderer is given this."""
        return self.messages or self.text


@frozen_record
class TurnTokens:
    """The exact tokens of one turn.

    ``context_ids``: tokens that the model read before this action and that no earlier turn of the same training sequence
    holds (system prompt and first observation at a restart, the new observation and its frame otherwise).
    ``action_ids``: what was sampled, the stop token included. ``logprobs``: of each action token, in nats, under the
    distribution it was really drawn from (temperature, top-k, top-p and grammar applied).
    ``restart``: this turn opens a new training sequence; always true for the first turn.
    ``legal``: the ids that a grammar allowed at each action token; None without a grammar.
    """

    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    restart: bool = False
    legal: tuple[tuple[int, ...] | None, ...] | None = None


@frozen_record
class Usage:
    """The cost of one action. Money is in US dollars, None if the price is unknown."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


@frozen_record
class Failure:
    """An error captured at a boundary. ``stage`` is reset, act, step, outcome or store."""

    stage: str
    type: str
    message: str


@frozen_record
class Action:
    """A policy's answer. ``failure`` set means that this row could not act; its episode ends, the others go on.

    ``stop`` is ``TOKEN_LIMIT`` if the answer was cut by a budget before its stop token, else None. ``at_stop``: a stop string that was
    asked for ended it; the text goes up to there, the tokens hold it. ``message`` is the answer with
    its calls as the policy read them in its model's own form, if the episode has tools; without it the text is read.
    ``spelled``: the text of each token, if that was asked for.
    """

    text: str = ""
    message: Message | None = None
    tokens: TurnTokens | None = None
    usage: Usage | None = None
    stop: StopReason | None = None
    at_stop: bool = False
    spelled: tuple[str, ...] = ()
    failure: Failure | None = None

    @classmethod
    def failed(cls, error: BaseException) -> Action:
        """Return the action of a row that could not act."""
        return cls(failure=Failure(stage="act", type=type(error).__name__, message=str(error)))


@frozen_record
class RewardTerm:
    """The weighted amount ``value`` that ``component`` adds to the reward, for a turn or for a span of it.

    ``immediate`` says that nothing that comes later depends on the span. Span credit then gives it this term alone, without the
    noise of all that follows.
    """

    component: str
    value: float
    span: str | None = None
    immediate: bool = False


@frozen_record
class Turn:
    """One exchange: what was observed, what was answered, and what the environment made of it."""

    index: int
    observation: str
    action: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the structured observation that was answered
    env_reward: float | None = None  # the environment's own reward of this step
    valid: bool = True
    error: str | None = None
    spans: tuple[Span, ...] = ()
    action_data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    restart: bool = False
    cut: bool = False  # the answer was cut by a token budget
    messages: tuple[Message, ...] = ()  # the observation as messages, if it came as such
    calls: tuple[ToolCall, ...] = ()  # of the action, as the environment took them
    asked: Asked | None = None  # of a foreign agent's call
    undelivered: bool = False  # its client had left: it is not trained on
    tokens: TurnTokens | None = None
    usage: Usage | None = None

    @property
    def shown(self) -> str | tuple[Message, ...]:
        """Return the observation's messages, or its text without them."""
        return self.messages or self.observation


@frozen_record
class Reward:
    """A grader's verdict on one episode.

    ``value`` is None if it could not be computed, and ``error`` says why; it is never silently 0.
    ``components`` are unweighted; ``terms`` are weighted, one tuple per turn, and their sum is ``value``.
    """

    grader: str
    value: float | None
    components: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    terms: tuple[tuple[RewardTerm, ...], ...] = ()
    error: str | None = None
    # Further figures, for the episode's metrics.
    metrics: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    # What reward functions gave to log_extra, JSON values.
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """The sum of the terms of each turn, (K,)."""
        return tuple(map(_sum_of, self.terms))


def _sum_of(terms: Sequence[RewardTerm]) -> float:
    return fsum(term.value for term in terms)


@frozen_record
class Episode:
    """One task taken by one policy, from reset to end. ``outcome`` holds what may be known once it is over, hidden truth included."""

    task: Task
    policy: str
    turns: tuple[Turn, ...]
    stop: StopReason
    system_prompt: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()  # what the policy could call, as JSON schemas
    group: int = 0
    member: int = 0
    outcome: Mapping[str, Any] = field(default_factory=dict[str, Any])
    final: Observation | None = None  # the last observation, which nobody answered
    reward: Reward | None = None
    failure: Failure | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict[str, float | None])

    @property
    def reward_value(self) -> float | None:
        """The value of its reward; None if it has none."""
        return self.reward.value if self.reward else None

    @property
    def env_return(self) -> float | None:
        """Sum of the environment's own rewards; None if it gave none."""
        rewards = [turn.env_reward for turn in self.turns if turn.env_reward is not None]
        return fsum(rewards) if rewards else None


@frozen_record
class Group:
    """Episodes of one task that share everything but what the policy did."""

    task: Task
    episodes: tuple[Episode, ...]

    def values(self) -> Sequence[float | None]:
        """Rewards of the members, (G,)."""
        return [episode.reward_value for episode in self.episodes]
