"""Helpers of tests of the audit of one-turn graders: tasks, graders, and one check or all checks of a grader."""

import json
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gradus.auditing.records import AuditCheck
from gradus.auditing.run import AuditSettings, audit_text
from gradus.auditing.text import checks
from gradus.auditing.text.asking import Ground, prepare
from gradus.auditing.text.gold import Gold, Others
from gradus.auditing.text.paying import right_answers, without_task, wrong_answers
from gradus.auditing.text.rates import Base
from gradus.auditing.text.scoring import AnswerScore, Scorer
from gradus.auditing.text.tasks import TextSubject, TextTask

Judge = Callable[[TextTask, str], Any]
CHECKS = {
    "gold": checks.gold,
    "blind answers": lambda ground: without_task(ground, "blind answers"),
    "reflexes": lambda ground: without_task(ground, "reflexes"),
    "wrong answers": wrong_answers,
    "right answers": right_answers,
    "leaks": checks.leaks,
}


def rows_of(rows: Sequence[tuple[str, str]]) -> list[TextTask]:
    """Tasks of pairs of question and answer."""
    return [TextTask(key=str(i), prompt=prompt, gold=gold) for i, (prompt, gold) in enumerate(rows)]


def tasks_of(golds: Sequence[str], prompt: str = "question {}") -> list[TextTask]:
    """Tasks with these answers, and with questions that are numbered."""
    return rows_of([(prompt.format(i), gold) for i, gold in enumerate(golds)])


def sums(n: int = 30, prompt: str = "What is {a} + {b}?") -> list[TextTask]:
    rng = random.Random(1)
    pairs = [(rng.randrange(100, 999), rng.randrange(100, 999)) for _ in range(n)]
    return rows_of([(prompt.format(a=a, b=b, gold=a + b), str(a + b)) for a, b in pairs])


def gold_of(text: str, others: Sequence[str] = (), prompt: str = "") -> Gold:
    """A right answer among those of other tasks."""
    return Gold(task=TextTask(key="0", prompt=prompt, gold=text), others=Others(golds=[text, *others]))


def sound(task: TextTask, answer: str) -> float:
    try:
        return float(Fraction(answer.strip().replace(",", "")) == Fraction(task.gold or ""))
    except (ValueError, ZeroDivisionError):
        return 0.0


def exact(task: TextTask, answer: str) -> float:
    return float(answer.strip() == task.gold)


def as_json(text: str) -> Any:
    """The value, None if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def subject(judge: Judge, tasks: Sequence[TextTask] | None = None, **options: Any) -> TextSubject:
    return TextSubject(name="sums", grader="g", tasks=tasks or sums(), judge=judge, **options)


def audited(judge: Judge, tasks: Sequence[TextTask] | None = None, **options: Any) -> dict[str, AuditCheck]:
    """All checks of a grader, by name."""
    checks, _ = audit_text(subject(judge, tasks), AuditSettings(**options))
    return {check.subject: check for check in checks}


class Paying:
    """A scorer that asks a grader in this process and keeps what it was asked."""

    limit, hangs, confined, spent, left = 20.0, 0, False, 0.0, 20.0

    def __init__(self, pays: Judge) -> None:
        self.pays, self.rows = pays, []

    @property
    def calls(self) -> int:
        """How many answers were asked."""
        return len(self.rows)

    def allow(self, share: float) -> None:
        pass

    def score(self, rows: Sequence[tuple[TextTask, str]]) -> list[AnswerScore]:
        self.rows += rows
        return [self._one(task, answer) for task, answer in rows]

    def fresh(self, rows: Sequence[tuple[TextTask, str]]) -> list[AnswerScore]:
        return self.score(rows)

    def _one(self, task: TextTask, answer: str) -> AnswerScore:
        try:
            return AnswerScore(value=float(self.pays(task, answer)))
        except Exception as raised:
            return AnswerScore(error=str(raised))


def ground_of(asked: TextSubject, scorer: Any = None, base: Base | None = None, **found: Any) -> Ground:
    """The ground of checks with these figures; gold earns 1 and all else nothing if none are given."""
    tasks, base = asked.tasks, base or Base(gold=1.0, wrong=0.0, silence=0.0)
    others = Others(golds=[task.gold or "" for task in tasks])
    found = {"bases": {task.key: base for task in tasks}, **found}
    return Ground(subject=asked, scorer=scorer or Scorer(asked), tasks=tasks, others=others, **found)


def check_of(name: str, judge: Judge, tasks: Sequence[TextTask] | None = None) -> AuditCheck:
    """One check of a grader that is asked in this process."""
    scorer: Any = Paying(judge)
    return CHECKS[name](prepare(subject(judge, tasks), scorer, seed=0))


def hostile_check(judge: Judge) -> AuditCheck:
    """What hostile answers do to a grader that is asked in its own process."""
    asked = subject(judge)
    scorer = Scorer(asked, seconds=0.3)
    ground = prepare(asked, scorer, seed=0)
    checks.ask_hostile(ground)
    scorer.close()
    found = [checks.hostile(ground), checks.grading(ground)]
    return next((check for check in found if check.status == "fail"), found[0])
