"""Asking the grader for scores: in a process of its own, with a limit on a call and on all calls together, and in a sandbox if answers are hostile.

What the process says is JSON, and its fields are checked: an answer that the grader runs can write to this process in the grader's name.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AllowInfNan, ConfigDict, Field, Strict, StrictBool, StrictStr, TypeAdapter, ValidationError

from gradus.auditing.text.tasks import CALLS_SECONDS, TextSubject, TextTask
from gradus.core import Reward
from gradus.rewards.judge import BROKE
from gradus.sandbox import clock
from gradus.sandbox.worker import Fork

CANARY = "@CANARY@"  # stands in an answer for the path of a file that only an executed answer can write
_WARM_UP = 60.0
_Finite = Annotated[float, Strict(), AllowInfNan(False)]
_GRACE = 2.0  # seconds beyond the limit until a process that ignores its alarm is killed


@dataclass(frozen=True, kw_only=True)
class Score:
    """``value`` is None if the grader gave none: ``error`` says why, ``hung`` that it was cut off.

    ``executed``: the answer ran. ``skipped``: it was not asked, because the time or the money was over. ``seconds``: of the call.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    value: _Finite | None = None
    error: StrictStr | None = None
    hung: StrictBool = False
    executed: StrictBool = False
    skipped: StrictBool = False
    seconds: Annotated[_Finite, Field(ge=0)] = 0.0


def what_was_raised(error: BaseException) -> str:
    """A grader's error as a score holds it."""
    return f"{type(error).__name__}: {str(error)[:300]}"


_SCORE = TypeAdapter(Score)


class GraderProcess:
    """A forked process that scores answers. Raises OSError if the grader does not come through its first call."""

    def __init__(self, subject: TextSubject, seconds: float, confined: bool) -> None:
        self._patience = seconds + _GRACE
        self._fork = Fork(lambda folder: _handlers(subject, seconds, folder), confined=confined)
        self._warm_up()

    def ask(self, rows: Sequence[tuple[str, str]]) -> list[Score]:
        """The scores of these keys and answers, in one call of the grader.

        Raises TimeoutError if they do not come in time, another OSError if the process died or did not reply with a list of scores.
        """
        reply = self._fork.call("score", self._patience * len(rows), rows=rows)
        if not isinstance(reply, list) or len(reply) != len(rows):
            raise BrokenPipeError(f"the grader's process sent something else than {len(rows)} scores")
        scores = list(map(checked_score, reply))
        if scores[0].hung:
            self._warm_up()  # it may have to load again what was cut off
        return scores

    def end(self) -> None:
        self._fork.end()

    def _warm_up(self) -> None:
        try:
            self._fork.call("warm_up", _WARM_UP + _GRACE)
        except OSError:  # nobody who could end it will know of it
            self.end()
            raise


def checked_score(reply: Any) -> Score:
    """The score that a process sent. Raises BrokenPipeError if a field is missing, too many, or of another type."""
    try:
        return _SCORE.validate_python({name: reply[name] for name in Score.__dataclass_fields__} | reply)
    except (KeyError, TypeError, ValidationError) as error:
        raise BrokenPipeError(f"the grader's process sent something else than a score: {error}") from error


class _TooSlow(BaseException):
    """Raised by the alarm; no ``except Exception`` of a grader may catch it."""


