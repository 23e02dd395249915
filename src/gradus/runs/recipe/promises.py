"""Pairs of policies, and the promises of a recipe, which are checked from results and never written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from gradus.core import ConfigError
from gradus.core.documents import PromiseOutcome
from gradus.core.values import Json, as_mapping, is_table


def parse_pair(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Split ``a-b``, or ``a - b``. Raises ConfigError unless both are among ``names``."""
    # Names hold hyphens themselves, as grpo-greedy does, so that the text alone does not say where to split it.
    for first, second in product(names, repeat=2):
        if text.replace(" ", "") == f"{first}-{second}".replace(" ", ""):
            return first, second
    raise ConfigError(f"--pairs takes two of the policies as a-b, got {text!r}; there are {', '.join(names)}")


class Promise(BaseModel):
    """One promise about a figure of a policy or of a pair; exactly one of the two, and one of ``above`` and ``below``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    text: str
    """The promise in words."""
    aim: bool = False
    """It is an aim: it may be missed."""
    condition: str
    """The condition it is about."""
    policy: str | None = None
    """The policy it is about."""
    pair: str | None = None
    """The pair it is about, as `a - b`."""
    grader: str | None = None
    """The grader that judges; the run's own by default."""
    figure: str = "reward"
    """The figure, as in `true_reward` or `components.correct`."""
    bound: Literal["mean", "low", "high"] = "mean"
    """Its mean, or an end of its 95 % interval."""
    above: float | None = None
    """It must be above this."""
    below: float | None = None
    """It must be at most this."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Promise:
        """A promise is about one thing and has one threshold."""
        if (self.policy is None) == (self.pair is None):
            raise ValueError("a promise is about a policy or a pair, exactly one of them")
        if (self.above is None) == (self.below is None):
            raise ValueError("a promise has either above or below")
        return self

    def policies(self) -> list[str]:
        """Returns the policy, or the two of the pair."""
        return (self.policy or self.pair or "").split(" - ")


def check_promises(promises: Sequence[Promise], results: Json, main: str) -> list[PromiseOutcome]:
    """Hold promises against results by grader (``main`` if a promise names none); met is None if the figure is not there."""
    outcomes: list[PromiseOutcome] = []
    for promise in promises:
        grader = promise.grader or main
        value = _value(promise, results.get(grader, {}))
        above = promise.above is not None
        threshold = (promise.above if above else promise.below) or 0.0
        # A figure that is the threshold itself keeps "at most" and misses "above".
        met = None if value is None else (value > threshold) == above
        outcomes.append(
            {
                "text": promise.text,
                "aim": promise.aim,
                "condition": promise.condition,
                "figure": f"{promise.policy or promise.pair}: {grader} {promise.figure} {promise.bound}",
                "value": value,
                "direction": "above" if above else "at most",
                "threshold": threshold,
                "met": met,
            }
        )
    return outcomes


def _value(promise: Promise, results: Json) -> float | None:
    """The figure that a promise is about; None if the results do not have it."""
    kind, name = ("pairs", promise.pair) if promise.pair else ("policies", promise.policy or "")
    path = ["conditions", promise.condition, kind, name, *promise.figure.split(".")]
    entry: Any = results
    for part in path:
        entry = as_mapping(entry).get(part)
    return entry.get(promise.bound) if is_table(entry) else entry
