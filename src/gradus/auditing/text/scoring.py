"""Asking the grader for scores: in a process of its own, with a limit on a call and on all calls together, and in a sandbox if answers are hostile.

What the process says is JSON, and its fields are checked: an answer that the grader runs can write to this process in the grader's name.
"""

from __future__ import annotations

import math
import signal
from collections import ChainMap
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    AllowInfNan,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from gradus.auditing.records import shortened
from gradus.auditing.text.tasks import CALLS_SECONDS, Answers, Functions, NoReward, TextSubject, codes_of
from gradus.core import Reward
from gradus.core.foreign import raised_at
from gradus.core.frozen_record import frozen_record
from gradus.core.money import BROKE
from gradus.core.values import JsonDict
from gradus.sandbox import clock
from gradus.sandbox.worker import Fork

CANARY = "@CANARY@"  # stands in an answer for the path of a file that only an executed answer can write
_WARM_UP = 60.0
_GRACE = 2.0  # seconds beyond the limit until a process that ignores its alarm is killed
_HANGS = 3
_AT_ONCE = 64  # answers that a grader that asks a server is given together
_Finite = Annotated[float, Strict(), AllowInfNan(False)]


@frozen_record
class AnswerScore:
    """The score of one answer. ``value`` is None if the grader gave none: ``error`` says why, ``hung`` that it was cut off.

    ``executed``: the answer ran. ``skipped``: it was not asked, because the time or the money was over. ``seconds``: of the call.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    value: _Finite | None = None
    error: StrictStr | None = None
    hung: StrictBool = False
    executed: StrictBool = False
    skipped: StrictBool = False
    seconds: Annotated[_Finite, Field(ge=0)] = 0.0


_SCORE = TypeAdapter(AnswerScore)


def checked_score(reply: Any) -> AnswerScore:
    """The score that a process sent. Raises BrokenPipeError if a field is missing, too many, or of another type."""
    try:
        # Every field must be there, though each has a default; one too many is refused by the record.
        return _SCORE.validate_python({name: reply[name] for name in AnswerScore.__dataclass_fields__} | reply)
    except (KeyError, TypeError, ValidationError) as error:
        raise BrokenPipeError(f"the grader's process sent something else than a score: {error}") from error


def _what_was_raised(error: BaseException) -> str:
    """The error in words, with the line of the grader's file, cut to what a sentence can hold."""
    if isinstance(error, NoReward):
        return shortened(str(error))
    return shortened(f"{type(error).__name__}: {error}{raised_at(error)}")


def _finite(value: float | None, error: str | None = None) -> AnswerScore:
    """The score of a reward; a reward that is not finite is an error."""
    if value is not None and not math.isfinite(value):
        return AnswerScore(error=f"the reward is {value}")
    return AnswerScore(value=None if value is None else float(value), error=error)


class GraderProcess:
    """A forked process that scores answers. Raises OSError if the grader does not come through its first call.

    Confined, it reads what Python imports from and the folders of the grader's files.
    """

    def __init__(self, subject: TextSubject, seconds: float, confined: bool) -> None:
        # The process ends a call itself; this is for one that ignores its alarm, as C code does.
        self._patience = seconds + _GRACE
        self._fork = Fork(
            lambda folder: _handlers(subject, seconds, folder),
            confined=confined,
            readable=_folders_of(subject.functions),
        )
        self._warm_up()

    def ask(self, rows: Sequence[tuple[str, str]]) -> list[AnswerScore]:
        """The scores of these keys and answers, in one call of the grader.

        Raises TimeoutError if they do not come in time, another OSError if the process died or did not reply with a list of scores.
        """
        reply: Any = self._fork.call("score", self._patience * len(rows), rows=rows)
        replies = cast("list[Any]", reply) if isinstance(reply, list) else []
        # An answer that is run can write to the pipe in the grader's place.
        if len(replies) != len(rows):
            raise BrokenPipeError(f"the grader's process sent something else than {len(rows)} scores")
        scores = list(map(checked_score, replies))
        if scores[0].hung:
            self._warm_up()  # it may have to load again what was cut off
        return scores

    def end(self) -> None:
        """End the process."""
        self._fork.end()

    def _warm_up(self) -> None:
        """Makes a call with a limit of its own, because the first one loads the grader."""
        try:
            self._fork.call("warm_up", _WARM_UP + _GRACE)
        except OSError:  # nobody who could end it will know of it
            self.end()
            raise


