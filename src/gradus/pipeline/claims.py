"""What a recipe promises, and whether a run kept it: checked from results, never written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["Claim", "judge"]


class Claim(BaseModel):
    """One promise: a bound of a figure of a policy or a pair, on a condition under a grader, above or below a number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    condition: str
    policy: str | None = None
    pair: str | None = None
    grader: str | None = None
    figure: str = "reward"
    bound: Literal["mean", "low", "high"] = "mean"
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Claim:
        if (self.policy is None) == (self.pair is None):
            raise ValueError("a claim is about a policy or a pair, exactly one of them")
        if (self.above is None) == (self.below is None):
            raise ValueError("a claim has either above or below")
        return self


def judge(claims: Sequence[Claim], results: Mapping[str, Mapping[str, Any]], main: str) -> list[dict[str, Any]]:
    """Hold claims against results by grader (``main`` where a claim names none).

    Each answer has text, value, threshold, direction and met; met is None where the figure is not there.
    """
    judged: list[dict[str, Any]] = []
    for claim in claims:
        value = _value(claim, results.get(claim.grader or main, {}))
        met: bool | None = None
        if value is not None:
            met = value > claim.above if claim.above is not None else value <= (claim.below or 0.0)
        judged.append(
            {
                "text": claim.text,
                "condition": claim.condition,
                "figure": f"{claim.policy or claim.pair}: {claim.grader or main} {claim.figure} {claim.bound}",
                "value": value,
                "direction": "above" if claim.above is not None else "at most",
                "threshold": claim.above if claim.above is not None else claim.below,
                "met": met,
            }
        )
    return judged


def _value(claim: Claim, results: Mapping[str, Any]) -> float | None:
    condition = results.get("conditions", {}).get(claim.condition, {})
    kind, name = ("pairs", claim.pair) if claim.pair else ("policies", claim.policy)
    entry: Any = condition.get(kind, {}).get(name, {})
    for part in claim.figure.split("."):
        entry = entry.get(part) if isinstance(entry, Mapping) else None
        if entry is None:
            return None
    return entry.get(claim.bound) if isinstance(entry, Mapping) else entry
