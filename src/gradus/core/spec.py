"""The registration record of an environment: everything the rest of Gradus needs to know of it, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.core.errors import ConfigError
from gradus.core.protocols import Environment, GraderFunction, Policy
from gradus.core.records import Episode, Task

__all__ = ["Condition", "EnvironmentSpec", "EpisodeView", "Grader", "Panel", "ViewPanel", "Vocabulary"]


@dataclass(frozen=True, kw_only=True)
class Grader:
    """A named, versioned way to grade stored episodes.

    ``weights``: component -> weight in the reward. ``per_turn``: the terms are paid where they were earned, so that turn
    credit works; otherwise all is paid at the last turn. ``reward`` takes many episodes, because some graders batch.
    """

    name: str
    summary: str
    weights: Mapping[str, float]
    compute: GraderFunction
    per_turn: bool = False
    range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A named list of evaluation seeds with reset options. ``cluster`` maps an episode to its hidden unit, if several share one."""

    name: str
    seeds: Sequence[int]
    summary: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cluster: Callable[[Episode], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Policies by the role they play in an audit. ``ladder`` goes from worst to best and ends with teacher and ceiling."""

    ladder: Sequence[str]
    reflexes: Sequence[str] = ()  # honest, without inference; the best of them is what an exploit must not beat
    exploits: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a nano tokenizer is made of.

    ``words`` become one token each (written without spaces; a space before a word is implied). ``pieces`` are fragments
    that unknown words are spelled with (characters, digits, syllables). Bytes are always there as the last resort.
    """

    words: Sequence[str]
    pieces: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class EpisodeView:
    """How an environment wants one of its episodes to be drawn; reports draw it without knowing the environment."""

    title: str
    panels: Sequence[ViewPanel]
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """One environment.

    ``policies`` map a name to a factory that takes the text after the colon (``constant:sleep``) or None.
    ``true_reward`` is the true aim, which no grader may lower; ``metrics`` are further figures of an episode (the key
    ``play`` is shown beside the reward wherever it is there). ``train_task(i)`` is the i-th training task; it never
    meets a seed of a condition. ``watched``: label -> key in ``metrics`` of what a training screen should show besides the
    figures that every environment has. ``hidden`` names the keys of ``outcome`` that must not be observable during play.
    """

    name: str
    summary: str
    make: Callable[[], Environment]
    graders: Mapping[str, Grader]
    default_grader: str
    conditions: Mapping[str, Condition]
    train_task: Callable[[int], Task]
    policies: Mapping[str, Callable[[str | None], Policy]]
    true_reward: Callable[[Episode], float | None]
    true_reward_name: str
    max_turns: int
    panel: Panel | None = None
    teacher: str | None = None
    gold: str | None = None  # the policy whose every answer must get the top of the grader's range
    metrics: Callable[[Episode], Mapping[str, float | None]] | None = None
    watched: Mapping[str, str] = field(default_factory=dict[str, str])
    curves: Callable[[Episode], Mapping[str, Sequence[float | None]]] | None = None  # e.g. belief error by day
    view: Callable[[Episode], EpisodeView] | None = None
    vocabulary: Callable[[], Vocabulary] | None = None
    grammar: Sequence[Sequence[str]] | None = (
        None  # the words that are legal at each place of an answer, if it is that simple
    )
    random_answers: Callable[[int], str] | None = None  # seed -> some legal answer, for search and hygiene
    hidden: Sequence[str] = ()
    max_sessions: int | None = None  # episodes that may run at once, where something behind the environment limits them
    recipe: str | None = None  # file name under gradus/recipes
    reference: Mapping[str, Any] = field(default_factory=dict[str, Any])  # published figures to show beside ours

    def grader(self, name: str | None = None) -> Grader:
        """The grader called ``name``, or the default one."""
        name = name or self.default_grader
        if name not in self.graders:
            raise ConfigError(f"unknown grader {name!r} for {self.name}; it has {', '.join(self.graders)}")
        return self.graders[name]

    def tasks(self, condition: str, episodes: int | None = None) -> list[Task]:
        """The first ``episodes`` tasks of a condition, or all of them."""
        if condition not in self.conditions:
            raise ConfigError(
                f"unknown condition {condition!r} for {self.name}; it has {', '.join(self.conditions)}, or all"
            )
        found = self.conditions[condition]
        if episodes is not None and not 1 <= episodes <= len(found.seeds):
            raise ConfigError(f"condition {condition!r} has {len(found.seeds)} seeds, got episodes = {episodes}")
        seeds = found.seeds if episodes is None else found.seeds[:episodes]
        return [Task(environment=self.name, seed=seed, condition=condition, options=found.options) for seed in seeds]

    def policy(self, name: str) -> Policy:
        """A scripted policy by name, ``name`` or ``name:argument``."""
        head, _, argument = name.partition(":")
        if head not in self.policies:
            raise ConfigError(
                f"unknown policy {name!r} for {self.name}; it has {', '.join(self.policies)}, remote:MODEL, or a model folder"
            )
        return self.policies[head](argument or None)
