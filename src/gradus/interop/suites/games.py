"""Environment records of games: their grader, policies and words. And any object with ``reset`` and ``step`` as an environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any, cast

from gradus.core import (
    AuditHints,
    Condition,
    Environment,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Observation,
    Panel,
    Reward,
    RewardTerm,
    StopReason,
    Task,
    Vocabulary,
    child_rng,
)
from gradus.core.values import Json
from gradus.core.waiting import settled
from gradus.environments.tools.environment import as_text
from gradus.environments.verifiable.items import TRAIN_SEEDS, Item
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.policies.scripted import Answer, constant_policy, policy_factory
from gradus.rollouts import roll_out

_EXAMPLES = 24  # games that the vocabulary is made of


def game_spec(
    name: str,
    *,
    summary: str,
    make: Callable[[], Environment],
    random_move: Answer,
    moves: Callable[[int], str] | None,
    max_turns: int,
    limits: tuple[float, float] | None = None,
    per_turn: bool = False,
    teacher: str | None = "random",
    ladder: Sequence[str] = ("silence", "random"),
) -> EnvironmentSpec:
    """A game as an environment. ``random_move`` plays a legal move; ``moves(seed)`` is some move, for the audit; None if only the game's
    own texts name them. ``limits``: least and greatest return, if they are known. ``per_turn``: rewards come with the moves that earn them.

    A game of a suite brings no teacher of its own, so legal random play is what a model is warm-started with. Without any ``teacher``
    there is no vocabulary and no recipe, which begin with one. ``ladder``: the
    panel's, from worst to best; leave silence out if a random move stands in for what cannot be understood.
    """
    condition = Condition(
        name="in-distribution", seeds=range(1000), summary="games that no training game shares a seed with"
    )
    spec = EnvironmentSpec(
        name=name,
        summary=summary,
        make=make,
        graders={"return": return_grader(per_turn=per_turn, limits=limits)},
        conditions={condition.name: condition},
        train_task=lambda index: Task(environment=name, seed=TRAIN_SEEDS + index),
        max_turns=max_turns,
        policies={
            "random": policy_factory("random", random_move),
            "silence": policy_factory("silence", lambda _, __: ""),
            "constant": lambda text: constant_policy(text or (moves(0) if moves else "")),
        },
        true_reward=lambda episode: None if episode.stop is StopReason.FAILED else episode.env_return or 0.0,
        teacher=teacher,
        language=Language(vocabulary=lambda: _vocabulary(spec)) if teacher else Language(),
        audit=AuditHints(panel=Panel(ladder=ladder, reflexes=("random", "constant")), random_answers=moves),
        recipe="game.toml" if teacher else None,
    )
    return spec


def return_grader(*, per_turn: bool, limits: tuple[float, float] | None = None, needed: bool = False) -> Grader:
    """The sum of the environment's own rewards. A game that was cut before its first reward has earned 0; ``needed``: its reward is missing."""

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [_reward(episode, needed) for episode in episodes]

    return Grader(
        name="return",
        summary="sum of the environment's own rewards",
        weights={"return": 1.0},
        compute=compute,
        per_turn=per_turn,
        range=limits,
    )


def _reward(episode: Episode, needed: bool) -> Reward:
    if needed and episode.env_return is None:
        way_out = "; it was cut before its end, raise ?turns=" if episode.stop is StopReason.TURN_LIMIT else ""
        return Reward(grader="return", value=None, error=f"the environment gave no reward in this episode{way_out}")
    values = [turn.env_reward or 0.0 for turn in episode.turns]
    total = fsum(values)
    terms = [(RewardTerm(component="return", value=value),) if value else () for value in values]
    return Reward(grader="return", value=total, components={"return": total}, terms=tuple(terms))


def _vocabulary(spec: EnvironmentSpec) -> Vocabulary:
    """The words of some random games, rules included."""
    tasks = [spec.train_task(index) for index in range(_EXAMPLES)]
    episodes = roll_out(spec, spec.policy("random"), tasks, key=("vocabulary",)).episodes
    # What is seen and what is answered are the words that a model needs.
    turns = [turn for episode in episodes for turn in episode.turns]
    items = [Item(question=turn.observation, answer=turn.action) for turn in turns]
    return text_vocabulary(items, [episodes[0].system_prompt, turns[0].observation])


