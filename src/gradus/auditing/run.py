"""The audit of an environment's grader: by answers if tasks have one turn and gold answers, elsewhere by policies and a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gradus.auditing.plans.comparisons import (
    check_alignment,
    check_exploits,
    check_separation,
)
from gradus.auditing.plans.exploit import (
    check_one_plan,
    check_search,
    search_plans,
)
from gradus.auditing.plans.hygiene import Elsewhere, check_hygiene, check_tasks, not_graded
from gradus.auditing.plans.panel import (
    Progress,
    main_tasks,
    plan_subject,
    roll_out_panel,
    silent,
)
from gradus.auditing.records import (
    AuditCheck,
    GradedCompletion,
    Point,
    rewards_of,
    true_rewards_of,
)
from gradus.auditing.result import AuditResult
from gradus.auditing.text.asking import CALLS, Ground, are_programs, prepare
from gradus.auditing.text.checks import (
    ask_hostile,
    gold,
    grading,
    hostile,
    judge,
    leaks,
    sanity,
)
from gradus.auditing.text.figures import figure
from gradus.auditing.text.from_source import from_source
from gradus.auditing.text.paying import (
    right_answers,
    without_task,
    wrong_answers,
)
from gradus.auditing.text.programs import NAME as PROGRAMS_CHECK
from gradus.auditing.text.programs import programs
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import (
    CALLS_SECONDS,
    PROGRAM_SECONDS,
    TASKS,
    Functions,
    TextSubject,
    codes_of,
    subject_of,
)
from gradus.auditing.text.without_gold import NO_RANGE, any_text, keeps_to_range, prepare_without_gold
from gradus.core import EnvironmentSpec, Episode, Grader
from gradus.core.foreign import GRADER_SECONDS
from gradus.stats import mean_interval

# Of an audit by policies, if nothing is said.
_EPISODES = 60
_BUDGET = 8000
# The same for a foreign agent, whose search is bounded by time.
_AGENT_EPISODES = 12
_AGENT_SECONDS = 30.0
_NEED_REWARDS = ("separation", "exploits", "alignment", "search", "one plan")


Found = Callable[[GradedCompletion], None]


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings of an audit. The same settings give the same result."""

    episodes: int | None = None  # tasks that are probed (48 if None), or that every policy is rolled out on (60)
    budget: int | None = None  # episodes that the search may roll out (8,000), of which tasks of one turn need none
    seed: int = 0
    limit: float | None = None  # seconds of all calls of a grader of one-turn tasks together
    unsafe: bool = False  # try hostile answers without a sandbox too
    found: Found = lambda exploit: None  # is given each exploit when it is found
    elsewhere: Elsewhere | None = None  # rolls tasks out in another process and returns what it saw, to compare
    progress: Progress = silent  # is given what is done, how much of it, and of how much


def audit_any(
    spec: EnvironmentSpec,
    grader: Grader,
    settings: AuditSettings = AuditSettings(),
) -> AuditResult:
    """The audit that fits."""
    return run_text_audit(spec, grader, settings) or run_audit(spec, grader, settings)


def run_text_audit(
    spec: EnvironmentSpec,
    grader: Grader,
    settings: AuditSettings = AuditSettings(),
) -> AuditResult | None:
    """Audit the grader of one-turn tasks by probing it with answers; None where policies must play: see :func:`subject_of`."""
    subject = subject_of(spec, grader, tasks=settings.episodes or TASKS)
    if subject is None:
        return None
    checks, n = audit_text(subject, settings)
    tasks = check_tasks(plan_subject(spec, grader, seed=settings.seed), elsewhere=settings.elsewhere)
    return AuditResult(
        environment=spec.name,
        grader=grader.name,
        true_reward_name="share of right answers",
        condition=next(iter(spec.conditions)),
        episodes=n,
        seed=settings.seed,
        checks=[*checks, tasks],
        place=place_of(subject.functions),
    )


def run_audit(
    spec: EnvironmentSpec,
    grader: Grader,
    settings: AuditSettings = AuditSettings(),
) -> AuditResult:
    """Audit a grader of ``spec`` with policies and a search."""
    episodes = settings.episodes or (_AGENT_EPISODES if spec.foreign else _EPISODES)
    subject = plan_subject(spec, grader, seed=settings.seed)
    started = time.monotonic()
    panel = roll_out_panel(subject, episodes=episodes, progress=settings.progress)
    budget = _BUDGET if settings.budget is None else settings.budget
    if spec.foreign and settings.budget is None:
        # What an agent's episode takes is known after the panel, and bounds its search.
        seconds = (time.monotonic() - started) / max(1, len(panel.flat))
        budget = min(_BUDGET, int(_AGENT_SECONDS / seconds))
    hygiene = check_hygiene(subject, panel, elsewhere=settings.elsewhere)
    rolled_out = [(name, panel.role(name), episodes) for name, episodes in panel.episodes.items()]
    hack = None
    if panel.is_graded:
        search = search_plans(subject, panel, main_tasks(spec, panel.tasks), budget=budget, progress=settings.progress)
        searched, hack = check_search(search)
        checks = [
            check_separation(panel),
            check_exploits(panel),
            check_alignment(panel, spec.true_reward_name),
            searched,
            check_one_plan(search),
        ]
        rolled_out += [(f"search: {plan.describe()}", "search", finals) for plan, finals in search.finalists]
    else:
        why = "no episode got a reward; see grading"
        skipped = [AuditCheck(subject=name, status="note", evidence=why) for name in _NEED_REWARDS]
        checks = [not_graded(panel), *skipped]
    return AuditResult(
        environment=spec.name,
        grader=grader.name,
        true_reward_name=spec.true_reward_name,
        condition=panel.condition,
        episodes=panel.tasks,
        seed=settings.seed,
        checks=[*checks, hygiene],
        points=[_point(*row) for row in rolled_out],
        hack=hack,
        most=len(main_tasks(spec)),
    )


