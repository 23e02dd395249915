"""The registration record of an environment, and the records that may be attached to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from hashlib import blake2b
from math import fsum, inf
from operator import attrgetter
from typing import Any

from gradus.core.errors import ConfigError, GradingError
from gradus.core.foreign import STEP_SECONDS, batch_seconds, within
from gradus.core.frozen_record import frozen_record
from gradus.core.protocols import Environment, GraderFunction, Policy
from gradus.core.records import Episode, Reward, RewardTerm, Task
from gradus.core.values import Json, JsonDict, number_of
from gradus.core.waiting import settled


@frozen_record
class Grader:
    """A named, versioned way to grade stored episodes.

    ``compute`` takes many episodes, because some graders batch, and returns one entry for each, in order: a plain number, None
    if it has no reward, or a Reward with terms per turn. ``weights``: component -> weight in the reward; one component with the
    grader's name if left out. ``per_turn``: the terms stand at the turns that earned them, so that turn credit works;
    otherwise all stands at the last turn. ``remote``: it asks a server, which takes time and is out of reach of a sandbox.
    ``failed_reward``: of an episode that the model broke; see :meth:`reward_of_broken`.
    """

    name: str
    compute: GraderFunction
    summary: str = ""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    per_turn: bool = False
    range: tuple[float, float] | None = None
    remote: bool = False
    failed_reward: float | None = None

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", {self.name: 1.0})

    def rewards(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compute the rewards of the episodes."""
        entries = self.entries(self.ask(episodes), episodes)
        return [self.reward_of(entry, episode) for entry, episode in zip(entries, episodes, strict=True)]

    def ask(self, episodes: Sequence[Episode]) -> Sequence[Any]:
        """Call :attr:`compute`, and wait if it is a coroutine."""
        # A composed grader makes one call for each component.
        limit = batch_seconds(len(episodes)) * len(self.weights)
        return within(limit, f"grader {self.name!r}", lambda: settled(self.compute(episodes)))

    def entries(self, entries: Sequence[Any], episodes: Sequence[Episode]) -> list[Any]:
        """Return the entries of :attr:`compute` as a list. Raises GradingError unless each episode has one."""
        try:
            rewards = list(entries)
        except TypeError:
            raise GradingError(
                f"grader {self.name!r} returned a {type(entries).__name__}; expected a list with a reward per episode"
            ) from None
        if len(rewards) != len(episodes):
            raise GradingError(
                f"grader {self.name!r} gave {len(rewards)} rewards for {len(episodes)} episodes; expected one each, in order"
            )
        return rewards

    def reward_of_broken(self, episode: Episode, lowest: float) -> Reward:
        """Return the reward of an episode that the model broke: ``failed_reward``, else the floor of ``range``, else ``lowest``.

        Each component gets what makes the weighted sum of all this reward. It stands at the last turn.
        """
        value = self.failed_reward
        if value is None:
            value = lowest if self.range is None else self.range[0]
        total = fsum(self.weights.values())
        shares = dict.fromkeys(self.weights, value / total) if total else {}  # weights may cancel; then it is one term
        last = [RewardTerm(component=name, value=share * self.weights[name]) for name, share in shares.items()]
        terms = [()] * (len(episode.turns) - 1) + [tuple(last) or (RewardTerm(component="failed", value=value),)]
        return Reward(grader=self.name, value=value, components=shares, terms=tuple(terms))

    def reward_of(self, number: Any, episode: Episode) -> Reward:
        """Turn one entry into a reward; a number becomes one term at the last turn. Raises GradingError for anything else."""
        if isinstance(number, Reward):
            return number
        if number is None:
            return Reward(grader=self.name, value=None, error="the grader returned None")
        try:
            value = number_of(number)
        except OverflowError:  # an integer that no float holds: refused as infinity is
            value = inf
        except (TypeError, ValueError):
            raise GradingError(
                f"grader {self.name!r} returned a {type(number).__name__}; expected a number, None or a Reward per episode"
            ) from None
        component = next(iter(self.weights))
        earlier = [()] * (len(episode.turns) - 1)
        terms = (*earlier, (RewardTerm(component=component, value=value),))
        return Reward(grader=self.name, value=value, components={component: value}, terms=terms)


@frozen_record
class Condition:
    """A named list of evaluation seeds with reset options. ``cluster`` maps an episode to its hidden unit, if several share one."""

    name: str
    seeds: Sequence[int]
    summary: str = ""
    options: Json = field(default_factory=JsonDict)
    cluster: Callable[[Episode], str] | None = None


