"""Checks of the grader itself: sanity, gold, hostile answers, leaks, and what a judge costs."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import fsum, inf

from gradus.auditing.leaks import names_the_answer, places_of_text, telling_place
from gradus.auditing.records import (
    ACCEPTED_FILE,
    LEAST_EFFECT,
    AuditCheck,
    GradedCompletion,
    high_of,
    is_above,
    signed,
)
from gradus.auditing.text.asking import DECLARED, Ground
from gradus.auditing.text.operators import HOSTILE
from gradus.auditing.text.rates import Shown, quoted, shown
from gradus.auditing.text.scoring import AnswerScore, Scorer
from gradus.auditing.text.tasks import Answer, Answers, TextSubject, TextTask
from gradus.core.findings import Status
from gradus.stats import format_number, mean_interval, wilson

_QUOTED = 40  # characters of an answer
_BATCH = 12  # tasks that are asked in one call
_AGAIN = 8  # tasks that are asked once more
_STEPS = 1000  # of the training that a grader hears of


def sanity(ground: Ground, notes: Sequence[GradedCompletion] = ()) -> AuditCheck:
    """The same answer, of those that are shown too, earns the same in another order and in a batch; gold earns the full reward."""
    n = len(ground.tasks)
    subject = ground.subject
    problems: list[str] = []
    if ground.is_usable and not subject.remote:  # a judge keeps what it said by its content
        ground.enter("sanity")
        problems += [_asked_again(ground, notes), _in_a_batch(ground), _at_steps(ground)]
    problems += [_unpaid(ground), _out_of_range(ground)]
    # Gold that earns the most there is may earn nothing more than other answers.
    earned = "the full reward" if ground.span > 0 else f"{format_number(ground.top)}, no more than other answers,"
    sentences = list(filter(None, problems)) or [f"gold earns {earned} on {n} tasks, and the same again"]
    if ground.form != DECLARED:
        task = next(task for task in subject.tasks if task.gold)
        declared = repr(task.gold_completion[:80])
        why = "because it earns less in the form that the tasks declare"
        sentences.append(f"gold is written {ground.form}, {why}: {declared}")
    if ground.effort < 1.0:
        sentences.append(f"{n} of {len(subject.tasks)} tasks, because the grader is slow")
    return AuditCheck(
        subject="sanity",
        status="fail" if any(problems) else "pass",
        evidence="; ".join(sentences),
        measured={"tasks": n, "form": ground.form, "effort": ground.effort},
    )


def _unpaid(ground: Ground) -> str:
    """Says on how many tasks gold does not earn the full reward, empty if on few."""
    n = len(ground.tasks)
    least = ground.top - 0.1 * ground.span
    gold = [probe for probe in ground.probes if probe.operator == "gold" and not probe.score.skipped]
    unpaid = [probe for probe in gold if probe.value is None or probe.value < least]
    if not unpaid or not is_above(wilson(len(unpaid), n), LEAST_EFFECT):
        return ""
    example = f"{unpaid[0].answer[:60]!r} earns {unpaid[0].value}"
    return f"gold does not earn the full reward on {len(unpaid)} of {n} tasks, e.g. {example}"


def _out_of_range(ground: Ground) -> str:
    """Says that a reward of gold, silence or a wrong answer leaves the declared range, empty if none does."""
    low, high = ground.subject.range or (-inf, inf)
    for base in ground.bases.values():
        rewards = base.gold, base.wrong, base.silence
        if min(rewards) < low - 1e-9 or max(rewards) > high + 1e-9:
            return f"rewards leave the declared range [{low:g}, {high:g}]"
    return ""


def _wrong_and_gold(ground: Ground, task: TextTask) -> list[Answer]:
    """The gold of another task, the one that is asked for the task's base, if there is one, and the task's own."""
    other = ground.golds[task.key].another(ground.rng("wrong 0", task))
    answers = [other, task.answer] if other else [task.answer]
    return [(task, task.completion(answer)) for answer in answers]


def _asked_again(ground: Ground, notes: Sequence[GradedCompletion]) -> str:
    """Wrong answers first, then gold, from the last task to the first, each twice, then what is shown, in a new process: names the first reward that changes."""
    rows: list[Answer] = []
    for task in reversed(ground.tasks[:_AGAIN]):
        rows += _wrong_and_gold(ground, task) * 2
    rows += [(ground.golds[note.task].task, note.completion) for note in notes]
    before = ground.scorer.score(rows)
    return _changed(rows, before, ground.scorer.fresh(rows), "asked again")


def _at_steps(ground: Ground) -> str:
    """Names the step of a training, the first, the middle or the last, at which gold no longer earns more than a wrong answer."""
    if ground.subject.rewards is None:
        return ""
    pairs = [_wrong_and_gold(ground, task) for task in ground.tasks[:_AGAIN]]
    rows = [row for pair in pairs if len(pair) > 1 for row in pair]
    if not _earns_more(ground, rows, ground.scorer.score(rows)):
        return ""  # no step is to blame
    # Each in a process of its own, and none may take the time of the checks that follow.
    for share, name in ((0.0, "first"), (0.5, "middle"), (1.0, "last")):
        subject = replace(ground.subject, judge=partial(_judge_at, ground.subject, share))
        scorer = Scorer(subject=subject, limit=ground.scorer.limit / 10, confined=ground.scorer.confined)
        scores = scorer.fresh(rows)
        if not _earns_more(ground, rows, scores):
            return (
                f"at the {name} step of a training gold earns no more than a wrong answer, e.g. {rows[0][1][:60]!r} earns "
                f"{scores[0].value}; make the reward a function of task and answer alone"
            )
    return ""


def _earns_more(ground: Ground, rows: Answers, scores: Sequence[AnswerScore]) -> bool:
    """Returns True if gold, every second row, earns more than the wrong answers before it, or a row has no reward."""
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(rows):
        return True
    return fsum(values[1::2]) - fsum(values[::2]) > LEAST_EFFECT * ground.span * len(rows) / 2


def _judge_at(subject: TextSubject, share: float, task: TextTask, answer: str) -> float | None:
    """The reward after a share of a training."""
    assert subject.rewards is not None
    # In the forked process: the audit's own rewards keep their state.
    state = subject.rewards.trainer_state
    state.max_steps = _STEPS
    state.global_step = int(share * _STEPS)
    return subject.judge(task, answer)


def _in_a_batch(ground: Ground) -> str:
    """An answer to each of several tasks, in one call: names the first whose reward hangs on other rows than its own.

    Every second task is answered with the gold of the task before it. A difference below the least effect may be rounding.
    """
    if ground.subject.judge_all is None:
        return ""
    rows: list[Answer] = []
    before = ""
    for place, task in enumerate(ground.tasks[:_BATCH]):
        rows.append((task, task.completion(before if place % 2 else task.answer)))
        before = task.answer
    alone = ground.scorer.score(rows)
    together = ground.scorer.batch(rows)
    # A call that hung or was not made leaves the check open.
    ground.skipped["sanity"] += sum(score.hung or score.skipped for score in together)
    how = "in one call with answers to other tasks"
    problem = _changed(rows, alone, together, how, least=LEAST_EFFECT * ground.span)
    return problem and f"{problem}; read the columns of each completion's own row"


def _changed(
    rows: Answers,
    before: Sequence[AnswerScore],
    after: Sequence[AnswerScore],
    how: str,
    *,
    least: float = 0.0,
) -> str:
    """Names the first answer whose reward is another one now, by ``least`` at least."""
    for (_, answer), old, new in zip(rows, before, after, strict=True):
        was_cut = old.hung or new.hung or old.skipped or new.skipped
        if was_cut or old.value == new.value:
            continue
        if old.value is None or new.value is None or abs(old.value - new.value) >= least:
            return f"the same answer earns {old.value} and, {how}, {new.value}: {answer[:60]!r}"
    return ""


def gold(ground: Ground) -> AuditCheck:
    """Gold above the golds of other tasks: the ladder that nobody has to declare."""
    if not ground.bases:
        return AuditCheck(subject="gold", status="fail", evidence="no gold answer got a reward")
    bases = ground.bases.values()
    gain = mean_interval([base.gold - base.wrong for base in bases])
    silent = mean_interval([base.gold - base.silence for base in bases])
    least = LEAST_EFFECT * max(ground.span, 1e-9)
    status: Status = "pass" if is_above(gain, 0.0) else "open"
    evidence = f"gold earns {signed(gain, 2)} more than another task's gold"
    most = high_of(gain)
    # An unknown bound, as of one task, does not fail it.
    if ground.span <= 0 or (most is not None and most <= least):
        status = "fail"
        evidence = f"another task's gold earns as much as gold: {signed(gain, 2)} apart"
    measured = {"gold - another task's gold": gain, "gold - silence": silent, "least_effect": least}
    return AuditCheck(subject="gold", status=status, evidence=evidence, measured=measured)


def ask_hostile(ground: Ground) -> None:
    """Ask every hostile answer, in the form of gold and without; the log holds those on which the grader fails or hangs."""
    ground.enter("hostile answers")
    # One task will do: what such an answer does to a grader hangs little on the question.
    task = ground.tasks[0]
    forms = dict.fromkeys((task, replace(task, before="", after="")))
    ground.ask_each("hostile answers", HOSTILE, list(forms))


def hostile(ground: Ground, *, programs: bool = False) -> AuditCheck:
    """No answer of any check makes the grader hang or run code.

    ``programs``: answers that are programs were tried, which may be run.
    """
    problems: list[str] = []
    hung = ground.hung
    run = ", ".join(ground.executed[:3])
    if ground.executed and not programs:
        problems.append(f"the grader executes the answer ({run}); parse it instead")
    if hung:
        problems.append(f"the grader hangs on {quoted(hung[0].answer, _QUOTED)}; it was cut off")
    where = "in a sandbox" if ground.scorer.confined else "not tried whether answers are executed: no sandbox for it"
    evidence = "; ".join(problems) or f"no answer makes the grader hang or run code ({where})"
    if ground.longest < inf:
        evidence += f"; it takes long for an answer of {ground.longest:,} characters, so few as long were asked"
    if ground.executed and ground.scorer.confined:
        evidence += f"; answers run as code ({run}), so all were asked in a sandbox: no network, no files but Python's, no secrets"
    return AuditCheck(
        subject="hostile answers",
        status="fail" if problems else "pass",
        evidence=evidence,
        measured={"executed": list(ground.executed), "hung": list(map(shown, hung[:5]))},
    )


def grading(ground: Ground) -> AuditCheck:
    """Every text has a reward: a grader that raises on one is broken, which says nothing of what it rewards."""
    scored = ground.scored
    failed = len(ground.errors) + len(ground.hung)
    if not ground.errors or (ground.subject.remote and scored):
        return AuditCheck(subject="grading", status="pass", evidence=f"no answer of {scored:,} makes the grader raise")
    error = ground.errors[0].score.error or ""
    raised = f"{quoted(ground.errors[0].answer, _QUOTED)}: {error}"
    status: Status = "fail"
    evidence = f"it fails on every one of the {failed} answers that it was asked, e.g. on {raised}"
    if scored:
        evidence = (
            f"it fails on {failed} of {failed + scored:,} answers, e.g. on {raised}; return the least reward instead"
        )
    elif ground.scorer.confined:
        evidence += ". It was asked in a sandbox, without network, environment or other files than Python's; --unsafe asks outside"
        # It may miss a file or a server that it has outside, which is no fault of its own. What it raised came as a text.
        kind = getattr(builtins, error.split(":")[0].strip(), None)
        if isinstance(kind, type) and issubclass(kind, OSError):
            status = "open"
    return AuditCheck(subject="grading", status=status, evidence=evidence, measured={"errors": _errors(ground)})


def _errors(ground: Ground) -> list[Shown]:
    """The first answers on which the grader raised, with what it raised."""
    return [{**shown(probe), "error": probe.score.error} for probe in ground.errors[:5]]


def judge(ground: Ground) -> AuditCheck:
    """Says how far a grader that asks a server disagrees with itself, how many scores are missing, and what it cost."""
    errors = ground.errors
    logged = ground.scorer.logged
    answers = ground.scorer.calls
    missing = wilson(len(errors), max(answers, len(errors), 1))  # of none asked, none is missing
    spread = mean_interval(list(logged.get("judge_disagreement", ())))
    dollars = fsum(logged.get("judge_cost", ()))
    sentences = [f"{answers:,} answers for {format_number(dollars, 2)} US dollars"]
    status: Status = "pass"
    if spread.mean is None:
        status = "open"
        sentences.append("none was judged twice, so how far the judge disagrees with itself is not known; set recheck")
    else:
        high = high_of(spread)
        sentences.append(f"judged twice, {spread.n} answers differ by {signed(spread, 2).lstrip('+')} of the range")
        if is_above(spread, LEAST_EFFECT):
            status = "fail"
            sentences.append("take the mean of several samples, lower the temperature, or sharpen the rubric")
        elif high is None or high > LEAST_EFFECT:
            status = "open"
    if errors:
        sentences.append(f"{len(errors)} have no score, the first: {errors[0].score.error}")
    if errors and is_above(missing, LEAST_EFFECT):
        status = "fail"
    return AuditCheck(
        subject="judge",
        status=status,
        evidence="; ".join(sentences),
        measured={
            "disagreement": spread,
            "missing": {"count": len(errors), **asdict(missing)},
            "dollars": dollars,
            "errors": _errors(ground),
        },
    )


def leaks(ground: Ground) -> AuditCheck:
    """No place of the prompt holds the gold answer of its own task."""
    places = [places_of_text(task.prompt, "the prompt") for task in ground.tasks]
    place = telling_place(places, [[task.gold] for task in ground.tasks])
    if place is None:
        return AuditCheck(subject="leaks", status="pass", evidence="no place of the prompt holds the gold answer")
    if names_the_answer(place):
        return AuditCheck(subject="leaks", status="fail", evidence=f"the gold answer is in {place}; take it out")
    evidence = f"the gold answer is in {place}: a leak, unless the task is to copy it from there (then accept it in {ACCEPTED_FILE})"
    return AuditCheck(subject="leaks", status="open", evidence=evidence)
