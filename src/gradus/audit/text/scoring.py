"""Asking the grader in processes of their own: with a time limit a call, a cache, and a sandbox for hostile answers."""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradus.audit.text.tasks import TextSubject, TextTask
from gradus.core.sandbox import confine, sandbox_works

__all__ = ["CANARY", "Score", "Scorer"]

CANARY = "@CANARY@"  # stands in an answer for the path of a file that only an executed answer can write
_WARM_UP = 60.0
_GRACE = 5.0  # seconds beyond the limit until a process that ignores its alarm is killed


@dataclass(frozen=True, kw_only=True)
class Score:
    """``value`` is None where the grader gave none: ``error`` says why, ``hung`` that it was cut off. ``executed``: the answer ran."""

    value: float | None = None
    error: str | None = None
    hung: bool = False
    executed: bool = False


@dataclass
class Scorer:
    """Scores answers in a forked process, so that nothing that a grader does reaches this one.

    ``seconds``: the limit of a call. ``hangs_allowed``: after so many calls that hung, further ones are not made.
    ``confined``: ask in the sandbox.
    """

    subject: TextSubject
    seconds: float = 2.0
    hangs_allowed: int = 6
    confined: bool = False
    hangs: int = 0
    calls: int = 0
    _cache: dict[tuple[str, str], Score] = field(default_factory=dict)

    def score(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """The score of every answer, in order; what was asked before is not asked again."""
        wanted = list(dict.fromkeys((task.key, answer) for task, answer in rows))
        tasks = {task.key: task for task, _ in rows}
        missing = [(tasks[key], answer) for key, answer in wanted if (key, answer) not in self._cache]
        for (task, answer), score in zip(missing, self.fresh(missing), strict=True):
            self._cache[task.key, answer] = score
        return [self._cache[task.key, answer] for task, answer in rows]

    def fresh(self, rows: Sequence[tuple[TextTask, str]], *, confined: bool | None = None) -> list[Score]:
        """As :meth:`score`, in a new process and past the cache. ``confined``: in the sandbox, whatever the scorer's own setting."""
        scores: list[Score] = []
        self.calls += len(rows)
        while len(scores) < len(rows):
            if self.hangs >= self.hangs_allowed:
                return [*scores, *[Score(error="not asked: too many calls hung")] * (len(rows) - len(scores))]
            scores += self._run(rows[len(scores) :], self.confined if confined is None else confined)
        return scores

    def can_confine(self) -> bool:
        """Whether the sandbox works on this machine."""
        return sandbox_works()

    def _run(self, rows: Sequence[tuple[TextTask, str]], confined: bool) -> list[Score]:
        """Scores up to the end or to the first call that had to be killed."""
        with tempfile.TemporaryDirectory() as folder:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                _serve(self.subject, rows, writer, folder, self.seconds, confined)
            os.close(writer)
            scores = self._read(reader, len(rows))
            os.close(reader)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return scores

    def _read(self, reader: int, wanted: int) -> list[Score]:
        scores: list[Score] = []
        buffer = b""
        while len(scores) < wanted:
            ready, _, _ = select.select([reader], [], [], self.seconds + _GRACE + (0 if buffer or scores else _WARM_UP))
            chunk = os.read(reader, 1 << 16) if ready else b""
            if not chunk:
                self.hangs += not ready
                return [*scores, Score(hung=not ready, error="cut off" if not ready else "the process died")]
            buffer += chunk
            while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack("I", buffer[:4])[0]:
                size = struct.unpack("I", buffer[:4])[0]
                scores.append(pickle.loads(buffer[4 : 4 + size]))
                buffer = buffer[4 + size :]
                self.hangs += scores[-1].hung
        return scores


class _TooSlow(BaseException):
    """Raised by the alarm; no ``except Exception`` of a grader may catch it."""


def _serve(
    subject: TextSubject, rows: Sequence[tuple[TextTask, str]], writer: int, folder: str, seconds: float, confined: bool
) -> None:
    """The child: score row after row and write each down; never returns."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)

    def alarm(*_: object) -> None:
        raise _TooSlow

    signal.signal(signal.SIGALRM, alarm)
    try:
        if confined:
            confine(folder, keep=(writer,))
        canary = Path(folder) / "canary"
        _one(
            subject, rows[0][0], "", _WARM_UP, canary
        )  # what a grader loads at its first call is no part of a call's time
        for task, answer in rows:
            data = pickle.dumps(_one(subject, task, answer.replace(CANARY, str(canary)), seconds, canary))
            os.write(writer, struct.pack("I", len(data)) + data)
    finally:
        os._exit(0)


def _one(subject: TextSubject, task: TextTask, answer: str, seconds: float, canary: Path) -> Score:
    value, error, hung = None, None, False
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        value = subject.judge(task, answer)
    except _TooSlow:
        error, hung = "cut off", True
    except BaseException as raised:  # whatever a grader raises is a finding
        error = f"{type(raised).__name__}: {str(raised)[:120]}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    executed = canary.exists()
    if executed:
        canary.unlink()
    if value is not None and not math.isfinite(value):
        value, error = None, f"the reward is {value}"
    return Score(value=None if value is None else float(value), error=error, hung=hung, executed=executed)
