"""The JSON documents that Gradus writes for machines, schema 2 (docs/evaluation.md, docs/doctor.md). An undefined figure is None."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = ["SCHEMA", "Condition", "Diagnoses", "Mean", "PairedMean", "Results"]

SCHEMA = 2


class Mean(TypedDict):
    """A mean with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None


class PairedMean(Mean):
    """A mean difference over pairs on the same seeds, with what stats.Paired holds."""

    bca_low: float | None
    bca_high: float | None
    wins: int
    ties: int
    win_low: float | None
    win_high: float | None
    episodes: int
    p: float | None
    p_holm: NotRequired[float | None]
    episodes_needed: NotRequired[int | None]


class Condition(TypedDict):
    """Policies and pairs under one condition. Their records hold a figure per measure, ``components``, ``curves`` and counts."""

    episodes: int
    summary: str
    clustered: bool
    policies: dict[str, dict[str, Any]]
    pairs: dict[str, dict[str, Any]]


class Results(TypedDict):
    """``results.json`` and what ``gradus eval --json`` writes."""

    schema: int
    environment: str
    grader: str
    checkpoint: str | None
    true_reward_name: str
    level: float
    seeds: list[int]
    conditions: dict[str, Condition]
    samples: NotRequired[int]
    graders: NotRequired[dict[str, dict[str, Any]]]
    power: NotRequired[dict[str, float]]
    promises: NotRequired[list[dict[str, Any]]]
    quick: NotRequired[bool]


class Diagnoses(TypedDict):
    """``doctor.json`` and what ``gradus doctor --json`` writes."""

    schema: int
    status: Literal["healthy", "warn", "stop"]
    summary: str
    diagnoses: list[dict[str, Any]]
