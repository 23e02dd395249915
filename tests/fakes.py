"""Small environments for tests. They are real ones: they reset, step, reward and hide things like any other.

``echo``: one turn; the observation names a word and the reward is 1 for saying it. ``lamps``: several turns; each shows a color,
an answer is a guess of the hidden number and a color, and each half is paid where it was earned; ``off`` as color ends the
episode early. Both know the vocabulary a nano model needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import (
    AuditHints,
    Condition,
    EnvironmentSpec,
    Episode,
    Grader,
    Language,
    Observation,
    Reward,
    RewardTerm,
    Span,
    Task,
    Vocabulary,
    child_rng,
)
from gradus.policies.scripted import FunctionPolicy, Script

WORDS = ("red", "green", "blue", "gold")
NUMBERS = ("0", "1", "2", "3")


class Echo:
    """One turn: say the word that is shown."""

    system_prompt = "say the word"

    def __init__(self) -> None:
        self._word = ""
        self._steps = 0

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": "echo", "step_count": self._steps}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        rng = child_rng(seed or 0, "echo")
        self._word = rng.choice(WORDS)
        self._steps = 0
        return Observation(text=f"word {self._word}", data={"word": self._word})

    def step(self, action: str) -> Observation:
        self._steps += 1
        valid = action.strip() in WORDS
        return Observation(
            text="done",
            reward=float(action.strip() == self._word),
            terminated=True,
            action_valid=valid,
            action_error=None if valid else f"expected one of {', '.join(WORDS)}",
            action_data={"word": action.strip()},
        )

    def outcome(self) -> Mapping[str, Any]:
        return {"word": self._word}

    def close(self) -> None:
        pass


class Lamps:
    """``turns`` turns: answer ``N COLOUR``; the color that is shown is right, and N should be the hidden number.

    The hidden number shows in the observation only after the first turn, so that later guesses can be better. ``restart``
    makes every second turn begin a new training sequence.
    """

    system_prompt = "name the number and the color"

    def __init__(self, turns: int = 3, restart: bool = False) -> None:
        self._turns = turns
        self._restart = restart
        self._number = 0
        self._colors: list[str] = []
        self._step = 0

    @property
    def state(self) -> Mapping[str, Any]:
        return {"episode_id": "lamps", "step_count": self._step}

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        rng = child_rng(seed or 0, "lamps")
        self._number = rng.randrange(len(NUMBERS))
        self._colors = [rng.choice(WORDS) for _ in range(self._turns)]
        self._step = 0
        return self._observe()

    def _observe(self, **fields: Any) -> Observation:
        if self._step >= self._turns:
            return Observation(text="done", terminated=True, **fields)
        hint = f" hint {self._number}" if self._step else ""
        text = f"lamp {self._colors[self._step]}{hint}"
        restart = self._restart and self._step % 2 == 0 and self._step > 0
        return Observation(text=text, data={"color": self._colors[self._step]}, restart=restart, **fields)

    def step(self, action: str) -> Observation:
        words = action.split()
        valid = len(words) == 2 and words[0] in NUMBERS and words[1] in (*WORDS, "off")
        right = valid and words[1] == self._colors[self._step]
        known = valid and int(words[0]) == self._number
        fields: dict[str, Any] = {
            "reward": float(right) + float(known),
            "action_valid": valid,
            "action_error": None if valid else "expected a number and a color",
            "action_data": {"right": right, "known": known},
        }
        if valid:
            at = action.index(words[1])
            fields["action_spans"] = (
                Span(name="number", start=0, end=at),
                Span(name="color", start=at, end=len(action)),
            )
        self._step += 1
        if valid and words[1] == "off":
            return Observation(text="done", terminated=True, **fields)
        return self._observe(**fields)

    def outcome(self) -> Mapping[str, Any]:
        return {"number": self._number}

    def close(self) -> None:
        pass


def _grade_echo(episodes: Sequence[Episode]) -> Sequence[Reward]:
    rewards: list[Reward] = []
    for episode in episodes:
        value = episode.turns[0].env_reward or 0.0
        terms = ((RewardTerm(component="right", value=value),),)
        rewards.append(Reward(grader="right", value=value, components={"right": value}, terms=terms))
    return rewards


def _grade_lamps(episodes: Sequence[Episode]) -> Sequence[Reward]:
    rewards: list[Reward] = []
    for episode in episodes:
        terms: list[tuple[RewardTerm, ...]] = []
        for turn in episode.turns:
            known, right = float(turn.action_data["known"]), float(turn.action_data["right"])
            terms.append(
                (
                    RewardTerm(component="number", value=0.5 * known, span="number"),
                    RewardTerm(component="color", value=0.5 * right, span="color"),
                )
            )
        total = sum(term.value for turn in terms for term in turn)
        parts = {
            "number": sum(float(turn.action_data["known"]) for turn in episode.turns),
            "color": sum(float(turn.action_data["right"]) for turn in episode.turns),
        }
        rewards.append(Reward(grader="sum", value=total, components=parts, terms=tuple(terms)))
    return rewards


def echo() -> EnvironmentSpec:
    """The one-turn environment."""
    return EnvironmentSpec(
        name="echo",
        summary="say the word that is shown",
        make=Echo,
        graders={
            "right": Grader(
                name="right", summary="1 for the word", weights={"right": 1.0}, compute=_grade_echo, per_turn=True
            )
        },
        default_grader="right",
        conditions={"test": Condition(name="test", seeds=range(32))},
        train_task=lambda index: Task(environment="echo", seed=1_000_000 + index),
        policies={"gold": lambda _: FunctionPolicy("gold", lambda seen, script: seen.data["word"])},
        true_reward=lambda episode: episode.env_return,
        true_reward_name="return",
        max_turns=1,
        teacher="gold",
        language=Language(
            vocabulary=lambda: Vocabulary(words=("say", "the", "word", "done", *WORDS)), grammar=(WORDS,)
        ),
        audit=AuditHints(hidden=("word",)),
    )


def lamps(*, turns: int = 3, restart: bool = False) -> EnvironmentSpec:
    """The environment of several turns."""

    def gold(seen: Observation, script: Script) -> str:
        hint = seen.text.split(" hint ")
        return f"{hint[1] if len(hint) == 2 else '0'} {seen.data['color']}"

    return EnvironmentSpec(
        name="lamps",
        summary="name the hidden number and the color that is shown",
        make=lambda: Lamps(turns, restart),
        graders={
            "sum": Grader(
                name="sum",
                summary="half a point each",
                weights={"number": 0.5, "color": 0.5},
                compute=_grade_lamps,
                per_turn=True,
            )
        },
        default_grader="sum",
        conditions={"test": Condition(name="test", seeds=range(32))},
        train_task=lambda index: Task(environment="lamps", seed=1_000_000 + index),
        policies={"gold": lambda _: FunctionPolicy("gold", gold)},
        true_reward=lambda episode: episode.env_return,
        true_reward_name="return",
        max_turns=turns,
        teacher="gold",
        metrics=lambda episode: {"length": float(len(episode.turns))},
        language=Language(
            vocabulary=lambda: Vocabulary(
                words=("name", "the", "number", "and", "color", "lamp", "hint", "done", "off", *WORDS, *NUMBERS)
            ),
            grammar=(NUMBERS, (*WORDS, "off")),
        ),
        audit=AuditHints(hidden=("number",)),
    )


def policy_figures(**measures: Any) -> dict[str, Any]:
    """A policy's record in results.json: measure -> a mean, or mean, low and high."""
    figures = {
        name: value if isinstance(value, dict) else {"mean": value, "low": None, "high": None}
        for name, value in measures.items()
    }
    return {
        **figures,
        "components": {},
        "curves": {},
        "episodes": 2,
        "failed": 0,
        "failures": {},
        "ungraded": 0,
        "truncated": 0,
        "invalid_actions": None,
    }