def _handlers(subject: TextSubject, seconds: float, folder: Path) -> Mapping[str, Callable[..., Any]]:
    """Make the functions that the process answers with."""
    canary, ends = folder / "canary", 0.0
    tasks = {task.key: task for task in subject.tasks}

    def alarm(*_: object) -> None:
        if (left := ends - clock.now()) <= 0:
            raise _TooSlow
        signal.setitimer(signal.ITIMER_REAL, left + 1e-3)  # it was the machine that was slow

    def within(limit: float, judge: Callable[[], Sequence[Score]], rows: int = 1) -> list[dict[str, Any]]:
        nonlocal ends
        started = clock.now()  # here, because what two processes wait at the same time would be taken off twice
        ends = started + limit
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            scores = judge()
        except _TooSlow:
            scores = [Score(error="cut off", hung=True)] * rows
        except BaseException as raised:  # whatever a grader raises is a finding
            scores = [Score(error=what_was_raised(raised))] * rows
        signal.setitimer(signal.ITIMER_REAL, 0)
        executed = canary.exists()
        canary.unlink(missing_ok=True)
        took = max(0.0, clock.now() - started)
        return [asdict(replace(score, executed=executed, seconds=took)) for score in scores]

    def score(rows: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        asked = [(tasks[key], answer.replace(CANARY, str(canary))) for key, answer in rows]

        def judge() -> Sequence[Score]:
            if len(asked) == 1 or subject.judge_all is None:
                return [_finite(subject.judge(*each)) for each in asked]
            return [_finite(each.value, each.error) for each in subject.judge_all(asked)]

        return within(seconds * len(rows), judge, len(rows))

    def warm_up() -> None:  # the first call also loads the grader
        within(_WARM_UP, lambda: [_finite(subject.judge(subject.tasks[0], ""))])

    signal.signal(signal.SIGALRM, alarm)
    return {"score": score, "warm_up": warm_up}


def _finite(value: float | None, error: str | None = None) -> Score:
    if value is not None and not math.isfinite(value):
        return Score(error=f"the reward is {value}")
    return Score(value=None if value is None else float(value), error=error)


_HANGS = 3
_AT_ONCE = 64  # answers that a grader that asks a server is given together


@dataclass
class Scorer:
    """Scores answers in a forked process, so that nothing that a grader does reaches this one.

    ``seconds``: the limit of a call; one that is cut off is made once more before it counts as hung. ``limit``: seconds of all other calls.
    Time that was spent waiting for a core is counted in neither.
    ``hangs``: calls that hung; after three further ones are not made. ``confined``: ask in the sandbox.
    ``known``: scores so far, by task and answer. ``logged``: all that the grader logged, by name.
    ``tell`` is given the number of calls after each. ``stopped``: why answers were not asked, empty if all were.
    """

    subject: TextSubject
    seconds: float = 2.0
    limit: float = CALLS_SECONDS
    confined: bool = False
    hangs: int = 0
    calls: int = 0
    spent: float = 0.0
    known: dict[tuple[str, str], Score] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)
    tell: Callable[[int], None] | None = None
    stopped: str = ""
    _share: float = 1.0
    _children: dict[bool, GraderProcess] = field(default_factory=dict)

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
        with self._new_process(confined):
            return self._asked(rows, confined)

    def batch(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """The scores that the grader gives the answers in one call, in a new process; skipped if the time is over."""
        with self._new_process(self.confined):
            return self._skipped(rows) or self._call(rows, self.confined)

    def close(self) -> None:
        """End the processes; the next answer starts another."""
        for confined in (False, True):
            self._end(confined)

    @contextmanager
    def _new_process(self, confined: bool) -> Iterator[None]:
        used = self._children.pop(confined, None)
        yield
        self._end(confined)
        if used is not None:
            self._children[confined] = used

    def _end(self, confined: bool) -> None:
        if (child := self._children.pop(confined, None)) is not None:
            child.end()

    def _asked(self, rows: Sequence[tuple[TextTask, str]], confined: bool) -> list[Score]:
        if not self.subject.remote or self.subject.judge_all is None:
            return [self._one(row, confined) for row in rows]
        parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        return [score for part in parts for score in self._skipped(part) or self._together(part)]

    def _one(self, row: tuple[TextTask, str], confined: bool) -> Score:
        if skipped := self._skipped([row]):
            return skipped[0]
        (score,) = self._call([row], confined)
        if score.hung:
            (score,) = self._call([row], confined)
            self.hangs += score.hung
        self._count(1)
        return score

    def _together(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """Answers for a grader that asks a server: all at once, and in this process, where it counts what it spends."""
        assert self.subject.judge_all is not None
        started = clock.now()
        try:
            rewards = self.subject.judge_all(rows)
        except Exception as raised:  # whatever a grader raises is a finding
            rewards = [Reward(grader="", value=None, error=what_was_raised(raised)) for _ in rows]
        seconds = clock.now() - started
        self.spent += seconds if self.calls else 0.0  # the first call also loads the grader
        self._count(len(rows))
        for name, values in (self.subject.logged() if self.subject.logged else {}).items():
            self.logged.setdefault(name, []).extend(values)
        broke = [BROKE in (one.error or "") for one in rewards]
        self.stopped = "its budget is used up" if any(broke) else self.stopped
        return [
            Score(value=one.value, error=one.error, skipped=skipped, seconds=seconds / len(rows))
            for one, skipped in zip(rewards, broke, strict=True)
        ]

    def _skipped(self, rows: Sequence[tuple[TextTask, str]]) -> list[Score]:
        """Scores of answers that are not asked for now, none if they may be; ``stopped`` says why."""
        if self.hangs >= _HANGS:
            self.stopped = f"{self.hangs} calls hung"
        elif self.spent >= self._share * self.limit:
            self.stopped = f"the calls took more than their share of {self.limit:.0f} s (--seconds gives more)"
        else:
            return []
        return [Score(error=f"not asked: {self.stopped}", skipped=True) for _ in rows]

    def _count(self, calls: int) -> None:
        self.calls += calls
        if self.tell is not None:
            self.tell(self.calls)

    def _call(self, rows: Sequence[tuple[TextTask, str]], confined: bool) -> list[Score]:
        """The scores of one call, which say why if the process died or did not reply in time."""
        started = clock.now()
        try:
            if confined not in self._children:
                self._children[confined] = GraderProcess(self.subject, self.seconds, confined)
                started = clock.now()  # without the time that loading takes
            scores = self._children[confined].ask([(task.key, answer) for task, answer in rows])
        except OSError as ended:  # of which TimeoutError is one
            self._end(confined)
            hung = isinstance(ended, TimeoutError)
            error = "cut off" if hung else "the process died"
            scores = [Score(hung=hung, error=error, seconds=max(0.0, clock.now() - started)) for _ in rows]
        self.spent += 0.0 if scores[0].hung else scores[0].seconds  # bounded by their number
        return scores
