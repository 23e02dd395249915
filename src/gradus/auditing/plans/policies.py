"""Policies of the audit that answer turn by turn: blindly, or as another policy does but for some of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradus.core import Action, EpisodeStart, Observation, Policy, Request, Session, child_rng, child_seed

# Episode, turn, what is shown, and the other policy's answer ("" if there is none) -> answer.
Answer = Callable[[EpisodeStart, int, Observation, str], str]


class TurnPolicy:
    """Answers by a function, which is told what ``other`` says if there is another policy."""

    def __init__(self, answer: Answer, *, name: str, other: Policy | None = None) -> None:
        self.name = name
        self._answer, self._other = answer, other

    def start(self, episodes: Sequence[EpisodeStart]) -> TurnSession:
        return TurnSession(self._answer, episodes, self._other.start(episodes) if self._other else None)


class TurnSession:
    """Counts the turns of each episode."""

    def __init__(self, answer: Answer, episodes: Sequence[EpisodeStart], other: Session | None) -> None:
        self._answer, self._episodes, self._other = answer, episodes, other
        self._turns = [0] * len(episodes)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        said = [action.text for action in self._other.act(requests)] if self._other else [""] * len(requests)
        actions: list[Action] = []
        for request, text in zip(requests, said, strict=True):
            row = request.row
            answer = self._answer(self._episodes[row], self._turns[row], request.observation, text)
            actions.append(Action(text=answer))
            self._turns[row] += 1
        return actions

    def close(self) -> None:
        if self._other:
            self._other.close()


class RandomAnswers(TurnPolicy):
    """Answers drawn without looking, a fresh draw at every turn."""

    def __init__(self, draw: Callable[[int], str], *, name: str = "random") -> None:
        super().__init__(
            lambda start, turn, shown, said: draw(child_seed(0, *start.key, "answer", turn) % 2**31), name=name
        )


class NoisyPolicy(TurnPolicy):
    """A policy that gives a random answer instead of its own with chance ``noise`` at each turn.

    It stands in for a warm-started student where none is at hand: right most of the time, and not always in the same way.
    """

    def __init__(self, policy: Policy, draw: Callable[[int], str], *, noise: float) -> None:
        def answer(start: EpisodeStart, turn: int, shown: Observation, said: str) -> str:
            if child_rng(0, *start.key, "blend", turn).random() >= noise:
                return said
            return draw(child_seed(0, *start.key, "blend answer", turn) % 2**31)

        super().__init__(answer, name=f"{policy.name} with {noise:.0%} random answers", other=policy)
