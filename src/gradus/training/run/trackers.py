"""Sends a run's metrics to TensorBoard and Weights & Biases, by name, besides its own ``metrics.jsonl``.

A tracker takes the records of docs/metrics.md as they are. Nothing is imported that was not asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from gradus.core import ConfigError

Log = Callable[[Mapping[str, Any]], None]


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record, nested names joined by a slash. Undefined figures are left out, not made 0.

    >>> figures({"kind": "step", "step": 3, "kl": None, "seconds": {"policy": 1.5}, "decoding": "greedy"})
    {'seconds/policy': 1.5}
    """
    return dict(_figures(record, ""))


def _figures(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step" and isfinite(value):
            yield f"{prefix}{name}", float(value)


def _group(record: Mapping[str, Any]) -> str:
    """Returns what stands before a figure's name: the kind of record, and how a validation was decoded."""
    return "/".join(str(record[name]) for name in ("kind", "decoding") if record.get(name)) or "run"


@dataclass(frozen=True)
class Trackers:
    """Writes a run's records to all ``names``, from the first record on. A context manager, and itself an ``on_record`` callback."""

    names: Sequence[str] = ()
    folder: Path = Path()
    run: str = "gradus"
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _logs: list[Log] = field(default_factory=list[Log], init=False)
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Give the record to each; its ``step`` is the x-axis. Keys that a tracker cannot show are left out."""
        if not self._logs:
            self._logs.extend(TRACKERS[name](self, record.get("step")) for name in self.names)
        for log in self._logs:
            log(record)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *error: Any) -> None:
        """Close each, whatever the others do."""
        self._closing.__exit__(*error)

    def tensorboard(self, step: int | None) -> Log:
        """Open event files that ``tensorboard --logdir FOLDER`` shows. Steps from ``step`` on replace those of a killed run."""
        from torch.utils.tensorboard.writer import SummaryWriter

        writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
        self._closing.callback(writer.close)
        rows = "".join(f"| {key} | {value} |\n" for key, value in self.config.items())
        writer.add_text(f"config/{self.run}", f"| setting | value |\n|---|---|\n{rows}")

        def log(record: Mapping[str, Any]) -> None:
            group, step = _group(record), record.get("step")
            for name, value in figures(record).items():
                writer.add_scalar(f"{group}/{name}", value, step)
            if record.get("kind") == "alert":
                writer.add_text("alert", f"{record.get('rule')}: {record.get('evidence')}", step)

        return log

    def wandb(self, step: int | None) -> Log:
        """Begin a run of Weights & Biases; offline unless WANDB_MODE says otherwise or a key is set. A resumed training begins another."""
        import wandb  # pyright: ignore[reportMissingImports] - an extra

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self.folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(project="gradus", name=self.run, dir=str(self.folder), config=dict(self.config), mode=mode)
        self._closing.callback(run.finish)
        # Validation comes after its step's record, so the step is a figure of its own and not W&B's running count.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

        def log(record: Mapping[str, Any]) -> None:
            group = _group(record)
            run.log(
                {"step": record.get("step"), **{f"{group}/{name}": value for name, value in figures(record).items()}}
            )

        return log


# Their packages, and the extras that bring them, have the same names.
TRACKERS: dict[str, Callable[[Trackers, int | None], Log]] = {
    "tensorboard": Trackers.tensorboard,
    "wandb": Trackers.wandb,
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for a name that is unknown or whose package is missing; imports none of them."""
    unknown = [each for each in names if each not in TRACKERS and each != "jsonl"]
    if unknown:
        raise ConfigError(f"unknown tracker {', '.join(unknown)}; there are jsonl (always on), {', '.join(TRACKERS)}")
    for each in names:
        if each in TRACKERS and find_spec(each) is None:
            raise ConfigError(f"the tracker {each} needs its package; pip install 'gradus-rl[{each}]'")


def open_trackers(
    names: Sequence[str], folder: Path | str, *, name: str = "gradus", config: Mapping[str, Any] | None = None
) -> Trackers:
    """The trackers called ``names`` (``jsonl`` is there always and may be named), writing into a run's folder.

    Nothing is written before the first record. Raises ConfigError for an unknown name or a package that is missing.
    """
    check_trackers(names)
    return Trackers([each for each in dict.fromkeys(names) if each in TRACKERS], Path(folder), name, config or {})
