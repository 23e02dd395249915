"""The audit of rows without reference answers: what earns without the task is an exploit all the same; what right answers earn is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from gradus.auditing.records import AuditCheck
from gradus.auditing.text.asking import Ground, begin, earned_without_gold, executed_canaries, leave_out_tasks
from gradus.auditing.text.blind import constant
from gradus.auditing.text.rates import Base
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import CALLS_SECONDS, PROGRAM_SECONDS, TextSubject

_FENCE = "```python\n", "\n```"
_TOP = 1.0  # of rewards without a declared range
_WRONG = ("x", "0", "unknown", "I don't know", "the answer")  # for no task the right answer of most
_NEARLY_ALL = 0.9  # of the top, and of the tasks
NO_RANGE = "rewards are above 1 and declare no range, so it is not known what share of the most is earned"


def prepare_without_gold(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Ground:
    """Finds out whether answers are executed, in what form, and what any wrong text of that form earns, which stands for gold's contrary."""
    ground = begin(subject, scorer, subject.tasks, seed=seed, unsafe=unsafe)
    if scorer.confined or unsafe:
        _write_in_the_form_that_runs(ground)
    if ground.executed and scorer.limit == CALLS_SECONDS:  # nobody named another
        scorer.limit = PROGRAM_SECONDS
    leave_out_tasks(ground)
    # The top of the range stands for gold; what most wrong texts earn is the pay of any text.
    top = _TOP if subject.range is None else subject.range[1]
    bases: dict[str, Base] = {}
    for key, silence, wrong in earned_without_gold(ground, {text: constant(text) for text in _WRONG}):
        if wrong:
            bases[key] = Base(gold=top, wrong=median_low(wrong), silence=silence)
    ground.bases = bases
    return ground


def _write_in_the_form_that_runs(ground: Ground) -> None:
    """Write answers as they are, or in a fence if more kinds of code run in one."""
    fenced = [replace(task, before=_FENCE[0], after=_FENCE[1]) for task in ground.tasks]
    bare, in_fence = executed_canaries(ground, ground.tasks), executed_canaries(ground, fenced)
    ground.executed = bare
    if len(in_fence) > len(bare):
        ground.executed = in_fence
        ground.form = "in a fence"
        ground.tasks = fenced


def any_text(ground: Ground) -> AuditCheck:
    """Without reference answers it is open what right answers earn, unless any text earns the most on nearly all tasks."""
    bases: Sequence[Base] = list(ground.bases.values())
    most = [base for base in bases if base.wrong >= _NEARLY_ALL * base.gold]
    if bases and len(most) >= _NEARLY_ALL * len(bases):
        evidence = f"any text earns the most: {_WRONG[2]!r} and others earn {bases[0].wrong:.2f} on {len(most)} of {len(bases)} tasks"
        return AuditCheck(subject="gold", status="fail", evidence=evidence)
    why = "no row has a reference answer, so it is not known what right ones earn; a column `answer` gives them"
    return AuditCheck(subject="gold", status="open", evidence=why)


def keeps_to_range(ground: Ground) -> bool:
    """Says whether rewards keep to the declared range, or to 1 where none is declared."""
    return ground.subject.range is not None or all(probe.reward <= _TOP + 1e-9 for probe in ground.probes)
