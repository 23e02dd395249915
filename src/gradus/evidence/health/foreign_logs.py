"""The logs of other trainers as records of a run: one table of names a source, told apart by their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import TypedDict

from gradus.core.documents import checked
from gradus.core.files import read_json, read_json_lines
from gradus.core.values import JsonDict
from gradus.evidence.health.history import History, Record
from gradus.evidence.health.rules import RULES


class _TrainerState(TypedDict):
    log_history: list[JsonDict]


class LogSource(NamedTuple):
    """The names in another trainer's log."""

    name: str
    step: str  # its key of the step's number
    figures: Mapping[str, Sequence[str]]  # our name -> its keys, whose values add up


# TRL 1.16, GRPOTrainer._metrics; steps count from 1.
TRL = LogSource(
    name="TRL",
    step="step",
    figures={
        "reward_mean": ("reward",),
        "reward_total_std": ("reward_std",),
        "zero_variance_groups": ("frac_reward_zero_std",),
        "truncated_episodes": ("completions/clipped_ratio",),
        "action_tokens_mean": ("completions/mean_length",),
        "loss": ("loss",),
        "grad_norm": ("grad_norm",),
        "lr": ("learning_rate",),
        "kl": ("kl",),
        "entropy": ("entropy",),
        "clip_fraction": ("clip_ratio/region_mean",),
        "logp_diff_mean": ("sampling/sampling_logp_difference/mean",),
    },
)
# tinker-cookbook 0.6, rl/metric_util.py and rl/metrics.py; its losses and gradients stay on the server.
COOKBOOK = LogSource(
    name="tinker-cookbook",
    step="progress/batch",
    figures={
        "reward_mean": ("env/all/reward/total",),
        "zero_variance_groups": ("env/all/by_group/frac_all_good", "env/all/by_group/frac_all_bad"),
        "episodes": ("env/all/total_episodes",),
        "action_tokens_mean": ("env/all/ac_tokens_per_turn",),
        "turns_mean": ("env/all/turns_per_episode",),
        "lr": ("optim/lr",),
        "entropy": ("optim/entropy",),
    },
)
# Its recipes/rl_loop.py; the gradient's norm is the server's.
COOKBOOK_LOOP = LogSource(
    name="tinker-cookbook",
    step="progress/batch",
    figures={"reward_mean": ("reward/total",), "grad_norm": ("grad_norm",), "lr": ("optim/lr",)},
)


def foreign_records(path: Path) -> tuple[LogSource, list[JsonDict]] | None:
    """The steps in another trainer's log (or in a folder that holds one), under our names; None if it is none of these.

    Raises StorageError for a file that cannot be read.
    """
    files = [path] if path.is_file() else [path / name for name in ("trainer_state.json", "metrics.jsonl")]
    for file in files:
        if not file.is_file() or file.suffix not in (".json", ".jsonl"):
            continue
        lines = _lines(file)
        for source in (TRL, COOKBOOK, COOKBOOK_LOOP):
            (reward,) = source.figures["reward_mean"]
            steps = [line for line in lines if reward in line and source.step in line]
            if steps:
                return source, [_record(source, line) for line in steps]
    return None


def _lines(file: Path) -> Sequence[Record]:
    """The lines of a log; TRL keeps them in its state."""
    if file.suffix == ".jsonl":
        return read_json_lines(file, growing=True)
    return checked(read_json(file), _TrainerState, str(file), partial=True).get("log_history", [])


def _record(source: LogSource, line: Record) -> JsonDict:
    """A step's figures; one whose keys are missing is left out."""
    record: JsonDict = {"kind": "step", "step": int(line[source.step])}
    for name, keys in source.figures.items():
        values = [line[key] for key in keys if isinstance(line.get(key), int | float)]
        if len(values) == len(keys):
            record[name] = sum(values)
    return record


def unmeasured(records: Sequence[Record]) -> dict[str, list[str]]:
    """Rule -> the figures that it asks for and that no record has, of the rules of steps that do not fire."""
    missing: dict[str, list[str]] = {}
    for rule in RULES:
        history = History(records, rule.kind)
        if rule.kind == "step" and rule.look(history) is None and history.missing:
            missing[rule.name] = sorted(history.missing)
    return missing
