"""The scripted teacher: believes what the lines told it, plans for whom it believes in, and looks where it knows little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradus.core import (
    AnswerDistribution,
    ConfigError,
    EpisodeStart,
    Policy,
    Request,
    Session,
    SpanDistribution,
)
from gradus_worlds.rhythm.persons import BELIEFS, TARGET_MODIFIERS
from gradus_worlds.rhythm.posterior import Posterior, ShownStep, normalised
from gradus_worlds.rhythm.scripted import SessionPolicy, WeekSession, heuristic_action, step_of
from gradus_worlds.rhythm.tables import (
    ACTION_INDEX,
    ACTIONS,
    ANOMALY_GRID,
    EVENTS,
    METERS,
    NOTHING,
    SIGNATURE,
    SLOTS,
    STEPS,
    Array,
)
from gradus_worlds.rhythm.text import PLAIN, ShownFigures, Wording, answer_text, reasoning_text, shown_figures
from gradus_worlds.rhythm.world import Situation, action_values, effect_tables, plan

# What a unit of variance resolved is worth, in episode reward over a whole week: to the belief's reward, and to the plan.
_BELIEF_VALUE = 40.0
_PLAN_VALUE = 1.0
_HORIZON = 2  # two steps ahead lose 2 % of eight steps' reward, and a small student can follow them
_RESOLUTION = ANOMALY_GRID / 3  # an effect this large is seen about half the time
# What the teacher states: a digit by how near it is to the posterior mean, which minimizes the expected squared error, and an action by
# what the best plan that begins with it is worth. Digits of the posterior itself would have twice the error of its mean.
_DIGIT_SPREAD = 0.4  # standard deviation, in digits: who draws from it loses 0.005 of v3
_ACTION_TEMPERATURE = 0.05  # in reward of a step: who draws from it loses 0.015 of v3
_UNSURE_VARIANCE = 0.005  # of a belief target: beyond it the reasoning says that it is not sure
_PROBING_STEPS = len(SLOTS)  # on Monday it says that it has to find out

_SENSITIVITY = np.abs(SIGNATURE[:, :, : len(ACTIONS)]).max(axis=3)  # (9, 4, 10)
_WORTH = _BELIEF_VALUE * (TARGET_MODIFIERS**2).sum(axis=1) + _PLAN_VALUE  # (9,)


def information_bonus(variance: Array, step: int) -> Array:
    """Returns what each action is expected to teach, in reward, (R, 10), from the modifiers' variance (R, 9)."""
    sensitivity = _SENSITIVITY[:, step % len(SLOTS)]  # (9, 10)
    # Variance that an observation of known resolution takes away, as in a Kalman filter.
    signal = variance[:, :, None] * sensitivity**2  # (R, 9, 10)
    resolved = signal / (signal + _RESOLUTION**2) * variance[:, :, None]
    worth = np.einsum("rka,k->ra", resolved, _WORTH)
    # What is learnt late has fewer steps left in which it is of use.
    return worth * (1.0 - step / STEPS)