def paired_mean(**figures: Any) -> dict[str, Any]:
    """A stored difference, decided by its bounds, over 50 tasks that all differ."""
    low, high = figures["low"], figures["high"]
    decision = "too few" if low is None else "better" if low > 0 else "worse" if high < 0 else "undecided"
    counts = {"wins": 1, "ties": 0, "episodes": 50, "units": 50, "differing": 50, "p": None, "level": 0.95, "looks": 1}
    return {**counts, "decision": decision, **figures}


def results_document(environment: str, pairs: Mapping[str, Any] | None = None, *, grader: str = "v3") -> dict[str, Any]:
    """A whole results.json with one condition, ``main``: pairs -> measure -> mean, low and high, and what differs from the usual counts."""
    whole = {
        pair: {"components": {}, **{name: paired_mean(**mean) for name, mean in measures.items()}}
        for pair, measures in (pairs or {}).items()
    }
    condition = {"episodes": 2, "summary": "", "clustered": False, "policies": {}, "pairs": whole}
    return {
        "schema": 2,
        "environment": environment,
        "grader": grader,
        "checkpoint": None,
        "true_reward_name": "true reward",
        "level": 0.95,
        "seeds": [0],
        "conditions": {"main": condition},
    }


def audit_document(**changes: Any) -> dict[str, Any]:
    """A whole audit.json of a grader that fails, with what ``changes`` say."""
    return {
        "schema": 2,
        "environment": "sums",
        "grader": "g",
        "verdict": "fail",
        "summary": "it fails",
        "checks": [],
        "true_reward_name": "share of right answers",
        "condition": "main",
        "episodes": 48,
        "seed": 0,
        "points": [],
        "hack": None,
        "exploit": None,
        "review": [],
        **changes,
    }
