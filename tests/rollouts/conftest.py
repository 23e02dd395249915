"""A small environment that is real: guess a hidden number between 0 and 9 in at most six turns."""

from collections.abc import Sequence

import pytest

from gradus.core import (
    Action,
    Condition,
    EnvironmentSpec,
    Episode,
    Grader,
    Observation,
    Reward,
    RewardTerm,
    Span,
    Task,
    child_rng,
    child_seed,
)


class Guess:
    """Says higher or lower; ends when the number is found."""

    system_prompt = "guess a digit"

    def __init__(self) -> None:
        self.hidden = 0
        self.turns = 0

    @property
    def state(self):
        return {"episode_id": "guess", "step_count": self.turns}

    def reset(self, *, seed=None, episode_id=None, **options):
        self.hidden = child_rng(seed or 0, "digit").randrange(10)
        self.turns = 0
        return Observation(text="guess", data={"last": None})

    def step(self, action: str):
        if action == "explode":
            raise RuntimeError("boom")
        self.turns += 1
        valid = action.isdigit()
        if not valid:
            return Observation(text="digits only", reward=-1.0, action_valid=False, action_error="expected a digit")
        guess = int(action)
        word = "found" if guess == self.hidden else "higher" if guess < self.hidden else "lower"
        return Observation(
            text=word,
            data={"last": guess, "word": word},
            reward=1.0 if word == "found" else -0.1,
            terminated=word == "found",
            action_spans=(Span(name="guess", start=0, end=len(action)),),
            action_data={"guess": guess},
        )

    def outcome(self):
        return {"hidden": self.hidden}

    def close(self) -> None:
        pass


class Scripted:
    """Plays a function of (key, observation, memory)."""

    def __init__(self, name, function) -> None:
        self.name = name
        self.function = function

    def start(self, episodes):
        self.episodes = list(episodes)
        self.memory = [{} for _ in episodes]
        return self

    def act(self, requests):
        return [
            Action(text=str(self.function(self.episodes[each.row], each.observation, self.memory[each.row])))
            for each in requests
        ]

    def close(self) -> None:
        pass


def bisect(start, seen, memory):
    low, high = memory.get("range", (0, 9))
    last = seen.data.get("last")
    if last is not None:
        low, high = (last + 1, high) if seen.data["word"] == "higher" else (low, last - 1)
    memory["range"] = (low, high)
    return (low + high) // 2


def at_random(start, seen, memory):
    memory["turn"] = memory.get("turn", 0) + 1
    return child_seed(*start.key, memory["turn"]) % 10


def grade_quick(episodes: Sequence[Episode]) -> list[Reward]:
    rewards = []
    for episode in episodes:
        terms = tuple(
            (
                RewardTerm(
                    component="found" if turn.env_reward and turn.env_reward > 0 else "waste",
                    value=turn.env_reward or 0.0,
                ),
            )
            for turn in episode.turns
        )
        rewards.append(
            Reward(grader="quick", value=sum(term.value for turn in terms for term in turn), components={}, terms=terms)
        )
    return rewards


def guess_spec() -> EnvironmentSpec:
    return EnvironmentSpec(
        name="guess",
        summary="guess a hidden digit",
        make=Guess,
        graders={
            "quick": Grader(
                name="quick",
                summary="sum of rewards",
                weights={"found": 1, "waste": 1},
                compute=grade_quick,
                per_turn=True,
            )
        },
        default_grader="quick",
        conditions={"main": Condition(name="main", seeds=range(20))},
        train_task=lambda index: Task(environment="guess", seed=1000 + index),
        policies={"bisect": lambda _: Scripted("bisect", bisect), "random": lambda _: Scripted("random", at_random)},
        true_reward=lambda episode: episode.env_return,
        true_reward_name="return",
        max_turns=6,
    )


@pytest.fixture
def spec():
    return guess_spec()


@pytest.fixture
def scripted():
    return Scripted