class BayesSession(WeekSession):
    """The teacher in the middle of many weeks. It never touches an environment: all it knows was shown to it."""

    def __init__(
        self,
        keys: Sequence[tuple[int | str, ...]],
        wording: Wording = PLAIN,
        *,
        heuristic: bool = False,
        reasoning: bool = False,
    ) -> None:
        super().__init__(wording)
        self.posterior = Posterior(keys)
        self._heuristic = heuristic
        self._reasoning = reasoning
        self._lines: dict[int, ShownFigures] = {}  # the last line of each row
        self._steps: dict[int, int] = {}  # the last step that a row has learned from

    def distributions(self, requests: Sequence[Request]) -> Sequence[AnswerDistribution]:
        """Says how good each digit of a belief and each action is, as probabilities: a softmax of what they are expected to earn."""
        situation = self._situation(requests)
        beliefs = self.posterior.belief([request.row for request in requests])
        misses = np.arange(10) - 9 * beliefs[:, :, None]  # (R, 3, 10)
        digits = normalised(-0.5 * (misses / _DIGIT_SPREAD) ** 2).tolist()
        values = action_values(situation, horizon=_HORIZON)
        actions = normalised(values / _ACTION_TEMPERATURE).tolist()
        levels = tuple(self.wording.levels)
        distributions: list[AnswerDistribution] = []
        for shares, action in zip(digits, actions, strict=True):
            named = zip(BELIEFS, shares, strict=True)
            spans = [SpanDistribution(name, levels, share) for name, share in named]
            distributions.append((*spans, SpanDistribution("action", self.wording.actions, action)))
        return distributions

    def answers(self, requests: Sequence[Request]) -> list[str]:
        situation = self._situation(requests)
        rows = [request.row for request in requests]
        beliefs: list[list[float]] = self.posterior.belief(rows).tolist()
        if self._heuristic:
            actions = [heuristic_action(request.observation.data) for request in requests]
        else:
            best: list[int] = plan(situation, horizon=_HORIZON).tolist()
            actions = [ACTIONS[index] for index in best]
        reasons: Sequence[str | None] = [None] * len(rows)
        if self._reasoning:
            reasons = self._reasons(situation.step, rows, beliefs)
        return list(map(answer_text, actions, beliefs, reasons))

    def _situation(self, requests: Sequence[Request]) -> Situation:
        """Learns from what the requests show, and returns what to plan with: the mean person, and what each action would teach."""
        self.learn(requests)
        step = step_of(requests)
        rows = [request.row for request in requests]
        mean, variance = self.posterior.modifier_moments(rows)
        return Situation(
            step=step,
            meters=np.array([self._lines[row].meters for row in rows]),
            weights=self.posterior.weights_mean(rows),
            effects=effect_tables(mean),
            bonus=information_bonus(variance, step),
        )

    def _reasons(self, step: int, rows: list[int], beliefs: list[list[float]]) -> list[str]:
        _, variance = self.posterior.modifier_moments(rows)
        unsure = variance @ TARGET_MODIFIERS**2 > _UNSURE_VARIANCE  # (R, 3)
        dearest: list[int] = self.posterior.weights_mean(rows).argmax(axis=1).tolist()
        reasons: list[str] = []
        for belief, doubts, meter in zip(beliefs, unsure.tolist(), dearest, strict=True):
            probing = any(doubts) and step < _PROBING_STEPS
            reasons.append(reasoning_text(belief, doubts, METERS[meter], probing=probing))
        return reasons

    def learn(self, requests: Sequence[Request]) -> None:
        """Update on the step that led to these observations, all of one step of the week; once, however often it is shown."""
        step: int = requests[0].observation.data["step"]
        # A session may be asked twice about one step: for distributions, and for answers.
        unseen = [request for request in requests if self._steps.get(request.row) != step]
        fresh = {request.row: request for request in unseen}
        lines = {row: shown_figures(request.observation.data) for row, request in fresh.items()}
        if step > 0 and fresh:
            records = [request.observation.data["history"][-1] for request in fresh.values()]
            actions = [NOTHING if record["action"] is None else ACTION_INDEX[record["action"]] for record in records]
            last_step = ShownStep(
                step=step - 1,
                actions=np.array(actions),
                events=np.array([EVENTS.index(record["event"]) for record in records]),
                before=np.array([self._lines[row].meters for row in fresh]),
                after=np.array([line.meters for line in lines.values()]),
                anomalies=np.array([line.anomalies for line in lines.values()]),
                rewards=np.array([line.reward for line in lines.values()]),
            )
            self.posterior.update(list(fresh), last_step)
        # The next step is read against these levels.
        self._lines |= lines
        self._steps |= dict.fromkeys(fresh, step)


def _teacher(name: str, wording: Wording, *, heuristic: bool = False, reasoning: bool = False) -> Policy:
    def opened(starts: Sequence[EpisodeStart]) -> Session:
        return BayesSession([start.key for start in starts], wording, heuristic=heuristic, reasoning=reasoning)

    return SessionPolicy(name, opened)


def bayes(wording: Wording, argument: str | None) -> Policy:
    """``bayes`` or ``bayes:reasoning``: states the posterior mean and plans on it."""
    if argument not in (None, "reasoning"):
        raise ConfigError(f"bayes takes no argument or 'reasoning', got {argument!r}")
    return _teacher("bayes:reasoning", wording, reasoning=True) if argument else _teacher("bayes", wording)


def heuristic_and_bayes(wording: Wording, _: str | None) -> Policy:
    """The reflex, with a true belief."""
    return _teacher("heuristic+bayes", wording, heuristic=True)
