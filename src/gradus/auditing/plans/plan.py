"""What a policy may answer, and policies that answer turn by turn: blindly, as another one but for some answers, or by a plan.

A plan is an answer looked up by the time. It may also bend a reflex: at the places that it keeps, the reflex's own word stands.
The search knows no environment. It takes the grammar if one is declared, and otherwise a pool: legal answers that the environment can draw, answers seen in episodes, and what was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from gradus.core import (
    Action,
    EnvironmentSpec,
    Episode,
    EpisodeStart,
    Grader,
    Observation,
    Policy,
    Request,
    Session,
    child_rng,
    child_seed,
)
from gradus.core.frozen_record import frozen_record

Table = npt.NDArray[np.intp]
Draw = Callable[[int], str]  # seed -> an answer drawn without looking


@frozen_record
class PlanSubject:
    """An environment under audit by policies. All that is drawn for it is keyed by ``seed``."""

    spec: EnvironmentSpec
    grader: Grader
    seed: int
    draw: Draw
    offered: Sequence[str]  # answers that the environment's texts offer, if it declares none


COPY = "\x00"  # stands for an answer that copies what was shown
_POOL = 24
_DRAWS = 8 * _POOL  # that must show a closed set of answers as a whole
_PLAIN = ("", "0", "1", "yes", "no", "A", "B", "<answer>1</answer>", "I do not know.")
_SHOWN = 60  # characters of an answer in the words of a plan


@frozen_record
class AnswerSpace:
    """``places``: the choices at each place of an answer; an answer is one choice a place, joined by spaces."""

    places: tuple[tuple[str, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of choices at each place."""
        return tuple(map(len, self.places))

    def text(self, choice: Sequence[int], kept: Sequence[str | None] = ()) -> str:
        """The answer that takes word ``choice[p]`` at place p. One past the last word stands for ``kept[p]``, None for nothing."""
        answer: list[str] = []
        for place, (words, index) in enumerate(zip(self.places, choice, strict=True)):
            word = words[index] if index < len(words) else kept[place]
            if word is not None:
                answer.append(word)
        return " ".join(answer)

    def parse(self, text: str) -> list[str | None]:
        """The word at each place of an answer, read from the end; None where no legal word stands."""
        n = len(self.places)
        if n == 1:  # a whole answer, which may have spaces
            return [text]
        words = text.split()[-n:]
        padded = [*[None] * (n - len(words)), *words]
        return [word if word in legal else None for word, legal in zip(padded, self.places, strict=True)]


def answer_space(
    spec: EnvironmentSpec, episodes: Iterable[Episode], *, seed: int, offered: Sequence[str] = ()
) -> AnswerSpace:
    """The grammar's places, or one place with a pool of whole answers. ``offered``: by the environment's texts, if nothing is declared."""
    if spec.language.grammar:
        return AnswerSpace(places=tuple(map(tuple, spec.language.grammar)))
    drawn: list[str] = []
    turns = [turn for episode in episodes for turn in episode.turns]
    rolled_out = list(dict.fromkeys(turn.action for turn in turns if turn.valid and turn.action))
    draw = spec.audit.random_answers
    if draw is not None:
        drawn = [draw(child_seed(seed, "audit", "pool", number) % 2**31) for number in range(_DRAWS)]
        answers = sorted(set(drawn))
        has_marks = any("<" in answer or "{" in answer for answer in answers)
        # A few words that are all there are, as the moves of a game: any other answer is invalid, or a random move.
        if 2 <= len(answers) <= _POOL and not has_marks and set(rolled_out) <= set(answers):
            return AnswerSpace(places=((*answers, ""),))  # to say nothing is a plan as well
    seen = _spread(rolled_out, _POOL)
    if offered:
        pool = dict.fromkeys((*offered, *seen, ""))
    else:
        pool = dict.fromkeys((*drawn[:_POOL], *seen, COPY, *_PLAIN))
    return AnswerSpace(places=(tuple(pool),))