_FORMS = "(observation, reward, done), (observation, reward, terminated, truncated), the same with an info behind it, or an Observation"


class ClassEnvironment:
    """An instance of a class. ``restart``: each turn is a prompt of its own, without the turns before.

    ``reset`` and ``step`` give what the rollout waits for, if those of the class are coroutines: episodes wait beside each other.
    """

    restart = False

    def __init__(self, inner: Any, actions: Sequence[str] = ()) -> None:
        self.inner = inner
        self._actions = {action.strip(): action for action in actions}
        self._name = type(inner).__name__
        self._steps = 0
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """The class's own rules; if it has none, the answers that it understands."""
        rules = str(getattr(self.inner, "system_prompt", None) or "")
        return rules or (f"Answer with one of: {self._listed()}." if self._actions else "")

    def expert(self) -> str:
        """Returns the class's own answer of this moment. Raises EnvironmentFault if that is not one of its actions."""
        answer = settled(self.inner.expert())
        if answer is None or (self._actions and str(answer).strip() not in self._actions):
            expected = f"one of {self._listed()}" if self._actions else "an answer"
            raise EnvironmentFault(f"{self._name}.expert gave {answer!r:.60}; expected {expected}")
        return str(answer)

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begin; options go to the class's own reset."""
        self._steps = 0
        self._rng = child_rng(seed or 0, "invalid action")
        return _after(self._reset_inner(seed, options), self._first)

    def step(self, action: str) -> Observation:
        """Pass the answer on. A random action stands in for an answer that is not an action, and the answer counts as invalid:
        if it were skipped, silence would win wherever steps cost something."""
        understood, error = self._understood(action)
        return _after(self.inner.step(understood), partial(self._next, error))

    def outcome(self) -> Json:
        """Returns the number of steps, and the class's own ``outcome`` if it has one."""
        return {"steps": self._steps, **(self._hook("outcome") or {})}

    def close(self) -> None:
        """Free what the class holds."""
        self._hook("close")

    def _hook(self, name: str) -> Any:
        method = getattr(self.inner, name, None)
        return settled(method()) if callable(method) else None

    def _listed(self) -> str:
        return ", ".join(sorted(self._actions))

    def _reset_inner(self, seed: int | None, options: Json) -> Any:
        return self.inner.reset(seed=seed, **options)

    def _text(self, observation: Any) -> str:
        return as_text(observation)

    def _understood(self, action: str) -> tuple[Any, str | None]:
        """Returns what the class is given, and what was wrong with the answer."""
        if not self._actions:
            return action, None
        if action.strip() in self._actions:
            return self._actions[action.strip()], None
        # Sorted, so that the random action does not depend on how the class lists them.
        names = sorted(self._actions)
        random_name = names[self._rng.randrange(len(names))]
        return self._actions[random_name], f"expected one of {self._listed()}"

    def _first(self, result: Any) -> Observation:
        if isinstance(result, Observation):
            return result
        if isinstance(result, tuple):
            pair = cast(tuple[Any, ...], result)
            # Gymnasium's reset gives an info; a pair of anything else is an observation.
            if len(pair) == 2 and isinstance(pair[1], Mapping):  # an info
                result = pair[0]
        return Observation(text=self._text(result))

    def _next(self, error: str | None, result: Any) -> Observation:
        self._steps += 1
        kind = type(result).__name__
        if isinstance(result, Observation):
            return result if error is None else replace(result, action_valid=False, action_error=error)
        values = list(cast(tuple[Any, ...], result)) if isinstance(result, tuple) else []
        if len(values) not in (3, 4, 5):
            raise EnvironmentFault(f"{self._name}.step returned {kind}; expected {_FORMS}")
        truncated = values[3] if len(values) > 3 else False
        return Observation(
            text=self._text(values[0]),
            restart=self.restart,
            reward=values[1],  # the rollout looks at it
            terminated=bool(values[2]),
            truncated=bool(truncated) and not isinstance(truncated, Mapping),  # a fourth value may be an info
            action_valid=error is None,
            action_error=error,
        )


def _after(result: Any, read: Callable[[Any], Observation]) -> Any:
    """Reads a result, or what comes of it if it is awaited."""
    if not inspect.isawaitable(result):
        return read(result)

    async def waited() -> Observation:
        return read(await result)

    return waited()
