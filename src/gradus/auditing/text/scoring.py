"""Asking the grader for scores: what was asked before is known, and all calls together have a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gradus.auditing.text.grader_process import GraderProcess, Score, what_was_raised
from gradus.auditing.text.tasks import CALLS_SECONDS, TextSubject, TextTask
from gradus.core import Reward
from gradus.rewards.judge import BROKE
from gradus.sandbox import clock

_HANGS = 3
_AT_ONCE = 64  # answers that a grader that asks a server is given together


@dataclass
class Scorer:
    """Scores answers in a forked process, so that nothing that a grader does reaches this one.

    ``seconds``: the limit of a call; one that is cut off is made once more before it counts as hung. ``limit``: seconds of all calls together.
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
        """The scores that the grader gives the answers in one call, in a new process; skipped if it takes none or the time is over."""
        if self.subject.judge_all is None or self._is_over():
            return [Score(error="not asked", skipped=True) for _ in rows]
        asked = [(task.key, answer) for task, answer in rows]
        with self._new_process(self.confined):
            scores = self._call(lambda child: child.ask_batch(asked), self.confined)
        return scores if len(scores) == len(rows) else scores * len(rows)

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
            rewards = [Reward(grader="", value=None, error=what_was_raised(raised)) for _ in rows]
        seconds = clock.now() - started
        self.spent += seconds if self.calls else 0.0  # the first call also loads the grader
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
        (score,) = self._call(lambda child: [child.ask(task.key, answer)], confined)
        if score.hung:
            (score,) = self._call(lambda child: [child.ask(task.key, answer)], confined)
            self.hangs += score.hung
        self._count(1)
        return score

    def _is_over(self) -> bool:
        """No more answers are asked for now; ``stopped`` says why."""
        if self.hangs >= _HANGS:
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

    def _call(self, ask: Callable[[GraderProcess], list[Score]], confined: bool) -> list[Score]:
        """The scores of one call; a single one, which says why, if the process died or did not reply in time."""
        started = clock.now()
        try:
            if confined not in self._children:
                self._children[confined] = GraderProcess(self.subject, self.seconds, confined)
                started = clock.now()  # without the time that loading takes
            scores = ask(self._children[confined])
        except OSError as ended:  # of which TimeoutError is one
            self._end(confined)
            hung = isinstance(ended, TimeoutError)
            error = "cut off" if hung else "the process died"
            scores = [Score(hung=hung, error=error, seconds=max(0.0, clock.now() - started))]
        self.spent += scores[0].seconds
        return scores
