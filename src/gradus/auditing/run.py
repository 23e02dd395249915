"""The audit of an environment's grader: by answers if tasks have one turn and gold answers, elsewhere by policies and a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradus.auditing.plans.comparisons import (
    check_alignment,
    check_exploits,
    check_free_credit,
    check_separation,
    check_signal,
)
from gradus.auditing.plans.exploit import PlanSearch, check_search, constant_credit, search_plans
from gradus.auditing.plans.hygiene import Elsewhere, check_hygiene, check_tasks
from gradus.auditing.plans.judged import Judged
from gradus.auditing.plans.panel import blind_answers, main_tasks, roll_out_panel
from gradus.auditing.records import Check, PanelEpisodes, Point, rewards_of, true_rewards_of
from gradus.auditing.result import AuditResult
from gradus.auditing.text.asking import CALLS, Ground, are_programs, prepare
from gradus.auditing.text.checks import ask_hostile, gold, hostile, judge, leaks, not_graded, sanity
from gradus.auditing.text.from_source import from_source
from gradus.auditing.text.paying import (
    programs,
    right_answers,
    without_task,
    wrong_answers,
)
from gradus.auditing.text.rates import quoted
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import (
    CALLS_SECONDS,
    PROGRAM_SECONDS,
    TASKS,
    TextSubject,
    subject_of,
)
from gradus.core import EnvironmentSpec, Grader, Policy
from gradus.core.foreign import GRADER_SECONDS
from gradus.stats import mean_interval

_EPISODES, _BUDGET = 60, 8000  # of an audit by policies, if nothing is said


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings of an audit. The same settings give the same result.

    ``episodes``: tasks that are probed (48 if None), or that every policy is rolled out on (60). ``budget``: episodes that the search may roll out
    (8,000), of which tasks of one turn need none. ``signal_policy``: whose groups are forecast, on ``signal_tasks`` tasks; without it a stand-in.
    ``limit``: seconds of all calls of a grader of one-turn tasks together. ``unsafe``: try hostile answers without a sandbox too.
    ``elsewhere`` rolls tasks out in another process and returns what it saw, to compare. ``progress`` is told (what, done, of how many).
    """

    episodes: int | None = None
    budget: int | None = None
    seed: int = 0
    signal_policy: Policy | None = None
    signal_tasks: int = 24
    limit: float | None = None
    unsafe: bool = False
    elsewhere: Elsewhere | None = None
    progress: Callable[[str, float, int], None] | None = None


def audit_any(spec: EnvironmentSpec, grader: Grader, settings: AuditSettings = AuditSettings()) -> AuditResult:
    """The audit that fits."""
    return run_text_audit(spec, grader, settings) or run_audit(spec, grader, settings)


def run_text_audit(
    spec: EnvironmentSpec, grader: Grader, settings: AuditSettings = AuditSettings()
) -> AuditResult | None:
    """Audit the grader of one-turn tasks by probing it with answers; None if the tasks are not of one turn or know no gold answer."""
    seed, limit = settings.seed, settings.limit
    subject = subject_of(spec, grader, tasks=settings.episodes or TASKS)
    if subject is None:
        return None
    checks, n = audit_text(subject, seed=seed, limit=limit, unsafe=settings.unsafe, progress=settings.progress)
    tasks = check_tasks(spec, blind_answers(spec, seed=seed), seed=seed, elsewhere=settings.elsewhere)
    return AuditResult(
        environment=spec.name,
        grader=grader.name,
        true_reward_name="share of right answers",
        condition=next(iter(spec.conditions)),
        episodes=n,
        seed=seed,
        checks=[*checks, tasks],
    )


def run_audit(
    spec: EnvironmentSpec, grader: str | Grader | None = None, settings: AuditSettings = AuditSettings()
) -> AuditResult:
    """Audit one grader of ``spec`` (by name, the default one if None) with policies and a search."""
    judged = grader if isinstance(grader, Grader) else spec.grader(grader)
    seed, progress = settings.seed, settings.progress
    rolled_out = roll_out_panel(spec, judged, episodes=settings.episodes or _EPISODES, seed=seed, progress=progress)
    hygiene = check_hygiene(
        spec, judged, rolled_out, blind_answers(spec, seed=seed), seed=seed, elsewhere=settings.elsewhere
    )
    named = [(name, rolled_out.role(name), episodes) for name, episodes in rolled_out.episodes.items()]
    hack = None
    if rolled_out.is_graded:
        checks, hack, found = _checked(spec, judged, rolled_out, settings)
        plans = zip(found.finalists, found.episodes, strict=True)
        named += [("search: " + plan.describe(), "search", episodes) for plan, episodes in plans]
    else:
        why = "no episode got a reward; see hygiene"
        names = ("separation", "exploits", "free credit", "alignment", "search", "signal")
        checks = [Check(name=name, status="skip", evidence=why) for name in names]
    return AuditResult(
        environment=spec.name,
        grader=judged.name,
        true_reward_name=spec.true_reward_name,
        condition=rolled_out.condition,
        episodes=rolled_out.tasks,
        seed=seed,
        checks=[*checks, hygiene],
        points=[
            Point(
                policy=name,
                role=role,
                reward=mean_interval(rewards_of(episodes)),
                true_reward=mean_interval(true_rewards_of(episodes)),
            )
            for name, role, episodes in named
        ],
        hack=hack,
        most=len(main_tasks(spec)),
    )


