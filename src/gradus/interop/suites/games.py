"""Environment records of games: their grader, policies and words. And any object with ``reset`` and ``step`` as an environment."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any

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
from gradus.core.values import stand_in
from gradus.core.waiting import settled
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
    moves: Callable[[int], str],
    max_turns: int,
    limits: tuple[float, float] | None = None,
    per_turn: bool = False,
    teacher: str = "random",
    ladder: Sequence[str] = ("silence", "random"),
) -> EnvironmentSpec:
    """A game as an environment. ``random_move`` plays a legal move; ``moves(seed)`` is some move, for the audit.

    A game of a suite brings no teacher of its own, so legal random play is what a model is warm-started with. ``ladder``: the
    panel's, from worst to best; leave silence out if a random move stands in for what cannot be understood.
    """
    scripted: dict[str, Answer] = {"random": random_move, "silence": lambda _, __: ""}
    spec = EnvironmentSpec(
        name=name,
        summary=summary,
        make=make,
        graders={"return": return_grader(per_turn=per_turn, limits=limits)},
        conditions={
            "in-distribution": Condition(
                name="in-distribution", seeds=range(1000), summary="games that no training game shares a seed with"
            )
        },
        train_task=lambda index: Task(environment=name, seed=TRAIN_SEEDS + index),
        max_turns=max_turns,
        policies={
            **{key: policy_factory(key, answer) for key, answer in scripted.items()},
            "constant": lambda text: constant_policy(text or moves(0)),
        },
        true_reward=_return,
        teacher=teacher,
        language=Language(vocabulary=lambda: _examples(spec)),
        audit=AuditHints(panel=Panel(ladder=ladder, reflexes=("random", "constant")), random_answers=moves),
        recipe="game.toml",
    )
    return spec


def return_grader(*, per_turn: bool, limits: tuple[float, float] | None = None, needed: bool = False) -> Grader:
    """The sum of the environment's own rewards. A game that was cut before its first reward has earned 0; ``needed``: its reward is missing."""

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [_reward(each) if each.env_return is not None or not needed else _missing(each) for each in episodes]

    return Grader(
        name="return",
        summary="sum of the environment's own rewards",
        weights={"return": 1.0},
        compute=compute,
        per_turn=per_turn,
        range=limits,
    )


def _reward(episode: Episode) -> Reward:
    values = [turn.env_reward or 0.0 for turn in episode.turns]
    terms = tuple((RewardTerm(component="return", value=value),) if value else () for value in values)
    total = fsum(values)
    return Reward(grader="return", value=total, components={"return": total}, terms=terms)


def _missing(episode: Episode) -> Reward:
    way_out = "; it was cut before its end, raise ?turns=" if episode.stop is StopReason.TURN_LIMIT else ""
    return Reward(grader="return", value=None, error=f"the environment gave no reward in this episode{way_out}")


def _return(episode: Episode) -> float | None:
    return None if episode.stop is StopReason.FAILED else episode.env_return or 0.0


def _examples(spec: EnvironmentSpec) -> Vocabulary:
    """The words of some random games, rules included."""
    tasks = [spec.train_task(index) for index in range(_EXAMPLES)]
    episodes = roll_out(spec, spec.policy("random"), tasks, key=("vocabulary",)).episodes
    turns = [turn for episode in episodes for turn in episode.turns]
    items = [Item(question=turn.observation, answer=turn.action) for turn in turns]
    return text_vocabulary(items, [episodes[0].system_prompt, turns[0].observation])


_FORMS = "(observation, reward, done), (observation, reward, terminated, truncated), the same with an info behind it, or an Observation"


def as_text(seen: Any) -> str:
    """Text as it is, anything else as JSON."""
    return seen if isinstance(seen, str) else json.dumps(seen, default=stand_in, ensure_ascii=False)


