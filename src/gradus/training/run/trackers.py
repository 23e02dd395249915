"""Where a run's metrics go besides its own ``metrics.jsonl``: TensorBoard and Weights & Biases, by name.

A tracker takes the records of docs/metrics.md as they are. Nothing is imported that was not asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gradus.core import ConfigError


class Tracker(Protocol):
    """Something that takes a run's metrics records."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take one record; its ``step`` is the x-axis. Keys it cannot show are left out."""
        ...

    def close(self) -> None:
        """Write down what is pending."""
        ...


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
    """What stands before a figure's name: the kind of record, and how a validation was decoded."""
    return "/".join(str(record[name]) for name in ("kind", "decoding") if record.get(name)) or "run"


class TensorBoardTracker:
    """Event files that ``tensorboard --logdir FOLDER`` shows, begun with the first record. Needs the extra ``tensorboard``."""

    def __init__(self, folder: Path, *, name: str, config: Mapping[str, Any]) -> None:
        check_trackers(["tensorboard"])
        self._folder, self._name, self._config = folder / "tensorboard", name, config
        self._writer: Any = None

    def log(self, record: Mapping[str, Any]) -> None:
        group, step = _group(record), record.get("step")
        if self._writer is None:
            self._writer = self._open(step)
        for name, value in figures(record).items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
        if record.get("kind") == "alert":
            self._writer.add_text("alert", f"{record.get('rule')}: {record.get('evidence')}", step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, step: int | None) -> Any:
        """Steps that a resumed run takes again replace those that it was killed behind."""
        from torch.utils.tensorboard.writer import SummaryWriter

        writer = SummaryWriter(str(self._folder), purge_step=step)
        rows = "".join(f"| {key} | {value} |\n" for key, value in self._config.items())
        writer.add_text(f"config/{self._name}", f"| setting | value |\n|---|---|\n{rows}")
        return writer


class WandbTracker:
    """A run of Weights & Biases, begun with the first record; offline unless WANDB_MODE says otherwise or a key is set.

    A training that is resumed is a run of its own there. Needs the extra ``wandb``.
    """

    def __init__(self, folder: Path, *, name: str, config: Mapping[str, Any]) -> None:
        check_trackers(["wandb"])
        self._folder, self._name, self._config = folder, name, config
        self._run: Any = None

    def log(self, record: Mapping[str, Any]) -> None:
        if self._run is None:
            self._run = self._open()
        group = _group(record)
        shown = {f"{group}/{name}": value for name, value in figures(record).items()}
        self._run.log({"step": record.get("step"), **shown})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _open(self) -> Any:
        import wandb  # pyright: ignore[reportMissingImports] - an extra

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._folder.mkdir(parents=True, exist_ok=True)
        config = dict(self._config)
        run = wandb.init(project="gradus", name=self._name, dir=str(self._folder), config=config, mode=mode)
        # Validation comes after its step's record, so the step is a figure of its own and not W&B's running count.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run


Maker = Callable[..., Tracker]
TRACKERS: dict[str, Maker] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
_PACKAGES = ("tensorboard", "wandb")  # extras of the same name


class Trackers:
    """Several trackers as one, a context manager; itself an ``on_step`` callback. None of them costs nothing."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def log(self, record: Mapping[str, Any]) -> None:
        """Give the record to each."""
        for tracker in self._trackers:
            tracker.log(record)

    __call__ = log

    def close(self) -> None:
        """Close each, whatever the others do."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)
        self._trackers = []

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for a name that is unknown or whose package is missing; imports none of them."""
    unknown = [each for each in names if each not in TRACKERS and each != "jsonl"]
    if unknown:
        raise ConfigError(f"unknown tracker {', '.join(unknown)}; there are jsonl (always on), {', '.join(TRACKERS)}")
    for each in names:
        if each in _PACKAGES and find_spec(each) is None:
            raise ConfigError(f"the tracker {each} needs its package; pip install 'gradus-rl[{each}]'")


def open_trackers(
    names: Sequence[str], folder: Path | str, *, name: str = "gradus", config: Mapping[str, Any] | None = None
) -> Trackers:
    """The trackers called ``names`` (``jsonl`` is there always and may be named), writing into a run's folder.

    Nothing is written before the first record. Raises ConfigError for an unknown name or a package that is missing.
    """
    check_trackers(names)
    opened: list[Tracker] = []
    try:
        opened.extend(
            TRACKERS[each](Path(folder), name=name, config=config or {})
            for each in dict.fromkeys(names)
            if each in TRACKERS
        )
    except BaseException:
        Trackers(opened).close()
        raise
    return Trackers(opened)
