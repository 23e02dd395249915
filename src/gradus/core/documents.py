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
from gradus.core.values import JsonDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

SCHEMA = 2
MANIFEST = "manifest.json"  # in the folder of a run
T = TypeVar("T")


class Mean(TypedDict):
    """A mean with its interval, of 95 % unless it says another level. ``missing``: tasks that have no value, if there are such."""

    mean: float | None
    low: float | None
    high: float | None
    missing: NotRequired[int]
    by_seed: NotRequired[list[float | None]]  # the mean of each training seed, if there are several


class PairedMean(Mean):
    """A mean difference over pairs on the same seeds, and what it proves.

    ``level``: of the interval, such that all pairs of the document, at all ``looks``, err in at most 5 %; ``p`` is below 0.05 just if the
    interval leaves out 0. Both are None if the pairs are too few. ``units``: independent ones; ``differing``: those off the commonest difference.
    """

    level: float
    looks: int
    decision: Literal["better", "worse", "undecided", "too few"]
    p: float | None
    wins: int
    ties: int
    episodes: int
    units: int
    differing: int
    episodes_needed: NotRequired[int | None]
    clusters_needed: NotRequired[int | None]  # if episodes come in clusters: only more clusters add power


class TokenCosts(TypedDict):
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
    broken: NotRequired[int]  # by the model: they have a reward, see Grader.failed_reward
    ungraded: int
    truncated: int
    invalid_actions: float | None
    actions: NotRequired[dict[str, int]]  # how often each was chosen, if there are few different ones
    usage: NotRequired[TokenCosts]


_COUNTS = frozenset(PolicyFigures.__annotations__)  # all other keys of a policy are measures


def check_metrics(environment: str, names: Iterable[str]) -> None:
    """Raise ConfigError for metrics whose names are other figures of the results."""
    clashes = (_COUNTS | {"reward"}).intersection(names)
    if clashes:
        raise ConfigError(
            f"{environment} has metrics called {', '.join(sorted(clashes))}; these names are taken, rename them"
        )


class PairFigures(TypedDict, extra_items=PairedMean):
    """The difference of two policies under one condition: a paired mean per measure."""

    components: dict[str, PairedMean]


def means_of(policy: PolicyFigures) -> dict[str, Mean]:
    """Return the means of a policy by measure: reward, true_reward, env_reward and the environment's own."""
    return {name: cast(Mean, value) for name, value in policy.items() if name not in _COUNTS}


def differences_of(pair: PairFigures) -> dict[str, PairedMean]:
    """Return the paired means of a pair by measure."""
    return {name: cast(PairedMean, value) for name, value in pair.items() if name != "components"}


class ConditionResults(TypedDict):
    """Policies and pairs under one condition."""

    episodes: int
    summary: str
    clustered: bool
    policies: dict[str, PolicyFigures]
    pairs: dict[str, PairFigures]


ByCondition = dict[str, ConditionResults]


class GraderResults(TypedDict):
    """The conditions as one grader sees them."""

    conditions: ByCondition


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


class Power(TypedDict):
    """The difference for which each pair says how many episodes show it, with the power and the error that were allowed."""

    difference: float
    power: float
    alpha: float


class Results(TypedDict):
    """``results.json`` and what ``gradus eval --json`` writes."""

    schema: int
    environment: str
    grader: str
    checkpoint: str | None
    true_reward_name: str
    level: float
    seeds: list[int]
    conditions: ByCondition
    samples: NotRequired[int]  # of each task, if there are several
    graders: NotRequired[dict[str, GraderResults]]  # other graders of the same episodes
    power: NotRequired[Power]
    until_decided: NotRequired[Looks]
    promises: NotRequired[list[PromiseOutcome]]
    quick: NotRequired[bool]
    # GRPO's best checkpoint, which is evaluated, is the student that it began with: true, or the training seeds in which it is.
    best_is_the_start: NotRequired[bool | list[int]]
    # Of a comparison: runs of one training seed, whose own seed no interval takes into account; the training seeds of the run that
    # has the fewest, if runs have not the same; and runs at toy size.
    one_checkpoint: NotRequired[list[str]]
    fewest_seeds: NotRequired[int]
    quick_runs: NotRequired[list[str]]


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
    source: NotRequired[str]  # whose log it is, if another trainer wrote it
    not_measured: NotRequired[dict[str, list[str]]]  # rule -> figures that this log does not have