class ClassEnvironment:
    """An instance of a class. ``restart``: each turn is a prompt of its own, without the turns before.

    ``reset`` and ``step`` give what the rollout waits for, if those of the class are coroutines: episodes wait beside each other.
    """

    restart = False

    def __init__(self, inner: Any, actions: Sequence[str] = ()) -> None:
        self._inner = inner
        self._actions = {each.strip(): each for each in actions}
        self._name = type(inner).__name__
        self._episode_id, self._steps = "", 0
        self._rng = child_rng(0, "invalid action")

    @property
    def system_prompt(self) -> str:
        """The class's own rules; if it has none, the answers that it understands."""
        rules = str(getattr(self._inner, "system_prompt", None) or "")
        return rules or (f"Answer with one of: {', '.join(sorted(self._actions))}." if self._actions else "")

    def expert(self) -> str:
        """Returns the class's own answer of this moment. Raises EnvironmentFault if that is not one of its actions."""
        given = settled(self._inner.expert())
        if given is None or (self._actions and str(given).strip() not in self._actions):
            expected = f"one of {', '.join(sorted(self._actions))}" if self._actions else "an answer"
            raise EnvironmentFault(f"{self._name}.expert gave {given!r:.60}; expected {expected}")
        return str(given)

    @property
    def state(self) -> Mapping[str, Any]:
        """Episode id and number of steps."""
        return {"episode_id": self._episode_id, "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin; options go to the class's own reset."""
        self._steps, self._episode_id = 0, episode_id or f"{self._name}-{seed}"
        self._rng = child_rng(seed or 0, "invalid action")
        return _behind(self._reset_inner(seed, options), self._began)

    def step(self, action: str) -> Observation:
        """Pass the answer on. A random action stands in for an answer that is not an action, and the answer counts as invalid:
        if it were skipped, silence would win wherever steps cost something."""
        taken, error = self._understood(action)
        return _behind(self._inner.step(taken), lambda given: self._took(given, error))

    def outcome(self) -> Mapping[str, Any]:
        """Returns the number of steps, and the class's own ``outcome`` if it has one."""
        own: Callable[[], Any] | None = getattr(self._inner, "outcome", None)
        return {"steps": self._steps, **((settled(own()) if own else None) or {})}

    def close(self) -> None:
        """Free what the class holds."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            settled(close())

    def _reset_inner(self, seed: int | None, options: Mapping[str, Any]) -> Any:
        return self._inner.reset(seed=seed, **options)

    def _began(self, given: Any) -> Observation:
        if isinstance(given, Observation):
            return given
        with_info = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        return Observation(text=self._text(given[0] if with_info else given))

    def _text(self, seen: Any) -> str:
        return as_text(seen)

    def _understood(self, action: str) -> tuple[Any, str | None]:
        """Returns what the class is given, and what was wrong with the answer."""
        if not self._actions:
            return action, None
        if (known := self._actions.get(action.strip())) is not None:
            return known, None
        names = sorted(self._actions)
        return self._actions[names[self._rng.randrange(len(names))]], f"expected one of {', '.join(names)}"

    def _took(self, given: Any, error: str | None) -> Observation:
        self._steps += 1
        if isinstance(given, Observation):
            return given if error is None else replace(given, action_valid=False, action_error=error)
        if not isinstance(given, tuple) or len(given) not in (3, 4, 5):
            raise EnvironmentFault(f"{self._name}.step returned {type(given).__name__}; expected {_FORMS}")
        seen, reward, terminated, *rest = given
        return Observation(
            text=self._text(seen),
            restart=self.restart,
            reward=reward,  # the rollout looks at it
            terminated=bool(terminated),
            truncated=bool(rest)
            and not isinstance(rest[0], Mapping)
            and bool(rest[0]),  # a fourth value may be an info
            action_valid=error is None,
            action_error=error,
        )


def _behind(given: Any, then: Callable[[Any], Observation]) -> Any:
    """``then`` of what was given, or of what comes of it, if it is awaited."""
    if not inspect.isawaitable(given):
        return then(given)

    async def waited() -> Observation:
        return then(await given)

    return waited()
