"""Compares two computations of one thing, says when, and stops the run if they differ by more than rounding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import eq
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import Tensor

from gradus.training.distributed.processes import world
from gradus.training.engine.loss_step import TrainingError
from gradus.training.law_names import LAWS, LawName
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import RunOptions


@dataclass(frozen=True)
class Pair:
    """Two computations of one number.

    ``first``: as the run has it; ``second``: computed again. ``place``: the tensor, token, group or file, in words. ``allowed``: the
    largest difference that rounding explains.
    """

    first: float
    second: float
    place: str
    allowed: float = 0.0


Pairs = Iterator[Pair]


def holds(claim: bool, place: str, truth: bool = True) -> Pair:
    """Compares whether something is so."""
    return Pair(claim, truth, f"whether {place}")


def close(first: float, second: float, share: float, place: str) -> Pair:
    """Compares two numbers; ``share`` of the second, or of 1 if it is less, is allowed."""
    return Pair(first, second, place, share * max(1.0, abs(second)))


def same_or_missing(first: float | None, second: float | None, share: float, place: str) -> Pairs:
    """Compares two numbers, as :func:`close` does, or that both are missing."""
    yield holds(first is None, f"{place} is missing", second is None)
    yield close(first or 0.0, second or 0.0, share, place)


def in_order(first: Sequence[Any], second: Sequence[Any], place: str) -> Pair:
    """Compares two rows by how many things stand at the same place in both."""
    return Pair(sum(map(eq, first, second)), max(len(first), len(second)), place)


def alone(first: Iterable[Any], second: Iterable[Any], place: str) -> Pair:
    """Compares two sets by the number of what only one of them has."""
    return Pair(len(set(first) ^ set(second)), 0, f"{place} alone")


def norm_of(tensor: Tensor) -> float:
    """The root of the sum of squares."""
    return math.sqrt(float(tensor.float().square().sum()))


def apart(first: Tensor, second: Tensor, share: float, place: str, noise: float = 1e-10) -> Pair:
    """Compares two tensors by the norm of their difference; ``share`` of the second's norm, and ``noise``, are allowed."""
    size = norm_of(second)
    where = f"{place}, the norm of the difference from a tensor of norm {size:.3g}"
    return Pair(norm_of(first - second), 0.0, where, share * size + noise)


def worst_of(first: Any, second: Any, place: str, allowed: float) -> Pair:
    """Compares two rows of numbers (A,) where they differ most."""
    worst = int(abs(first - second).argmax())
    return Pair(float(first[worst]), float(second[worst]), f"{place} (number {worst})", allowed)


class NotMeasured(Exception):
    """A law does not apply here; the message says what it needs."""


class LawBroken(TrainingError):
    """Two computations of one thing differ by more than rounding, at a ``step``. ``law`` names it."""

    def __init__(self, law: LawName, step: int, message: str) -> None:
        super().__init__(message)
        self.law, self.step = law, step

    def alert(self) -> dict[str, Any]:
        """Returns the record of the metrics that says so."""
        return {
            "kind": "alert",
            "step": self.step,
            "rule": f"law {self.law}",
            "severity": "stop",
            "evidence": str(self),
            "remedy": "look at the place that it names, where two computations of one thing part",
            "action": "stopped",
        }


@dataclass
class LawRunner:
    """Checks laws at steps 1, 4, 16, 64 and so on: a resumed run checks what an unbroken one does.

    ``off``: laws that the recipe leaves out. ``worst``: law -> the largest difference as a share of what is allowed, since the last
    record. ``not_measured``: law -> what it needs. ``seconds``: what the checks took. ``new``: the step shows something that none before
    it did, so laws are checked.
    """

    off: Collection[str]
    step: int = 0
    worst: dict[LawName, float] = field(default_factory=dict[LawName, float])
    not_measured: dict[LawName, str] = field(default_factory=dict[LawName, str])
    seconds: float = 0.0
    new: bool = False

    @property
    def due(self) -> bool:
        """Says whether laws are checked at this step: a power of four, or 0, or one that shows something new."""
        is_power_of_two = self.step & (self.step - 1) == 0  # or 0
        is_power_of_four = is_power_of_two and self.step.bit_length() % 2 == 1
        return self.new or self.step == 0 or is_power_of_four

    def check(self, law: LawName, pairs: Callable[..., Pairs], *args: Any) -> None:
        """Compares the pairs that a law computes from ``args``. Raises LawBroken at the first that differ."""
        if law in self.off:
            self.not_measured[law] = "it is in laws.off"
            return
        started = time.perf_counter()
        try:
            for pair in pairs(*args):
                self._compare(law, pair, Path(pairs.__code__.co_filename).name)
        except NotMeasured as reason:
            self.not_measured[law] = str(reason)
        finally:
            self.seconds += time.perf_counter() - started

    def _compare(self, law: LawName, pair: Pair, file: str) -> None:
        difference = abs(pair.first - pair.second)
        if difference <= pair.allowed:
            share = difference / pair.allowed if pair.allowed else 0.0
            self.worst[law] = max(share, self.worst.get(law, 0.0))
            return
        # NaN: a loss or gradient that is not finite has an error of its own, which says more.
        if math.isnan(difference):
            return
        raise LawBroken(
            law,
            self.step,
            f"law broken: {law}: {LAWS[law]}. Step {self.step}, {pair.place}: the run has {pair.first:.6g}, computed again it is "
            f"{pair.second:.6g} (rounding explains {pair.allowed:.2g}). The second computation is in gradus/training/laws/{file}; what "
            f"computes the first is at fault, or the law does not hold here: then set grpo.laws.off = ['{law}']",
        )

    def record(self) -> dict[str, Any] | None:
        """Returns what was measured since the last record, for the metrics; None if nothing was."""
        measured = {law: self.worst[law] for law in LAWS if law in self.worst}
        missing = {law: self.not_measured[law] for law in LAWS if law in self.not_measured and law not in measured}
        self.worst.clear()
        self.not_measured.clear()
        if not measured:
            return None
        return {"kind": "laws", "step": self.step, "worst": measured, "not_measured": missing}


@contextmanager
def begun(path: Path | str, config: BaseModel, options: RunOptions, *, resume: bool) -> Generator[RunFolder]:
    """Opens the folder of a run. A run that fails writes down the law that is broken, and no beginning without a step."""
    folder = RunFolder(path, writing=world().main, observer=options.on_record)
    folder.open(config, resume=resume)
    try:
        yield folder
    except Exception as error:
        if isinstance(error, LawBroken):
            folder.append(error.alert())
        folder.forget_beginning()
        raise
