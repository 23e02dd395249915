"""The scripted teacher: believes what the lines told it, plans for whom it believes in, and looks where it knows little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from gradus.core import (
    Action,
    AnswerDistribution,
    ConfigError,
    Policy,
    Request,
    SpanDistribution,
)
from gradus_worlds.rhythm.persons import BELIEFS, TARGET_MODIFIERS
from gradus_worlds.rhythm.posterior import Evidence, Posterior
from gradus_worlds.rhythm.scripted import SessionPolicy, by_step, heuristic_action
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
)
from gradus_worlds.rhythm.text import answer_text, reasoning_text, shown
from gradus_worlds.rhythm.world import action_values, effect_tables, plan

Array = NDArray[np.float64]

# What a unit of variance resolved is worth, in episode reward over a whole week: to the belief's reward, and to the plan.
_BELIEF_VALUE = 40.0
_PLAN_VALUE = 1.0
_HORIZON = 2  # two steps ahead lose 2 % of eight steps' reward, and a small student can follow them
_RESOLUTION = ANOMALY_GRID / 3  # an effect this large is seen about half the time
# What the teacher states: a digit by how near it is to the posterior mean, which minimizes the expected squared error, and an action by
# what the best plan that begins with it is worth. Digits of the posterior itself would have twice the error of its mean.
_DIGIT_SPREAD = 0.4  # standard deviation, in digits: who draws from it loses 0.005 of v3
_ACTION_TEMPERATURE = 0.05  # in reward of a step: who draws from it loses 0.015 of v3
_DIGITS = tuple("0123456789")
_UNSURE_VARIANCE = 0.005  # of a belief target: beyond it the reasoning says that it is not sure
_PROBING_STEPS = len(SLOTS)  # on Monday it says that it has to find out

_SENSITIVITY: Array = np.abs(SIGNATURE[:, :, : len(ACTIONS)]).max(axis=3)  # (9, 4, 10)
_WORTH: Array = _BELIEF_VALUE * (TARGET_MODIFIERS**2).sum(axis=1) + _PLAN_VALUE  # (9,)


def information_bonus(variance: Array, step: int) -> Array:
    """Returns what each action is expected to teach, in reward, (R, 10), from the modifiers' variance (R, 9)."""
    signal = variance[:, :, None] * _SENSITIVITY[:, step % len(SLOTS)] ** 2  # (R, 9, 10)
    resolved = signal / (signal + _RESOLUTION**2) * variance[:, :, None]
    return np.einsum("rka,k->ra", resolved, _WORTH) * (1.0 - step / STEPS)