def _checked(
    spec: EnvironmentSpec, grader: Grader, panel: PanelEpisodes, settings: AuditSettings
) -> tuple[list[Check], Judged | None, PlanSearch]:
    """The checks that need rewards, the hack if there is one, and the search."""
    seed, tasks = settings.seed, main_tasks(spec, panel.tasks)
    draw = blind_answers(spec, seed=seed)
    budget = _BUDGET if settings.budget is None else settings.budget
    found = search_plans(spec, grader, panel, tasks, draw, budget=budget, seed=seed, progress=settings.progress)
    searched, hack = check_search(found)
    checks = [
        check_separation(panel),
        check_exploits(panel),
        check_free_credit(panel, grader, constant_credit(found, panel, tasks, seed=seed)),
        check_alignment(panel, spec.true_reward_name),
        searched,
        check_signal(spec, grader, settings.signal_policy, draw, tasks=settings.signal_tasks, seed=seed),
    ]
    return checks, hack, found


def audit_text(
    subject: TextSubject,
    *,
    seed: int = 0,
    seconds: float | None = None,
    limit: float | None = None,
    unsafe: bool = False,
    progress: Callable[[str, float, int], None] | None = None,
) -> tuple[list[Check], int]:
    """Probe the grader of one-turn tasks; returns the checks, and on how many tasks it was probed.

    ``seconds``: the limit of one call, 6 s if None and 30 if answers are programs; ``limit``: of all calls together, 20 s and 180; what is
    not asked within it leaves its check unresolved. ``unsafe``: try hostile answers without a sandbox too. ``progress`` is told (what,
    answers asked, of about how many). The same subject and seed give the same result, unless a call or the whole lies at its limit.
    """
    of_call, of_all = (
        (GRADER_SECONDS.program, PROGRAM_SECONDS)
        if are_programs(subject.tasks)
        else (GRADER_SECONDS.answer, CALLS_SECONDS)
    )
    most = CALLS * len(subject.tasks)
    scorer = Scorer(
        subject,
        seconds=GRADER_SECONDS.remote if subject.remote else of_call if seconds is None else seconds,
        limit=of_all if limit is None else limit,
        tell=None if progress is None else lambda calls: progress(f"audit {subject.grader}", min(calls, most), most),
    )
    try:
        ground = prepare(subject, scorer, seed=seed, unsafe=unsafe)
        checks = _text_checks(ground, unsafe=unsafe)
    finally:
        scorer.close()
    return [_as_far_as_asked(each, ground) for each in checks], len(ground.tasks)


def _text_checks(ground: Ground, *, unsafe: bool) -> list[Check]:
    """All checks. They are asked in the order in which they may spend the time."""
    asked: list[Check] = []
    programs_run = ground.is_usable and are_programs(ground.tasks) and (ground.confined or unsafe)
    if ground.is_usable:
        ask_hostile(ground)
        run = [programs(ground)] if programs_run else []
        asked = [without_task(ground, "blind answers"), without_task(ground, "reflexes"), from_source(ground)]
        asked += [wrong_answers(ground), right_answers(ground), *run]
    first = sanity(ground)
    if ground.errors and not ground.bases and (ground.subject.remote or not ground.scored):
        return [not_graded(ground), leaks(ground)]
    judged = [judge(ground)] if ground.subject.remote else []
    checks = [first, gold(ground), *asked, *judged, hostile(ground, programs=programs_run), leaks(ground)]
    return _asked_again(ground, checks)


def _asked_again(ground: Ground, checks: list[Check]) -> list[Check]:
    """The checks, of which sanity fails if a noted completion earns something else in a new process: what is shown is what was graded."""
    tasks = {task.key: task for task in ground.tasks}
    notes = [note for check in checks for note in check.notes]
    scores = ground.scorer.fresh([(tasks[note.task], note.completion) for note in notes]) if notes else []
    for note, score in zip(notes, scores, strict=True):
        if None not in (note.reward, score.value) and note.reward != score.value:
            told = f"{quoted(note.completion, 200)} earns {note.reward} and, asked again, {score.value}"
            first = replace(checks[0], status="fail", evidence=f"{told}; {checks[0].evidence}")
            return [first, *checks[1:]]
    return checks


def _as_far_as_asked(check: Check, ground: Ground) -> Check:
    """A check that passes on less than all of its answers is not settled."""
    left = ground.skipped[check.name]
    if not left or check.status not in ("pass", "skip"):
        return check
    why = f"{left:,} of its answers were not asked: {ground.scorer.stopped}"
    return replace(check, status="unresolved", evidence=f"{why}; so far: {check.evidence}")
