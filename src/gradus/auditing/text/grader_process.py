"""A grader in a process of its own: it scores one answer at a time, with a limit on time, and in a sandbox if answers are hostile.

What the process says is JSON, and its fields are checked: an answer that the grader runs can write to this process in the grader's name.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AllowInfNan, ConfigDict, Field, Strict, StrictBool, StrictStr, TypeAdapter, ValidationError

from gradus.auditing.text.tasks import TextSubject
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

    def ask(self, key: str, answer: str) -> Score:
        """The score. Raises TimeoutError if it does not come in time, another OSError if the process died or its reply is not a score."""
        score = checked_score(self._fork.call("score", self._patience, key=key, answer=answer))
        if score.hung:
            self._warm_up()  # it may have to load again what was cut off
        return score

    def ask_batch(self, rows: Sequence[tuple[str, str]]) -> list[Score]:
        """The scores of one call; nothing can be asked of a process whose call was cut off. Raises as :meth:`ask`."""
        reply = self._fork.call("batch", self._patience * len(rows), rows=rows)
        if not isinstance(reply, list) or len(reply) != len(rows):
            raise BrokenPipeError(f"the grader's process gave no list of {len(rows)} scores")
        return list(map(checked_score, reply))

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

    def score(key: str, answer: str) -> dict[str, Any]:
        given = answer.replace(CANARY, str(canary))
        return within(seconds, lambda: [_finite(subject.judge(tasks[key], given))])[0]

    def batch(rows: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        assert subject.judge_all is not None
        judge_all, asked = subject.judge_all, [(tasks[key], answer) for key, answer in rows]
        return within(
            seconds * len(rows), lambda: [_finite(each.value, each.error) for each in judge_all(asked)], len(rows)
        )

    def warm_up() -> None:  # the first call also loads the grader
        within(_WARM_UP, lambda: [_finite(subject.judge(subject.tasks[0], ""))])

    signal.signal(signal.SIGALRM, alarm)
    return {"score": score, "batch": batch, "warm_up": warm_up}


def _finite(value: float | None, error: str | None = None) -> Score:
    if value is not None and not math.isfinite(value):
        return Score(error=f"the reward is {value}")
    return Score(value=None if value is None else float(value), error=error)
