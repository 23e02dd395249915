"""A process of its own for a grader: it answers one question at a time, with a limit on time, and in a sandbox if answers are hostile."""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from gradus.auditing.text.tasks import TextSubject, TextTask
from gradus.sandbox import clock
from gradus.sandbox.confinement import confine

CANARY = "@CANARY@"  # stands in an answer for the path of a file that only an executed answer can write
_WARM_UP = 60.0
_FOREVER = 1e6
_GRACE = 5.0  # seconds beyond the limit until a process that ignores its alarm is killed


@dataclass(frozen=True, kw_only=True)
class Score:
    """``value`` is None if the grader gave none: ``error`` says why, ``hung`` that it was cut off.

    ``executed``: the answer ran. ``skipped``: it was not asked, because the time or the money was over. ``seconds``: of the call.
    ``memory``: MiB that the process held after it, 0 if not known.
    """

    value: float | None = None
    error: str | None = None
    hung: bool = False
    executed: bool = False
    skipped: bool = False
    seconds: float = 0.0
    memory: float = 0.0


def what_was_raised(error: BaseException) -> str:
    """A grader's error as a score holds it."""
    return f"{type(error).__name__}: {str(error)[:300]}"


class GraderProcess:
    """A forked process that answers one question at a time."""

    def __init__(self, subject: TextSubject, seconds: float, confined: bool) -> None:
        self._patience = seconds + _GRACE
        self.memory: list[float] = []
        self._folder = tempfile.TemporaryDirectory()
        asked, self._questions = os.pipe()
        self._answers, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._questions)
            os.close(self._answers)
            _serve(subject, asked, told, self._folder.name, seconds, confined)
        os.close(asked)
        os.close(told)
        clock.watch(self._pid)
        try:
            _read(self._answers, _WARM_UP + _GRACE)
        except OSError:  # nobody who could end it will know of it
            self.end()
            raise

    def ask(self, key: str, answer: str) -> Score:
        """The score. Raises TimeoutError if none comes in time, another OSError if the process died."""
        _write(self._questions, (key, answer))
        score: Score = _read(self._answers, self._patience)
        self.memory.append(score.memory)
        if score.hung:
            _read(self._answers, _WARM_UP + _GRACE)
        return score

    def ask_batch(self, rows: Sequence[tuple[str, str]]) -> list[Score]:
        """The scores of one call; nothing can be asked of a process whose call was cut off. Raises as :meth:`ask`."""
        _write(self._questions, rows)
        return _read(self._answers, self._patience * len(rows))

    def end(self) -> None:
        clock.forget(self._pid)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._questions)
        os.close(self._answers)
        self._folder.cleanup()


def _write(pipe: int, value: object) -> None:
    data = pickle.dumps(value)
    data = struct.pack("I", len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def _read(pipe: int, patience: float) -> Any:
    """The next value. Raises TimeoutError if it does not come in time, BrokenPipeError if the other side has ended."""
    deadline = time.monotonic() + patience
    size = struct.unpack("I", _read_bytes(pipe, 4, deadline))[0]
    return pickle.loads(_read_bytes(pipe, size, deadline))


def _read_bytes(pipe: int, size: int, deadline: float) -> bytes:
    data = b""
    waiting = select.poll()  # select() takes no file beyond the 1,024th
    waiting.register(pipe, select.POLLIN)
    while len(data) < size:
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        chunk = os.read(pipe, size - len(data))
        if not chunk:
            raise BrokenPipeError
        data += chunk
    return data


class _TooSlow(BaseException):
    """Raised by the alarm; no ``except Exception`` of a grader may catch it."""


def _serve(subject: TextSubject, asked: int, told: int, folder: str, seconds: float, confined: bool) -> NoReturn:
    """The child: score answer after answer and write each down; never returns."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)

    ends = 0.0

    def alarm(*_: object) -> None:
        if (left := ends - clock.now()) <= 0:
            raise _TooSlow
        signal.setitimer(signal.ITIMER_REAL, left + 1e-3)  # it was the machine that was slow

    def one(task: TextTask, answer: str, seconds: float) -> Score:
        nonlocal ends
        started = clock.now()  # here, because what two processes wait at the same time would be taken off twice
        ends = started + seconds
        score = _one(subject, task, answer, seconds, canary)
        return replace(score, seconds=max(0.0, clock.now() - started), memory=_resident())

    signal.signal(signal.SIGALRM, alarm)
    try:
        if confined:
            confine(folder, keep=(asked, told))
            tempfile.tempdir = os.environ["TMPDIR"] = folder  # what a grader writes for a call
        canary = Path(folder) / "canary"
        tasks: Mapping[str, TextTask] = {task.key: task for task in subject.tasks}
        first = subject.tasks[0]
        one(first, "", _WARM_UP)  # what a grader loads at its first call is no part of a call's time
        _write(told, "ready")
        while True:
            question = _read(asked, _FOREVER)
            if isinstance(question, list):
                ends = clock.now() + seconds * len(question)
                _write(told, _batch(subject, [(tasks[key], answer) for key, answer in question], seconds))
                continue
            key, answer = question
            score = one(tasks[key], answer.replace(CANARY, str(canary)), seconds)
            _write(told, score)
            if score.hung:
                one(first, "", _WARM_UP)  # it may have to load again what was cut off
                _write(told, "ready")
    finally:
        os._exit(0)


def _batch(subject: TextSubject, rows: Sequence[tuple[TextTask, str]], seconds: float) -> list[Score]:
    assert subject.judge_batch is not None
    signal.setitimer(signal.ITIMER_REAL, seconds * len(rows))
    try:
        scores = [Score(value=each.value, error=each.error) for each in subject.judge_batch(rows)]
    except _TooSlow:
        scores = [Score(error="cut off", hung=True) for _ in rows]
    except BaseException as raised:  # whatever a grader raises is a finding
        scores = [Score(error=what_was_raised(raised)) for _ in rows]
    signal.setitimer(signal.ITIMER_REAL, 0)
    return scores


def _resident() -> float:
    """MiB that this process holds, as Linux tells it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _one(subject: TextSubject, task: TextTask, answer: str, seconds: float, canary: Path) -> Score:
    value, error, hung = None, None, False
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        value = subject.judge(task, answer)
    except _TooSlow:
        error, hung = "cut off", True
    except BaseException as raised:  # whatever a grader raises is a finding
        error = what_was_raised(raised)
    signal.setitimer(signal.ITIMER_REAL, 0)
    executed = canary.exists()
    if executed:
        canary.unlink()
    if value is not None and not math.isfinite(value):
        value, error = None, f"the reward is {value}"
    return Score(value=None if value is None else float(value), error=error, hung=hung, executed=executed)