@frozen_record
class Panel:
    """Policies by the role they have in an audit. ``ladder`` goes from worst to best and ends with teacher and ceiling."""

    ladder: Sequence[str]
    # Honest, without inference; the best is what an exploit must not beat. The first rung of the ladder if left out.
    reflexes: Sequence[str] = ()
    exploits: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.ladder:
            raise ConfigError("a panel needs a ladder: names of policies from worst to best, got none")
        object.__setattr__(self, "reflexes", tuple(self.reflexes) or (self.ladder[0],))


@frozen_record
class Vocabulary:
    """The words of a nano tokenizer.

    ``words`` become one token each (written without spaces; a space before a word is implied). ``pieces`` are fragments
    that unknown words are spelled with (characters, digits, syllables). Bytes are always there as the last resort.
    """

    words: Sequence[str]
    pieces: Sequence[str] = ()


@frozen_record
class ViewPanel:
    """One picture of an episode, as data. ``kind`` is one of

    - ``lines``: ``series`` name -> one number or None per turn; ``truth`` name -> the value a line should reach; ``limits``;
    - ``strip``: ``labels`` one category per turn;
    - ``table``: ``columns`` and ``rows``;
    - ``text``: ``body``.
    """

    kind: str
    title: str
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict[str, Sequence[float | None]])
    truth: Mapping[str, float] = field(default_factory=dict[str, float])
    limits: tuple[float, float] | None = None
    labels: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    body: str = ""


@frozen_record
class EpisodeView:
    """The drawing of one episode; reports draw it without knowing the environment."""

    title: str
    panels: Sequence[ViewPanel]
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


@frozen_record
class Presentation:
    """The looks of an environment; nothing here changes an episode or its reward.

    ``view`` draws one episode. ``curves``: figures in the course of an episode, e.g. belief error by day. ``watched``: label ->
    key in ``metrics`` of what a training screen shows besides the figures of every environment. ``reference``: published
    figures to show beside ours.
    """

    view: Callable[[Episode], EpisodeView] | None = None
    curves: Callable[[Episode], Mapping[str, Sequence[float | None]]] | None = None
    watched: Mapping[str, str] = field(default_factory=dict[str, str])
    reference: Json = field(default_factory=JsonDict)


@frozen_record
class Language:
    """The language of the answers. ``vocabulary``: the words of a nano model's tokenizer, needed to make one.

    ``grammar``: the words that are legal at each place of an answer, if it is that simple.
    """

    vocabulary: Callable[[], Vocabulary] | None = None
    grammar: Sequence[Sequence[str]] | None = None


@frozen_record
class AuditHints:
    """Hints for an audit. Without them it tries random, constant and searched answers.

    ``gold``: the policy whose every answer must get the top of the grader's range. ``random_answers``: seed -> some legal
    answer. ``hidden``: keys of ``outcome`` that must not be observable before the end.
    """

    panel: Panel | None = None
    gold: str | None = None
    random_answers: Callable[[int], str] | None = None
    hidden: Sequence[str] = ()


@frozen_record
class Stepping:
    """Settings of resets and steps. Coroutines always run beside each other; other calls do so with ``threads``.

    ``step_seconds`` and ``episode_seconds`` (all resets and steps of an episode together) are limits: an episode beyond them fails.
    Without either a call may take 300 s. ``rounds``: the policy answers when all episodes wait for it, not those that wait; a local
    model's rounding then does not depend on who came first. ``by_content``: see :class:`~gradus.core.EpisodeStart`; for turns whose order is
    not the policy's. ``wait_ms``: without ``rounds``, how long the policy waits for further episodes behind the first that is ready.
    ``outcome_seconds``: how long ``outcome`` may take, in which a model may read an exam.
    """

    threads: bool = False
    step_seconds: float | None = None
    episode_seconds: float | None = None
    rounds: bool = False
    by_content: bool = False
    wait_ms: float = 0.0
    outcome_seconds: float = STEP_SECONDS

    @property
    def limited(self) -> bool:
        """Say whether a limit is set."""
        return self.step_seconds is not None or self.episode_seconds is not None

    @property
    def call_seconds(self) -> float:
        """Return how long one call may take."""
        return self.step_seconds or self.episode_seconds or STEP_SECONDS