def _folders_of(functions: Functions) -> list[str]:
    """The folders of the files that functions are written in."""
    # A grader may read a file that lies beside it.
    files = {Path(code.co_filename) for code in codes_of(functions)}
    return sorted(str(file.resolve().parent) for file in files if file.is_file())


class _TooSlow(BaseException):
    """Raised by the alarm; no ``except Exception`` of a grader catches it, and a bare ``except`` does not hide that it rang."""


def _handlers(subject: TextSubject, seconds: float, folder: Path) -> Mapping[str, Callable[..., Any]]:
    """Make the functions that the process answers with."""
    canary = folder / "canary"  # there after a call only if the answer was run
    tasks = {task.key: task for task in subject.tasks}
    ends = 0.0
    has_rung = False

    def alarm(*_: object) -> None:
        nonlocal has_rung
        remaining = ends - clock.now()
        if remaining <= 0:
            has_rung = True
            raise _TooSlow
        signal.setitimer(signal.ITIMER_REAL, remaining + 1e-3)  # it was the machine that was slow

    def within(limit: float, answers: Answers) -> list[JsonDict]:
        nonlocal ends, has_rung
        has_rung = False
        started = clock.now()  # here, because what two processes wait at the same time would be taken off twice
        ends = started + limit
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            scores = _judged(subject, answers)
        except BaseException as raised:  # whatever a grader raises is a finding
            scores = [AnswerScore(error=_what_was_raised(raised))] * len(answers)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # A grader that swallows the alarm may return something all the same.
        if has_rung:
            scores = [AnswerScore(error="cut off", hung=True)] * len(answers)
        executed = canary.exists()
        canary.unlink(missing_ok=True)
        took = max(0.0, clock.now() - started)
        return [asdict(replace(score, executed=executed, seconds=took)) for score in scores]

    # Tasks are known here from before the fork, so that their keys are enough.
    def score(rows: Sequence[tuple[str, str]]) -> list[JsonDict]:
        answers = [(tasks[key], answer.replace(CANARY, str(canary))) for key, answer in rows]
        return within(seconds * len(rows), answers)

    def warm_up() -> None:  # the first call also loads the grader
        within(_WARM_UP, [(subject.tasks[0], "")])

    signal.signal(signal.SIGALRM, alarm)
    return {"score": score, "warm_up": warm_up}


def _judged(subject: TextSubject, answers: Answers) -> list[AnswerScore]:
    """The scores of answers, in one call if there are several and the grader takes several."""
    if len(answers) == 1 or subject.judge_all is None:
        return [_finite(subject.judge(task, answer)) for task, answer in answers]
    return [_finite(reward.value, reward.error) for reward in subject.judge_all(answers)]


