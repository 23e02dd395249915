"""Asking the grader in a process of its own: with limits on time, a cache, and a sandbox for hostile answers."""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from gradus.audit.text.tasks import CALLS_SECONDS, TextSubject, TextTask
from gradus.core import Reward, clock
from gradus.core.confinement import confine
from gradus.core.sandbox import sandbox_works
from gradus.rewards.judge import BROKE

CANARY = "@CANARY@"  # stands in an answer for the path of a file that only an executed answer can write
_WARM_UP = 60.0
_FOREVER = 1e6
_AT_ONCE = 64  # answers that a grader that asks a server is given together
_SETTLED = 200  # calls until a process has loaded what it needs
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


@dataclass
class Scorer:
    """Scores answers in a forked process, so that nothing that a grader does reaches this one.

    ``seconds``: the limit of a call; one that is cut off is made once more before it counts as hung. ``limit``: seconds of all calls together.
    Time that was spent waiting for a core is counted in neither.
    ``hangs_allowed``: after so many calls that hung, further ones are not made. ``confined``: ask in the sandbox.
    ``known``: scores of an earlier audit of the same grader, by task and answer. ``logged``: all that the grader logged, by name.
    ``times``: seconds of each call. ``grown``: MiB by which a process kept growing, see :func:`growth`.
    ``tell`` is given the number of calls after each. ``stopped``: why answers were not asked, empty if all were.
    """

    subject: TextSubject
    seconds: float = 2.0
    limit: float = CALLS_SECONDS
    hangs_allowed: int = 3
    confined: bool = False
    hangs: int = 0
    calls: int = 0
    spent: float = 0.0
    known: dict[tuple[str, str], Score] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    grown: float = 0.0
    tell: Callable[[int], None] | None = None
    stopped: str = ""
    _share: float = 1.0
    _children: dict[bool, _Child] = field(default_factory=dict)

    def allow(self, share: float) -> None:
        """From now on answers are asked until this share of the limit is spent."""
        self._share = share

    def score(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """The score of every answer, in order; what was asked before is not asked again."""
        wanted = {(task.key, answer): task for task, answer in rows}
        missing = [(task, answer) for (key, answer), task in wanted.items() if (key, answer) not in self.known]
        asked = zip(missing, self._asked(missing, self.confined), strict=True)
        scores = {(task.key, answer): score for (task, answer), score in asked}
        self.known.update({key: score for key, score in scores.items() if not score.skipped})  # may be asked later
        return [scores.get((task.key, answer)) or self.known[task.key, answer] for task, answer in rows]

    def fresh(self, rows: Sequence[tuple[TextTask, str]], *, confined: bool | None = None) -> list[Score]:
        """As :meth:`score`, in a new process and past the cache. ``confined``: in the sandbox, whatever the scorer's own setting."""
        confined = self.confined if confined is None else confined
        used = self._children.pop(confined, None)
        scores = self._asked(rows, confined)
        self._end(confined)
        if used is not None:
            self._children[confined] = used
        return scores

    def batch(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """The scores that the grader gives the answers in one call, in a new process; skipped if it takes none or the time is over."""
        if self.subject.judge_batch is None or self._is_over():
            return [Score(error="not asked", skipped=True) for _ in rows]
        started = clock.now()
        child = None
        try:
            child = _Child(self.subject, self.seconds, self.confined)
            started = clock.now()
            scores = child.ask_batch([(task.key, answer) for task, answer in rows])
        except OSError as ended:
            hung = isinstance(ended, TimeoutError)
            scores = [Score(hung=hung, error="cut off" if hung else "the process died") for _ in rows]
        if child is not None:
            child.end()
        self.spent += max(0.0, clock.now() - started)
        return scores

    def can_confine(self) -> bool:
        """Whether the sandbox works on this machine."""
        return sandbox_works()

    def close(self) -> None:
        """End the processes; the next answer starts another."""
        for confined in (False, True):
            self._end(confined)

    def _end(self, confined: bool) -> None:
        if (child := self._children.pop(confined, None)) is not None:
            self.grown = max(self.grown, growth(child.memory))
            child.end()

    def _asked(self, rows: Sequence[tuple[TextTask, str]], confined: bool) -> list[Score]:
        if self.subject.judge_all is None:
            return [self._one(task, answer, confined) for task, answer in rows]
        parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        return [score for part in parts for score in self._together(part)]

    def _together(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """Answers for a grader that asks a server: all at once, and in this process, where it counts what it spends."""
        if self._is_over():
            return [Score(error=f"not asked: {self.stopped}", skipped=True) for _ in rows]
        assert self.subject.judge_all is not None
        started = clock.now()
        try:
            rewards = self.subject.judge_all(rows)
        except Exception as raised:  # whatever a grader raises is a finding
            rewards = [
                Reward(grader="", value=None, error=f"{type(raised).__name__}: {str(raised)[:300]}") for _ in rows
            ]
        seconds = clock.now() - started
        self.spent += seconds if self.calls else 0.0  # what a grader loads at its first call is no part of the time
        self._count(len(rows))
        for name, values in (self.subject.logged() if self.subject.logged else {}).items():
            self.logged.setdefault(name, []).extend(values)
        each = seconds / len(rows)
        if any(BROKE in (one.error or "") for one in rewards):
            self.stopped = "its budget is used up"
        return [
            Score(value=one.value, error=one.error, skipped=BROKE in (one.error or ""), seconds=each) for one in rewards
        ]

    def _one(self, task: TextTask, answer: str, confined: bool) -> Score:
        if self._is_over():
            return Score(error=f"not asked: {self.stopped}", skipped=True)
        score = self._call(task, answer, confined)
        if score.hung:
            score = self._call(task, answer, confined)
            self.hangs += score.hung
        self._count(1)
        return score

    def _is_over(self) -> bool:
        """Whether no more answers are asked for now; ``stopped`` says why."""
        if self.hangs >= self.hangs_allowed:
            self.stopped = f"{self.hangs} calls hung"
        elif self.spent >= self._share * self.limit:
            self.stopped = f"the calls took more than their share of {self.limit:.0f} s (--seconds gives more)"
        else:
            return False
        return True

    def _count(self, calls: int) -> None:
        self.calls += calls
        if self.tell is not None:
            self.tell(self.calls)

    def _call(self, task: TextTask, answer: str, confined: bool) -> Score:
        started = clock.now()
        try:
            if confined not in self._children:
                self._children[confined] = _Child(self.subject, self.seconds, confined)
                started = clock.now()  # what a grader loads is no part of a call
            score = self._children[confined].ask(task.key, answer)
        except OSError as ended:  # of which TimeoutError is one
            self._end(confined)
            hung = isinstance(ended, TimeoutError)
            error = "cut off" if hung else "the process died"
            score = Score(hung=hung, error=error, seconds=max(0.0, clock.now() - started))
        self.spent += score.seconds
        self.times.append(score.seconds)
        return score


def growth(memory: Sequence[float]) -> float:
    """MiB by which a process grew from its 200th call to its last, if it grew as much in either half of them; 0 for few calls.

    What a grader loads or keeps for its first answers is no growth, and neither is a store that is full at last.
    """
    late = memory[_SETTLED:]
    if len(late) < _SETTLED:
        return 0.0
    middle = late[len(late) // 2]
    return max(0.0, 2 * min(middle - late[0], late[-1] - middle))


class _Child:
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
        scores = [Score(error=f"{type(raised).__name__}: {str(raised)[:300]}") for _ in rows]
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
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    executed = canary.exists()
    if executed:
        canary.unlink()
    if value is not None and not math.isfinite(value):
        value, error = None, f"the reward is {value}"
    return Score(value=None if value is None else float(value), error=error, hung=hung, executed=executed)