@frozen_record
class EnvironmentSpec:
    """One environment: what is needed to run and grade an episode. The last three fields are for those who want more.

    ``policies`` map a name to a factory that takes the text after the colon (``constant:sleep``) or None.
    ``true_reward`` is the true aim, which no grader may lower; the environment's own return by default. ``metrics`` are
    further figures of an episode (the key ``play`` is shown beside the reward wherever it is there). ``train_task(i)`` is the
    i-th training task; it never meets a seed of a condition. ``default_grader``: the first one if left out.
    ``foreign``: somebody's agent stands behind it, whose calls are the turns: ``step`` takes the whole :class:`Action`, and members of a
    group may begin differently. ``max_sessions``: episodes that may run at once, if something behind the environment limits them. ``stepping``: how its resets and
    steps are run, if they take time.
    ``missing``: exceptions of a step that are no fault of the model, such as a lost connection: such an episode is left out. Any other
    exception behind an answer is its fault, and so is a limit on time: the episode gets the grader's ``failed_reward``.
    ``content``: what a task asks, for a finite set of tasks that come back under other seeds; seed and options by default.
    ``data_set``: the rows that the tasks are made of, if they are made of rows. ``sources``: digests of code and rows that decide about
    tasks and rewards and do not stand in this process, by what they are. ``recipe``: file name under gradus/recipes. ``asks``: served policies that
    the environment itself asks, such as a frozen reader; a run pays for them.
    """

    name: str
    summary: str
    make: Callable[[], Environment]
    graders: Mapping[str, Grader]
    conditions: Mapping[str, Condition]
    train_task: Callable[[int], Task]
    max_turns: int
    default_grader: str = ""
    policies: Mapping[str, Callable[[str | None], Policy]] = field(
        default_factory=dict[str, Callable[[str | None], Policy]]
    )
    true_reward: Callable[[Episode], float | None] = attrgetter("env_return")
    true_reward_name: str = "return"
    teacher: str | None = None
    metrics: Callable[[Episode], Mapping[str, float | None]] | None = None
    max_sessions: int | None = None
    foreign: bool = False
    stepping: Stepping = Stepping()
    missing: tuple[type[BaseException], ...] = (ConnectionError,)
    content: Callable[[Task], str] | None = None
    data_set: Any = None
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    recipe: str | None = None
    asks: Sequence[Policy] = ()
    presentation: Presentation = Presentation()
    language: Language = Language()
    audit: AuditHints = AuditHints()

    def __post_init__(self) -> None:
        if not self.graders or not self.conditions:
            raise ConfigError(f"environment {self.name!r} needs at least one grader and one condition")
        object.__setattr__(self, "default_grader", self.default_grader or next(iter(self.graders)))
        self.grader()  # raises for a default that is not there

    @property
    def keeps_answers(self) -> bool:
        """Say whether earlier answers stay as they were sampled, also if a chat template would rewrite them.

        Episodes of one turn have none, and a foreign agent that rewrites its history begins a branch.
        """
        return self.max_turns == 1 or self.foreign

    def grader(self, name: str | None = None) -> Grader:
        """Return the grader called ``name``, or the default one."""
        name = name or self.default_grader
        if name not in self.graders:
            raise ConfigError(f"unknown grader {name!r} for {self.name}; it has {', '.join(self.graders)}")
        return self.graders[name]

    def tasks(self, condition: str, episodes: int | None = None) -> list[Task]:
        """Return the first ``episodes`` tasks of a condition, or all of them."""
        if condition not in self.conditions:
            raise ConfigError(
                f"unknown condition {condition!r} for {self.name}; it has {', '.join(self.conditions)}, or all"
            )
        declared = self.conditions[condition]
        seeds = declared.seeds
        if episodes is not None and not 1 <= episodes <= len(seeds):
            raise ConfigError(
                f"condition {condition!r} has {len(seeds)} seeds; episodes must lie between 1 and that, got {episodes}"
            )
        options = declared.options
        return [
            Task(environment=self.name, seed=seed, condition=condition, options=options) for seed in seeds[:episodes]
        ]

    def identify(self, task: Task) -> Task:
        """Return the task with its id, a hash of what it is; splits are told apart by it."""
        if task.id:
            return task
        content = json.dumps([task.seed, dict(task.options)], sort_keys=True, default=str)
        if self.content:
            content = self.content(task)
        return replace(task, id=blake2b(f"{self.name}\n{content}".encode(), digest_size=8).hexdigest())

    @cached_property
    def condition_ids(self) -> frozenset[str]:
        """Ids of the conditions' tasks, if tasks have a content of their own; endless environments keep their seeds apart."""
        if self.content is None:
            return frozenset()
        return frozenset(self.identify(task).id for name in self.conditions for task in self.tasks(name))

    def policy(self, name: str) -> Policy:
        """Return a scripted policy by name, ``name`` or ``name:argument``."""
        head, _, argument = name.partition(":")
        if head not in self.policies:
            raise ConfigError(
                f"unknown policy {name!r} for {self.name}; it has {', '.join([*self.policies, 'remote:MODEL'])}, or a model folder"
            )
        return self.policies[head](argument or None)