def _spread(values: list[str], n: int) -> list[str]:
    """``n`` of ``values``, evenly over the list."""
    if len(values) <= n:
        return values
    return [values[i * len(values) // n] for i in range(n)]


@frozen_record
class Shape:
    """The form of a plan: ``steps`` stretches of the episode or a cycle of ``steps`` turns."""

    name: str
    steps: int = 1
    cycle: bool = False
    each: bool = False  # a column a turn, then the last one
    # One answer in that share of the episode; the other steps are a cycle that begins then, once something was reached.
    after: float = 0.0
    bends: str | None = None  # the name of the reflex whose words it may keep
    keeps: tuple[bool, ...] = ()  # the places at which it may

    def step(self, turn: int, horizon: int) -> int:
        """Column of the table for this turn."""
        if self.after:
            past = turn - ceil(self.after * horizon)
            if past < 0:
                return 0
            return 1 + past % (self.steps - 1)
        if self.cycle:
            return turn % self.steps
        if self.each:
            return min(self.steps - 1, turn)
        # Stretches of equal length; an episode that is longer than usual stays in the last.
        return min(self.steps - 1, turn * self.steps // max(1, horizon))


@frozen_record
class Plan:
    """Answers by the time of an episode."""

    space: AnswerSpace
    shape: Shape
    horizon: int  # turns of a usual episode
    table: Table  # (places, steps): the word at each place in each step, one past the last word to keep the reflex's

    def answer(self, turn: int, observation: Observation, reflex: str = "") -> str:
        """The answer of the plan; ``reflex`` is the answer of the policy that it bends."""
        words = self.table[:, self.shape.step(turn, self.horizon)].tolist()
        kept = self.space.parse(reflex) if self.shape.bends else ()
        return self.space.text(words, kept).replace(COPY, observation.text)

    @property
    def size(self) -> int:
        """Says how much there is to say: changes from step to step, and words that are not the reflex's own."""
        keep = np.array(self.space.sizes)[:, None]  # one past the last word
        words = (self.table != keep).sum()
        changes = (self.table[:, 1:] != self.table[:, :-1]).sum()
        return int(words + changes) + self.shape.steps

    def describe(self) -> str:
        """The plan in words."""
        marks = ["·"] * len(self.space.places)
        answers = [self.space.text(column.tolist(), marks) for column in self.table.T]
        steps = [answer.replace(COPY, "(what was shown)")[:_SHOWN] or "(nothing)" for answer in answers]
        words = " then ".join(steps)
        if self.shape.after:
            words = f"{steps[0]} then a cycle of {', '.join(steps[1:])}"
        elif self.shape.cycle:
            words = f"cycle of {', '.join(steps)}"
        if self.shape.bends:
            return f"{self.shape.bends} with {words}"
        return words


# Episode, turn, what is shown, and the other policy's answer ("" if there is none) -> answer.
TurnAnswer = Callable[[EpisodeStart, int, Observation, str], str]


class TurnPolicy:
    """Answers by a function, which hears what ``other`` says if there is another policy."""

    def __init__(self, answer: TurnAnswer, *, name: str, other: Policy | None = None) -> None:
        self.name = name
        self._answer = answer
        self._other = other

    def start(self, episodes: Sequence[EpisodeStart]) -> TurnSession:
        """Begins episodes."""
        other = self._other.start(episodes) if self._other else None
        return TurnSession(self._answer, episodes, other)


class TurnSession:
    """Counts the turns of each episode."""

    def __init__(self, answer: TurnAnswer, episodes: Sequence[EpisodeStart], other: Session | None) -> None:
        self._answer = answer
        self._episodes = episodes
        self._other = other
        self._turns = [0] * len(episodes)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Answers one turn of some episodes."""
        # The other policy is asked at every turn, also if its answer is not taken: it may keep count of its own.
        texts = [""] * len(requests)
        if self._other:
            texts = [action.text for action in self._other.act(requests)]
        actions: list[Action] = []
        for request, text in zip(requests, texts, strict=True):
            row = request.row
            answer = self._answer(self._episodes[row], self._turns[row], request.observation, text)
            actions.append(Action(text=answer))
            self._turns[row] += 1
        return actions

    def close(self) -> None:
        """Ends the other policy's session."""
        if self._other:
            self._other.close()


class RandomAnswers(TurnPolicy):
    """Answers drawn without looking, a fresh draw at every turn."""

    def __init__(self, draw: Draw) -> None:
        def answer(start: EpisodeStart, turn: int, observation: Observation, text: str) -> str:
            return draw(child_seed(0, *start.key, "answer", turn) % 2**31)

        super().__init__(answer, name="random")


class NoisyPolicy(TurnPolicy):
    """A policy that gives a random answer instead of its own with chance ``noise`` at each turn.

    It stands in for a warm-started student where none is at hand: right most of the time, and not always in the same way.
    """

    def __init__(self, policy: Policy, draw: Draw, *, noise: float) -> None:
        def answer(start: EpisodeStart, turn: int, observation: Observation, text: str) -> str:
            if child_rng(0, *start.key, "blend", turn).random() >= noise:
                return text
            return draw(child_seed(0, *start.key, "blend answer", turn) % 2**31)

        super().__init__(answer, name=f"{policy.name} with {noise:.0%} random answers", other=policy)


class PlanPolicy(TurnPolicy):
    """Rolls out many plans at once: the episodes of group g follow plan g // ``tasks``. ``reflex`` is the policy they bend."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        tasks: int,
        reflex: Policy | None = None,
        name: str = "search",
    ) -> None:
        def answer(start: EpisodeStart, turn: int, observation: Observation, text: str) -> str:
            return plans[start.group // tasks].answer(turn, observation, text)

        # Plans that bend nothing do not wait for the reflex, which may be slow.
        other = reflex if any(plan.shape.bends for plan in plans) else None
        super().__init__(answer, name=name, other=other)
