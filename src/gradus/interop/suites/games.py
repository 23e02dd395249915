"""Makes an environment record of a game: its grader, its policies, its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from gradus.core import (
    AuditHints,
    Condition,
    Environment,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Panel,
    Reward,
    RewardTerm,
    StopReason,
    Task,
    Vocabulary,
)
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