@dataclass
class Scorer:
    """Scores answers in a forked process, so that nothing that a grader does reaches this one.

    Time that was spent waiting for a core is counted in no limit.
    """

    subject: TextSubject
    seconds: float = 2.0  # the limit of a call; one that is cut off is made once more before it counts as hung
    limit: float = CALLS_SECONDS  # seconds of all other calls
    confined: bool = False  # ask in the sandbox
    skipped: int = 0  # answers that were not asked
    hangs: int = 0  # calls that hung; after three further ones are not made
    calls: int = 0
    spent: float = 0.0
    known: dict[tuple[str, str], AnswerScore] = field(default_factory=dict[tuple[str, str], AnswerScore])
    logged: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  # by the grader
    tell: Callable[[int], None] = lambda calls: None  # is given the number of calls after each
    stopped: str = ""  # why answers were not asked, empty if all were
    _share: float = 1.0
    _process: GraderProcess | None = None

    def allow(self, share: float) -> None:
        """From now on answers are asked until this share of the limit is spent."""
        self._share = share

    @property
    def left(self) -> float:
        """Seconds until no more is asked."""
        return self._share * self.limit - self.spent

    def score(self, rows: Answers) -> list[AnswerScore]:
        """The score of every answer, in order; what was asked before is not asked again."""
        by_key = {(task.key, answer): (task, answer) for task, answer in rows}
        missing = {key: row for key, row in by_key.items() if key not in self.known}
        scores = dict(zip(missing, self._asked([*missing.values()]), strict=True))
        # What was skipped may be asked later, when a check with more time comes.
        self.known.update({key: score for key, score in scores.items() if not score.skipped})
        results = ChainMap(scores, self.known)
        return [results[task.key, answer] for task, answer in rows]

    def fresh(self, rows: Answers) -> list[AnswerScore]:
        """As :meth:`score`, in a new process and past the cache."""
        with self._new_process():
            return self._asked(rows)

    def batch(self, rows: Answers) -> list[AnswerScore]:
        """The scores that the grader gives the answers in one call, in a new process; skipped if the time is over."""
        with self._new_process():
            return self._skipped(rows) or self._call(rows)

    def close(self) -> None:
        """End the process; the next answer starts another."""
        if self._process is not None:
            self._process.end()
        self._process = None

    @contextmanager
    def _new_process(self) -> Generator[None]:
        """A new process for some calls; the used one comes back afterwards."""
        used = self._process
        self._process = None
        yield
        self.close()
        self._process = used

    def _asked(self, rows: Answers) -> list[AnswerScore]:
        """The scores of answers, none of which comes from the cache."""
        ask, at_once = self._one, 1
        if self.subject.remote and self.subject.judge_all:
            ask, at_once = self._together, _AT_ONCE
        scores: list[AnswerScore] = []
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            scores += self._skipped(part) or ask(part)
        return scores

    def _one(self, row: Answers) -> list[AnswerScore]:
        """The score of one answer. A call that was cut off, or that ended its process, is made once more: an earlier answer may be to blame."""
        scores = self._call(row)
        if scores[0].hung or self._process is None:
            scores = self._call(row)
            self.hangs += scores[0].hung
        self._count(1)
        return scores

    def _together(self, rows: Answers) -> list[AnswerScore]:
        """Answers for a grader that asks a server: all at once, and in this process, where it counts what it spends."""
        assert self.subject.judge_all is not None
        started = clock.now()
        try:
            rewards = self.subject.judge_all(rows)
        except Exception as raised:  # whatever a grader raises is a finding
            rewards = [Reward(grader="", value=None, error=_what_was_raised(raised))] * len(rows)
        seconds = clock.now() - started
        if self.calls:  # the first call also loads the grader
            self.spent += seconds
        self._count(len(rows))
        # Asked in this process, so that what the functions logged can be read.
        if self.subject.rewards is not None:
            for name, values in self.subject.rewards.metrics.items():
                self.logged.setdefault(name, []).extend(values)
        if any(BROKE in (reward.error or "") for reward in rewards):
            self.stopped = "its budget is used up"
        return [
            AnswerScore(
                value=reward.value,
                error=reward.error,
                skipped=BROKE in (reward.error or ""),
                seconds=seconds / len(rows),
            )
            for reward in rewards
        ]

    def _skipped(self, rows: Answers) -> list[AnswerScore]:
        """Scores of answers that are not asked for now, none if they may be; ``stopped`` says why."""
        if self.hangs >= _HANGS:
            self.stopped = f"{self.hangs} calls hung"
        elif self.left <= 0:
            self.stopped = f"the calls took more than their share of {self.limit:.0f} s (--seconds gives more)"
        else:
            return []
        self.skipped += len(rows)
        return [AnswerScore(error=f"not asked: {self.stopped}", skipped=True)] * len(rows)

    def _count(self, calls: int) -> None:
        """Counts calls and tells the progress."""
        self.calls += calls
        self.tell(self.calls)

    def _call(self, rows: Answers) -> list[AnswerScore]:
        """The scores of one call, which say why if the process died or did not reply in time."""
        started = clock.now()
        try:
            if self._process is None:
                self._process = GraderProcess(self.subject, self.seconds, self.confined)
                started = clock.now()  # without the time that loading takes
            scores = self._process.ask([(task.key, answer) for task, answer in rows])
        except OSError as ended:  # of which TimeoutError is one
            self.close()
            hung = isinstance(ended, TimeoutError)
            error = "cut off" if hung else str(ended).replace("the other process", "the grader's process")
            score = AnswerScore(hung=hung, error=error, seconds=max(0.0, clock.now() - started))
            scores = [score] * len(rows)
        if not scores[0].hung:  # those are bounded by their number
            self.spent += scores[0].seconds
        return scores