class CheckRecord(TypedDict, extra_items=Any):
    """One check of an audit."""

    name: str
    status: Literal["pass", "fail", "unresolved", "skip"]
    evidence: str
    measured: JsonDict
    remedy: NotRequired[str]  # of one that fails


class AuditPoint(TypedDict):
    """One policy of an audit. ``role``: as in ladder, exploit or search."""

    policy: str
    role: str
    reward: Mean
    true_reward: Mean


class AuditHack(TypedDict, extra_items=Any):
    """The plan that an audit's search found, and how much more it earns than the policy ``reflex``."""

    kind: str
    plan: str
    reflex: str
    seed: int
    reward: Mean
    true_reward: Mean
    unearned: Mean


class AuditExploit(TypedDict, extra_items=Any):
    """A completion that earns reward without a right answer."""

    completion: str
    reward: float


class AuditRecord(TypedDict, extra_items=Any):
    """``audit.json`` and what ``gradus audit --json`` writes."""

    schema: int
    environment: str
    grader: str
    verdict: Literal["pass", "fail", "unresolved"]
    summary: str
    true_reward_name: str
    condition: str
    episodes: int
    seed: int
    points: list[AuditPoint]
    exploit: AuditExploit | None
    review: list[JsonDict]  # accepted answers that a person has to judge
    checks: list[CheckRecord]
    hack: AuditHack | None


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


class GainPerDollar(TypedDict):
    """The difference of a pair in reward, divided by the US dollars of the run."""

    pair: str
    mean: float | None
    low: float | None
    high: float | None


class Costs(TypedDict):
    """``costs.json``. ``total``: US dollars of all stages, None without prices."""

    schema: int
    stages: list[StageCost]
    total: NotRequired[float | None]
    gain_per_dollar: NotRequired[GainPerDollar | None]


class GraderDescription(TypedDict):
    """A grader as a report describes it."""

    summary: str
    weights: dict[str, float]
    per_turn: bool


class Reference(TypedDict, extra_items=Any):
    """Published figures of an environment's original (docs/report.md).

    ``conditions``: condition -> column -> figure. ``ours``: column -> the run's ``policy``, or ``policy/figure``, that stands under it.
    """

    source: str
    note: str
    grader: str
    conditions: dict[str, dict[str, float | None]]
    ours: dict[str, str]


class Description(TypedDict, extra_items=Any):
    """``report/about.json``: the environment in words."""

    environment: str
    summary: str
    true_reward: str
    default_grader: str
    graders: dict[str, GraderDescription]
    conditions: dict[str, str]
    reference: NotRequired[Reference]
    run: NotRequired[JsonDict]  # facts of the run, name to value


class ShownMember(TypedDict, extra_items=Any):
    """One episode as a report draws it; docs/report.md says what its turns and its view hold."""

    turns: list[JsonDict]
    view: JsonDict | None


class ShownGroup(TypedDict, extra_items=Any):
    """The episodes of one policy that share a task."""

    policy: str
    condition: str
    seed: int
    members: list[ShownMember]


class ShownEpisodes(TypedDict):
    """``report/episodes.json.gz``: episodes to browse, and a row for each episode of the evaluation."""

    schema: int
    environment: str
    entries: list[ShownGroup]
    listed: NotRequired[list[JsonDict]]


class StageRecord(TypedDict):
    """One stage in ``manifest.json``. ``data``, ``code`` and ``outputs``: digests by name; ``seconds`` add up over resumed tries."""

    settings: JsonDict
    data: dict[str, str]
    code: dict[str, str]
    outputs: dict[str, str]
    done: bool
    seconds: float
    cost: JsonDict


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
        # Strict: a number that stands there as a text is damage too.
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        problems: list[Any] = error.errors(include_url=False)
        if partial:
            problems = [problem for problem in problems if problem["type"] != "missing"]
        if problems:
            raise StorageError(
                f"{name} is not what Gradus writes there: {_describe(problems[0])}; "
                "it was damaged or comes from another program or version"
            ) from error
    return cast(T, value)


def first_problem(error: ValidationError) -> str:
    """Return the first thing that pydantic found wrong: the place, what it should be, and what it is."""
    return _describe(error.errors(include_url=False)[0])


def _describe(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"])) or "the whole"
    return f"at {place}: {problem['msg'].lower()}, got {problem['input']!r:.60}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