class BayesSession:
    """The teacher in the middle of many weeks. It never touches an environment: all it knows was shown to it."""

    def __init__(
        self, keys: Sequence[tuple[int | str, ...]], *, heuristic: bool = False, reasoning: bool = False
    ) -> None:
        self.posterior = Posterior(keys)
        self._heuristic, self._reasoning = heuristic, reasoning
        self._meters: dict[int, list[float]] = {}
        self._seen: dict[int, int] = {}  # the last step that a row has learned from

    def distributions(self, requests: Sequence[Request]) -> Sequence[AnswerDistribution]:
        """Says how good each digit of a belief and each action is, as probabilities: a softmax of what they are expected to earn."""
        stated: list[AnswerDistribution] = [()] * len(requests)
        for step, places in by_step(requests).items():
            rows = [requests[place].row for place in places]
            self.learn([requests[place] for place in places])
            away = np.arange(10) - 9 * self.posterior.belief(rows)[:, :, None]  # (R, 3, 10)
            digits = softmax(-0.5 * (away / _DIGIT_SPREAD) ** 2, axis=2).tolist()
            actions = softmax(self._values(step, rows) / _ACTION_TEMPERATURE, axis=1).tolist()
            for place, beliefs, action in zip(places, digits, actions, strict=True):
                spans = [SpanDistribution(name, _DIGITS, each) for name, each in zip(BELIEFS, beliefs, strict=True)]
                stated[place] = (*spans, SpanDistribution("action", ACTIONS, action))
        return stated

    def act(self, requests: Sequence[Request]) -> Sequence[Action]:
        answers = [Action()] * len(requests)
        for step, places in by_step(requests).items():
            for place, text in zip(places, self._answers(step, [requests[place] for place in places]), strict=True):
                answers[place] = Action(text=text)
        return answers

    def close(self) -> None: ...

    def _answers(self, step: int, requests: Sequence[Request]) -> list[str]:
        rows = [request.row for request in requests]
        self.learn(requests)
        beliefs = self.posterior.belief(rows).tolist()
        if self._heuristic:
            names = [heuristic_action(request.observation.data) for request in requests]
        else:
            names = self._planned(step, rows)
        reasons = self._reasons(step, rows, beliefs) if self._reasoning else [None] * len(rows)
        return [answer_text(*parts) for parts in zip(names, beliefs, reasons, strict=True)]

    def _planned(self, step: int, rows: list[int]) -> list[str]:
        meters, weights, effects, bonus = self._situation(step, rows)
        best = plan(meters, weights, effects, step, bonus=bonus, horizon=_HORIZON)
        return [ACTIONS[index] for index in best.tolist()]

    def _values(self, step: int, rows: list[int]) -> Array:
        """Returns the worth of each action, (R, 10)."""
        meters, weights, effects, bonus = self._situation(step, rows)
        return action_values(meters, weights, effects, step, bonus=bonus, horizon=_HORIZON)

    def _situation(self, step: int, rows: list[int]) -> tuple[Array, Array, Array, Array]:
        """Meters, weights and effects to plan with, and what each action would teach."""
        mean, variance = self.posterior.modifier_moments(rows)
        meters = np.array([self._meters[row] for row in rows])
        return meters, self.posterior.weights_mean(rows), effect_tables(mean), information_bonus(variance, step)

    def _reasons(self, step: int, rows: list[int], beliefs: list[list[float]]) -> list[str]:
        _, variance = self.posterior.modifier_moments(rows)
        unsure = variance @ TARGET_MODIFIERS**2 > _UNSURE_VARIANCE  # (R, 3)
        dearest = self.posterior.weights_mean(rows).argmax(axis=1)
        return [
            reasoning_text(belief, doubts, METERS[meter], probing=bool(any(doubts)) and step < _PROBING_STEPS)
            for belief, doubts, meter in zip(beliefs, unsure.tolist(), dearest.tolist(), strict=True)
        ]

    def learn(self, requests: Sequence[Request]) -> None:
        """Update on the step that led to these observations, all of one step of the week; once, however often it is shown."""
        requests = [request for request in requests if self._seen.get(request.row) != request.observation.data["step"]]
        if not requests:
            return
        rows = [request.row for request in requests]
        data = [request.observation.data for request in requests]
        lines = [shown(record) for record in data]
        if data[0]["step"] > 0:
            last = [record["history"][-1] for record in data]
            evidence = Evidence(
                slots=np.full(len(rows), (data[0]["step"] - 1) % len(SLOTS)),
                actions=np.array([NOTHING if r["action"] is None else ACTION_INDEX[r["action"]] for r in last]),
                events=np.array([EVENTS.index(r["event"]) for r in last]),
                before=np.array([self._meters[row] for row in rows]),
                after=np.array([line[0] for line in lines]),
                anomalies=np.array([line[1] for line in lines]),
                rewards=np.array([line[2] for line in lines]),
            )
            self.posterior.update(rows, evidence)
        self._meters.update({row: line[0] for row, line in zip(rows, lines, strict=True)})
        self._seen |= dict.fromkeys(rows, int(data[0]["step"]))


def bayes(argument: str | None) -> Policy:
    """``bayes`` or ``bayes:reasoning``: states the posterior mean and plans on it."""
    if argument not in (None, "reasoning"):
        raise ConfigError(f"bayes takes no argument or 'reasoning', got {argument!r}")
    name, reasoning = "bayes:reasoning" if argument else "bayes", argument is not None
    return SessionPolicy(name, lambda episodes: BayesSession([each.key for each in episodes], reasoning=reasoning))


def heuristic_and_bayes(argument: str | None) -> Policy:
    """The reflex, with a true belief."""
    return SessionPolicy(
        "heuristic+bayes", lambda episodes: BayesSession([each.key for each in episodes], heuristic=True)
    )
