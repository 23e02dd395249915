"""The records of a run's ``metrics.jsonl``: their types (docs/metrics.md), and reading them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gradus.core.documents import checked
from gradus.core.errors import StorageError
from gradus.core.files import read_json_lines
from gradus.core.values import JsonDict

# Of the stages in their order, and of a stage's own folder.
METRICS_FILES = ("sft/metrics.jsonl", "distill/metrics.jsonl", "grpo/metrics.jsonl", "metrics.jsonl")


class StepRecord(TypedDict):
    """One step of GRPO: a batch of fresh episodes, and one or more optimizer updates. A figure that is undefined is None."""

    kind: Literal["step"]
    step: int
    reward_mean: float | None
    reward_std: float | None
    reward_total_std: float | None
    true_reward_mean: float | None
    components: Mapping[str, float | None]
    component_variance: Mapping[str, float | None]
    metrics: Mapping[str, float | None]
    groups: int
    zero_variance_groups: float | None
    episodes: int
    failed_episodes: float | None
    broken_episodes: NotRequired[float | None]
    ungraded_episodes: NotRequired[float | None]
    reward_error: NotRequired[str]
    truncated_episodes: float | None
    turn_limit_episodes: NotRequired[float | None]
    invalid_actions: float | None
    distinct_actions: float | None
    answer_information: float | None
    turns_mean: float | None
    action_tokens_mean: float | None
    loss: float | None
    kl: float | None
    entropy: float | None
    clip_fraction: float | None
    ratio_max: float | None
    logp_diff_mean: float | None
    logp_diff_p99: float | None
    logp_diff_max: float | None
    logp_diff_limits: Mapping[str, float | None]
    grad_norm: float | None
    lr: float
    action_tokens: int
    trained_tokens: int
    tokens: int
    seconds: Mapping[str, float]
    tokens_per_second: float | None
    dropped_groups: NotRequired[int]
    loss_metrics: NotRequired[Mapping[str, float | None]]
    updates: NotRequired[int]
    mismatch_fraction: NotRequired[float | None]
    mismatch_ratio_max: NotRequired[float | None]
    mismatch_kl: NotRequired[float | None]
    stage: NotRequired[str | None]
    weights: NotRequired[Mapping[str, float]]


class ValidationRecord(TypedDict):
    """One pass over the held-out tasks; ``rewards`` and ``true_rewards`` have one value a task, in the same order every time."""

    kind: Literal["validation"]
    step: int
    decoding: Literal["sampled", "greedy"]
    condition: str | None
    reward_mean: float | None
    true_reward_mean: float | None
    components: Mapping[str, float | None]
    metrics: Mapping[str, float | None]
    rewards: list[float | None]
    true_rewards: list[float | None]
    episodes: int
    best: bool


class AlertRecord(TypedDict):
    """A rule of the doctor that fired while the run went on, and what ``on_alert`` did."""

    kind: Literal["alert"]
    step: int
    rule: str
    severity: Literal["info", "warn", "stop"]
    evidence: str
    remedy: str
    action: str


class SftRecord(TypedDict):
    """One logged step of SFT or distillation; losses in nats per action token."""

    kind: Literal["sft", "distill"]
    step: int
    epoch: int
    loss: float | None
    accuracy: float | None
    validation_loss: NotRequired[float]
    validation_accuracy: NotRequired[float | None]
    grad_norm: float | None
    lr: float
    tokens: int
    seconds: float
    tokens_per_second: float | None


class LawsRecord(TypedDict):
    """The laws that were checked at a step: the largest difference of each as a share of what rounding explains, and why others were not."""

    kind: Literal["laws"]
    step: int
    worst: Mapping[str, float]
    not_measured: Mapping[str, str]


KINDS = {
    "step": StepRecord,
    "validation": ValidationRecord,
    "alert": AlertRecord,
    "laws": LawsRecord,
    "sft": SftRecord,
    "distill": SftRecord,
}


def read_records(path: Path) -> list[JsonDict]:
    """Return the records of a metrics file. Raises StorageError for a damaged line, or a value of another type; keys may be absent.

    A last line that is cut off is left out: the run may be writing it just now.
    """
    records = read_json_lines(path, growing=True)
    # A kind that is not known is of a newer version, or of somebody's own, and is passed on unchecked.
    for number, record in enumerate(records, start=1):
        kind = str(record.get("kind"))
        if kind in KINDS:
            checked(record, KINDS[kind], f"{path} record {number}", partial=True)
    return records


def metrics_files(run: Path | str) -> list[Path]:
    """Return the metrics files of a run folder (in the order of its stages), of a stage's folder, or the one file that was named."""
    path = Path(run)
    return [path] if path.is_file() else [path / name for name in METRICS_FILES if (path / name).is_file()]


def read_metrics(run: Path | str) -> list[JsonDict]:
    """All records of :func:`metrics_files`. Raises StorageError if there is no file, or if the lines are not records of a run."""
    records = [record for file in metrics_files(run) for record in read_records(file)]
    if not any(str(record.get("kind")) in KINDS for record in records):
        raise StorageError(
            f'no metrics of a run in {run}; expected metrics.jsonl as `gradus run` and `gradus grpo` write it, with "kind" one of {", ".join(KINDS)}'
        )
    return records
