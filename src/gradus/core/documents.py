"""The JSON documents that Gradus writes, schema 2 (docs/evaluation.md, docs/doctor.md), and the one place where they are read.

An undefined figure is None. What is read is checked as the record that it should be, so that a damaged or foreign file ends in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeVar, cast

from typing_extensions import TypedDict

from gradus.core.errors import ConfigError, StorageError
from gradus.core.files import read_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

SCHEMA = 2
MANIFEST = "manifest.json"  # in the folder of a run
T = TypeVar("T")


class Mean(TypedDict):
    """A mean with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    by_seed: NotRequired[list[float | None]]  # the mean of each training seed, if there are several


class PairedMean(Mean):
    """A mean difference over pairs on the same seeds, with what stats.Paired holds."""

    wins: int
    ties: int
    win_low: float | None
    win_high: float | None
    episodes: int
    p: float | None
    p_holm: NotRequired[float | None]
    episodes_needed: NotRequired[int | None]
    clusters_needed: NotRequired[int | None]  # if episodes come in clusters: only more clusters add power


class Usage(TypedDict):
    """Tokens and money of a policy's episodes."""

    prompt_tokens: int
    completion_tokens: int
    cost: float | None


class PolicyFigures(TypedDict, extra_items=Mean):
    """One policy under one condition: a mean per measure (reward, true_reward and the environment's own), and counts."""

    components: dict[str, Mean]
    curves: dict[str, list[Mean]]
    episodes: int
    failed: int
    failures: dict[str, int]
    first_failure: NotRequired[str]  # what went wrong first, if anything did
    ungraded: int
    truncated: int
    invalid_actions: float | None
    actions: NotRequired[dict[str, int]]  # how often each was chosen, if there are few different ones
    usage: NotRequired[Usage]


_FIGURES = PolicyFigures.__annotations__.keys() | {"reward"}


def check_metrics(environment: str, names: Iterable[str]) -> None:
    """Raise ConfigError for metrics whose names are other figures of the results."""
    if clash := _FIGURES.intersection(names):
        raise ConfigError(
            f"{environment} has metrics called {', '.join(sorted(clash))}; these names are taken, rename them"
        )


class PairFigures(TypedDict, extra_items=PairedMean):
    """The difference of two policies under one condition: a paired mean per measure."""

    components: dict[str, PairedMean]


class Condition(TypedDict):
    """Policies and pairs under one condition."""

    episodes: int
    summary: str
    clustered: bool
    policies: dict[str, PolicyFigures]
    pairs: dict[str, PairFigures]


class Conditions(TypedDict):
    """The conditions as one grader sees them."""

    conditions: dict[str, Condition]


class PromiseOutcome(TypedDict):
    """One promise of a recipe about a figure, and the figure. An ``aim`` may be missed."""

    text: str
    aim: bool
    condition: str
    figure: str
    value: float | None
    direction: str
    threshold: float
    met: bool | None


class Looks(TypedDict):
    """An evaluation that stops once it is decided: the look at which it stopped, the tasks that it saw, and the most it would have seen."""

    looks: int
    tasks: int
    of: int


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
    graders: NotRequired[dict[str, Conditions]]
    power: NotRequired[dict[str, float]]
    until_decided: NotRequired[Looks]
    one_checkpoint: NotRequired[
        list[str]
    ]  # runs of one training seed in a comparison, whose own seed no interval takes into account
    fewest_seeds: NotRequired[
        int
    ]  # training seeds of the run that has the fewest, if runs of a comparison have not the same
    quick_runs: NotRequired[list[str]]  # runs at toy size in a comparison
    promises: NotRequired[list[PromiseOutcome]]
    quick: NotRequired[bool]
    best_is_the_start: NotRequired[
        bool | list[int]
    ]  # GRPO's best checkpoint, which is evaluated, is the student that it began with


class DiagnosisRecord(TypedDict, extra_items=Any):
    """One finding of the doctor."""

    rule: str
    severity: str
    evidence: str
    remedy: str


class Diagnoses(TypedDict):
    """``doctor.json`` and what ``gradus doctor --json`` writes."""

    schema: int
    status: Literal["healthy", "warn", "stop"]
    summary: str
    diagnoses: list[DiagnosisRecord]


class Check(TypedDict, extra_items=Any):
    """One check of an audit."""

    name: str
    status: Literal["pass", "fail", "unresolved", "skip"]
    evidence: str


class AuditRecord(TypedDict, extra_items=Any):
    """``audit.json`` and what ``gradus audit --json`` writes."""

    schema: int
    environment: str
    grader: str
    verdict: Literal["pass", "fail", "unresolved"]
    summary: str
    checks: list[Check]


class StageCost(TypedDict, extra_items=Any):
    """The cost of one stage of a run."""

    stage: str
    seconds: float
    episodes: NotRequired[int]
    steps: NotRequired[int]
    tokens: NotRequired[int]
    prompt_tokens: NotRequired[int]
    completion_tokens: NotRequired[int]
    cost: NotRequired[float | None]


class Costs(TypedDict):
    """``costs.json``."""

    schema: int
    stages: list[StageCost]


class GraderDescription(TypedDict):
    """A grader as a report describes it."""

    summary: str
    weights: dict[str, float]
    per_turn: bool


class Description(TypedDict, extra_items=Any):
    """``report/about.json``: the environment in words."""

    environment: str
    summary: str
    true_reward: str
    default_grader: str
    graders: dict[str, GraderDescription]
    conditions: dict[str, str]
    reference: dict[str, Any]
    run: NotRequired[dict[str, Any]]


class StageRecord(TypedDict):
    """One stage in ``manifest.json``. ``data``, ``code`` and ``outputs``: digests by name; ``seconds`` add up over resumed tries."""

    settings: dict[str, Any]
    data: dict[str, str]
    code: dict[str, str]
    outputs: dict[str, str]
    done: bool
    seconds: float
    cost: dict[str, Any]


class ManifestDocument(TypedDict, extra_items=Any):
    """``manifest.json`` of a run folder. ``summaries``: digests of files that are made of several stages."""

    stages: dict[str, StageRecord]
    summaries: dict[str, str]


Splits = dict[str, list[str]]  # splits.json: role -> ids of its tasks


def read_document(path: Path, kind: type[T]) -> T:
    """Return the document in a file. Raises StorageError if it is not there, not JSON, or not a ``kind``."""
    return checked(read_json(path), kind, str(path))


def checked(value: Any, kind: type[T], name: str, *, partial: bool = False) -> T:
    """``value`` as a ``kind``; with ``partial`` keys may be absent. Raises StorageError that names the first place that is something else."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value, strict=True)
        return cast(T, value)
    except ValidationError as error:
        errors = [each for each in error.errors(include_url=False) if not (partial and each["type"] == "missing")]
        if not errors:
            return cast(T, value)
        raise StorageError(
            f"{name} is not what Gradus writes there: {_told(errors[0])}; "
            "it was damaged or comes from another program or version"
        ) from error


def first_problem(error: ValidationError) -> str:
    """Return the first thing that pydantic found wrong: the place, what it should be, and what it is."""
    return _told(error.errors(include_url=False)[0])


def _told(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"])) or "the whole"
    return f"at {place}: {problem['msg'].lower()}, got {problem['input']!r:.60}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
