"""Sends a run's metrics to TensorBoard and Weights & Biases, by name, besides its own ``metrics.jsonl``."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, cast

from gradus.core import ConfigError
from gradus.core.values import Json

TRACKERS = ("tensorboard", "wandb")  # their packages, and the extras that bring them, have the same names
Log = Callable[[dict[str, float], int | None], None]


def figures(record: Json, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a record, nested names joined by a slash. Undefined figures are left out, not made 0.

    >>> dict(figures({"kind": "step", "step": 3, "kl": None, "seconds": {"policy": 1.5}}))
    {'seconds/policy': 1.5}
    """
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from figures(cast(Json, value), f"{prefix}{name}/")
        elif name != "step" and _is_finite(value):
            yield f"{prefix}{name}", float(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


@contextmanager
def open_trackers(
    names: Sequence[str],
    folder: Path | str,
    *,
    name: str = "gradus",
    config: Json | None = None,
) -> Generator[Callable[[Json], None]]:
    """The trackers called ``names`` (``jsonl`` is there always and may be named), as one ``on_record`` callback that writes into a run's folder.

    Nothing is written before the first record. Raises ConfigError for an unknown name or a package that is missing.
    """
    check_trackers(names)
    logs: list[Log] = []
    with ExitStack() as closing:

        def track(record: Json) -> None:
            """Give the record's figures to each, under its kind and decoding; its ``step`` is the x-axis."""
            step = record.get("step")
            if not logs:
                trackers = [_OPEN[tracker] for tracker in dict.fromkeys(names) if tracker in _OPEN]
                logs.extend(start(closing, Path(folder), step, name, config or {}) for start in trackers)
            group = "/".join(str(record[key]) for key in ("kind", "decoding") if key in record)
            values = {f"{group}/{figure}": value for figure, value in figures(record)}
            for log in logs:
                log(values, step)

        yield track


def _tensorboard(
    closing: ExitStack,
    folder: Path,
    first: int | None,
    name: str,
    config: Json,
) -> Log:
    """Event files that ``tensorboard --logdir FOLDER`` shows. Steps from ``first`` on replace those of a killed run."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = closing.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=first))

    def log(values: dict[str, float], step: int | None) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log


def _wandb(
    closing: ExitStack,
    folder: Path,
    first: int | None,
    name: str,
    config: Json,
) -> Log:
    """A run of Weights & Biases; offline unless WANDB_MODE says otherwise or a key is set. A resumed training begins another."""
    wandb: Any = import_module("wandb")  # an extra
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    run = wandb.init(
        project="gradus",
        name=name,
        dir=str(folder),
        config=dict(config),
        mode=mode,
    )
    closing.callback(run.finish)
    # Validation comes after its step's record, so the step is a figure of its own and not W&B's running count.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")

    def log(values: dict[str, float], step: int | None) -> None:
        run.log({"step": step, **values})

    return log


_OPEN: dict[str, Callable[..., Log]] = {"tensorboard": _tensorboard, "wandb": _wandb}


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for a name that is unknown or whose package is missing; imports none of them."""
    for name in names:
        if name == "jsonl":
            continue
        if name not in TRACKERS:
            raise ConfigError(f"unknown tracker {name}; there are jsonl (always on), {', '.join(TRACKERS)}")
        if find_spec(name) is None:
            raise ConfigError(f"the tracker {name} needs its package; pip install 'gradus-rl[{name}]'")