def _point(name: str, role: str, episodes: Sequence[Episode]) -> Point:
    """A policy in the plane of reward against true reward."""
    reward = mean_interval(rewards_of(episodes))
    true_reward = mean_interval(true_rewards_of(episodes))
    return Point(policy=name, role=role, reward=reward, true_reward=true_reward)


def audit_text(subject: TextSubject, settings: AuditSettings = AuditSettings()) -> tuple[list[AuditCheck], int]:
    """Probe the grader of one-turn tasks; returns the checks, and on how many tasks it was probed.

    One call may take 6 s, and 30 if answers are programs; ``settings.limit``: of all calls together, 20 s and 180; what is not asked within
    it leaves its check unresolved. The same subject and seed give the same result, unless a call or the whole lies at its limit.
    """
    seconds, limit = GRADER_SECONDS.answer, CALLS_SECONDS
    if are_programs(subject.tasks):
        seconds, limit = GRADER_SECONDS.program, PROGRAM_SECONDS
    if subject.remote:
        seconds = GRADER_SECONDS.remote
    most_calls = CALLS * len(subject.tasks)

    def tell(calls: int) -> None:
        settings.progress(f"audit {subject.grader}", min(calls, most_calls), most_calls)

    scorer = Scorer(
        subject,
        seconds=seconds,
        limit=limit if settings.limit is None else settings.limit,
        tell=tell,
    )
    has_gold = any(task.gold for task in subject.tasks)
    prepared = prepare if has_gold else prepare_without_gold
    try:
        ground = prepared(subject, scorer, seed=settings.seed, unsafe=settings.unsafe)
        checks = _text_checks(ground, settings)
    finally:
        scorer.close()
    return [_as_far_as_asked(check, ground) for check in checks], len(ground.tasks)


# What a grader pays for, in the order in which the checks may spend the time; each leaves the next one what it did not need.
_WITHOUT_TASK: Sequence[Callable[[Ground], AuditCheck]] = (
    partial(without_task, name="blind answers"),
    partial(without_task, name="reflexes"),
)
_OF_GOLD: Sequence[Callable[[Ground], AuditCheck]] = (from_source, wrong_answers, right_answers)


def place_of(functions: Functions) -> tuple[str, int]:
    """File and line of the first function that is written in Python, relative to the working folder if it lies there."""
    for code in codes_of(functions):
        path = Path(code.co_filename)
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return str(path), code.co_firstlineno
    return "", 0


def _text_checks(ground: Ground, settings: AuditSettings) -> list[AuditCheck]:
    """All checks. If nobody knows a right answer, it can be said whether something earns without the task."""
    has_gold = bool(ground.others.golds)
    paying = _paying_checks(ground, settings, has_gold)
    about_gold = [any_text(ground)]
    if has_gold:
        notes = [note for check in paying for note in check.notes]
        about_gold = [sanity(ground, notes), gold(ground)]
    if ground.is_usable:
        ask_hostile(ground)
    leaked = [leaks(ground)] if has_gold else []
    # Of a grader that raises on every answer nothing else can be said.
    if ground.errors and not ground.bases and not ground.scored:
        return [grading(ground), *leaked]
    if ground.subject.remote:
        paying.append(judge(ground))
    runs_programs = any(check.subject == PROGRAMS_CHECK for check in paying)
    return [
        figure(ground, paying),
        *about_gold,
        *paying,
        grading(ground),
        hostile(ground, programs=runs_programs),
        *leaked,
    ]


def _paying_checks(ground: Ground, settings: AuditSettings, has_gold: bool) -> list[AuditCheck]:
    """The checks of what a grader pays for; none if all answers earn the same."""
    if not ground.is_usable:
        return []
    runs_programs = bool(ground.executed)
    if has_gold:
        runs_programs = are_programs(ground.tasks) and (ground.scorer.confined or settings.unsafe)
    kinds = [*_WITHOUT_TASK, *(_OF_GOLD if has_gold else ())]
    if runs_programs:
        kinds.insert(0, programs)
    paying: list[AuditCheck] = []
    for check_of in kinds:
        check = check_of(ground)
        if not has_gold and not keeps_to_range(ground):
            check = replace(check, status="open", evidence=f"{NO_RANGE}; {check.evidence}", notes=[])
        paying.append(check)
        for note in check.notes:
            if note.kind == "exploit":
                settings.found(note)
    # Beside gold, programs are asked before others and shown behind them.
    return [*paying[1:], paying[0]] if has_gold and runs_programs else paying


def _as_far_as_asked(check: AuditCheck, ground: Ground) -> AuditCheck:
    """A check that passes on less than all of its answers is not settled; one that had time for few tasks says so."""
    if check.subject in ground.shortened:
        why = f"asked on {ground.shortened[check.subject]} tasks in {ground.scorer.limit:.0f} s (--seconds gives more)"
        check = replace(check, evidence=f"{check.evidence}; {why}")
    # A failure needs no further answers.
    skipped = ground.skipped[check.subject]
    if not skipped or check.status not in ("pass", "note"):
        return check
    why = f"{skipped:,} of its answers were not asked: {ground.scorer.stopped}"
    return replace(check, status="open", evidence=f"{why}; so far: {check.evidence}")
