"""The audit of rows without reference answers: what earns without the task is an exploit all the same; what right answers earn is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from gradus.auditing.records import AuditCheck
from gradus.auditing.text.asking import LEAST_TASKS, Ground, ask_canaries, effort
from gradus.auditing.text.blind import constant
from gradus.auditing.text.gold import Others
from gradus.auditing.text.rates import Base
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import CALLS_SECONDS, PROGRAM_SECONDS, TextSubject
from gradus.sandbox.command import sandbox_works

_FENCE = "```python\n", "\n```"
_TOP = 1.0  # of rewards without a declared range
_WRONG = ("x", "0", "unknown", "I don't know", "the answer")  # for no task the right answer of most
_NEARLY_ALL = 0.9  # of the top, and of the tasks
NO_RANGE = "rewards are above 1 and declare no range, so it is not known what share of the most is earned"


def prepare_without_gold(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Ground:
    """Finds out whether answers are executed, in what form, and what any wrong text of that form earns, which stands for gold's contrary."""
    scorer.confined = sandbox_works() and not unsafe
    ground = Ground(subject=subject, scorer=scorer, tasks=subject.tasks, others=Others(golds=[]), seed=seed)
    ground.enter("gold")
    if scorer.confined or unsafe:
        ground = _in_the_form_that_runs(ground)
    if ground.executed and scorer.limit == CALLS_SECONDS:  # nobody named another
        scorer.limit = PROGRAM_SECONDS
    share = effort(subject.tasks, scorer)
    ground = replace(ground, effort=share, tasks=ground.tasks[: max(LEAST_TASKS, int(len(ground.tasks) * share))])
    _find_bases(ground)
    return ground


def _in_the_form_that_runs(ground: Ground) -> Ground:
    """The ground with answers as they are, or in a fence if more kinds of code run in one."""
    fenced = [replace(task, before=_FENCE[0], after=_FENCE[1]) for task in ground.tasks]
    bare, in_fence = ground, replace(ground, tasks=fenced, form="in a fence")
    for candidate in (bare, in_fence):
        ask_canaries(candidate)
    return in_fence if len(in_fence.executed) > len(bare.executed) else bare


def _find_bases(ground: Ground) -> None:
    """The top of the range stands for gold; for each task, what most wrong texts earn is the pay of any text."""
    top = _TOP if ground.subject.range is None else ground.subject.range[1]
    silence = ground.ask("gold", [("silence", task, "") for task in ground.tasks])
    wrong = ground.ask_each("gold", {text: constant(text) for text in _WRONG}, ground.tasks)
    earned: dict[str, list[float]] = {}
    for probe in [probe for probes in wrong.values() for probe in probes]:
        if probe.value is not None:
            earned.setdefault(probe.task.key, []).append(probe.value)
    bases: dict[str, Base] = {}
    for probe in silence:
        rewards = earned.get(probe.task.key)
        if rewards:
            bases[probe.task.key] = Base(gold=top, wrong=median_low(rewards), silence=probe.reward)
    ground.bases = bases
    ground.span = top - min((min(base.wrong, base.silence) for base in bases.values()), default=top)


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
    probes = [probe for probes in ground.probes.values() for probe in probes]
    return ground.subject.range is not None or all(probe.reward <= _TOP + 1e-9 for probe in probes)
