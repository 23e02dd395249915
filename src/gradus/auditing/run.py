"""The audit of an environment's grader: seven checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradus.auditing.plans.attack import Attack, Attacker, Target, attack_answers, run_attacker, skipped_attack
from gradus.auditing.plans.comparisons import check_alignment, check_exploits, check_free_credit, check_separation
from gradus.auditing.plans.determinism import Elsewhere
from gradus.auditing.plans.exploit import PlanSearch, check_search, constant_credit, search_plans
from gradus.auditing.plans.hygiene import check_hygiene, check_tasks
from gradus.auditing.plans.panel import blind_answers, main_tasks, regraded_panel, roll_out_panel
from gradus.auditing.plans.signal import check_signal
from gradus.auditing.records import GRADING, Check, Hack, PanelEpisodes, Point
from gradus.auditing.result import AuditResult
from gradus.auditing.text.run import audit_text
from gradus.auditing.text.tasks import CALLS_SECONDS, TASKS, subject_of
from gradus.core import EnvironmentSpec, Grader, Policy
from gradus.stats import mean_interval

Progress = Callable[[str, int, int], None]
_EPISODES, _BUDGET = 60, 8000  # of an audit by policies, if nothing is said


def run_audit(
    spec: EnvironmentSpec,
    grader: str | Grader | None = None,
    *,
    episodes: int = 100,
    budget: int = 12000,
    seed: int = 0,
    signal_policy: Policy | None = None,
    signal_tasks: int = 24,
    panel: PanelEpisodes | None = None,
    elsewhere: Elsewhere | None = None,
    attackers: Sequence[Attacker] = (),
    progress: Progress | None = None,
) -> AuditResult:
    """Audit one grader of ``spec`` (by name, the default one if None).

    ``episodes``: tasks of the main condition that every policy is rolled out on, fewer if it has fewer. ``budget``: episodes that the
    search may roll out. ``signal_policy``: whose groups are forecast; without it a stand-in.
    ``panel``: episodes of an earlier audit of the same environment, to be graded again instead of rolled out again.
    ``elsewhere`` rolls tasks out in another process and returns what it saw, to compare. ``attackers`` look for hacks after the search.
    ``progress`` is told (what, done, of how many). The same arguments give the same result.
    """
    judged = grader if isinstance(grader, Grader) else spec.grader(grader)
    rolled_out = panel or roll_out_panel(spec, episodes=episodes, seed=seed, progress=progress)
    rolled_out = regraded_panel(spec, rolled_out, judged)
    tasks = main_tasks(spec, len(next(iter(rolled_out.episodes.values()))))
    draw = blind_answers(spec, seed=seed)
    if not rolled_out.is_graded:
        return _not_graded(spec, judged, rolled_out, seed=seed, attackers=attackers)
    plan_search = search_plans(spec, judged, rolled_out, tasks, draw, budget=budget, seed=seed, progress=progress)
    searched, hack = check_search(plan_search)
    constants = constant_credit(plan_search, rolled_out, tasks, seed=seed)
    field = plan_search.field
    bends = field.reflex if spec.language.grammar and any(field.keeps) else None
    target = Target(spec=spec, grader=judged, draw=draw, seed=seed, reflex=bends, keeps=field.keeps, progress=progress)
    attacks = [run_attacker(each, target, plan_search.reference, tasks, field) for each in attackers]
    if progress is not None:
        progress("signal and hygiene", 0, 1)
    checks = [
        check_separation(rolled_out),
        check_exploits(rolled_out),
        check_free_credit(rolled_out, judged, constants),
        check_alignment(rolled_out, spec.true_reward_name),
        searched,
        *(attack.check for attack in attacks),
        check_signal(spec, judged, signal_policy, draw, tasks=signal_tasks, seed=seed),
        check_hygiene(spec, judged, rolled_out, draw, seed=seed, elsewhere=elsewhere),
    ]
    if progress is not None:
        progress("signal and hygiene", 1, 1)
    return AuditResult(
        environment=spec.name,
        grader=judged.name,
        true_reward_name=spec.true_reward_name,
        condition=rolled_out.condition,
        episodes=len(tasks),
        seed=seed,
        checks=checks,
        points=_points(rolled_out, plan_search, attacks),
        hack=_dearest([hack, *(attack.hack for attack in attacks)]),
        panel=rolled_out,
        most=len(main_tasks(spec)),
    )


def _not_graded(
    spec: EnvironmentSpec, grader: Grader, panel: PanelEpisodes, *, seed: int, attackers: Sequence[Attacker]
) -> AuditResult:
    """The audit of a grader that gave no reward at all: hygiene names the error, and no other check has anything to compare."""
    names = ["separation", "exploits", "free credit", "alignment", "search"]
    names += [*(f"attack: {each.name}" for each in attackers), "signal"]
    why = "no episode got a reward; see hygiene"
    hygiene = check_hygiene(spec, grader, panel, blind_answers(spec, seed=seed), seed=seed)
    return AuditResult(
        environment=spec.name,
        grader=grader.name,
        true_reward_name=spec.true_reward_name,
        condition=panel.condition,
        episodes=len(next(iter(panel.episodes.values()))),
        seed=seed,
        checks=[*(Check(name=name, status="skip", evidence=why) for name in names), hygiene],
        points=[_point(name, panel.role(name), episodes) for name, episodes in panel.episodes.items()],
        hack=None,
        panel=panel,
        most=len(main_tasks(spec)),
    )


def run_text_audit(
    spec: EnvironmentSpec,
    grader: Grader,
    *,
    episodes: int = TASKS,
    seed: int = 0,
    limit: float | None = None,
    unsafe: bool = False,
    marks: Mapping[str, str] | None = None,
    elsewhere: Elsewhere | None = None,
    attackers: Sequence[Attacker] = (),
    progress: Progress | None = None,
) -> AuditResult | None:
    """Audit the grader of one-turn tasks by probing it with answers; None if the tasks are not of one turn or know no gold answer.

    ``episodes``: tasks. ``limit``: seconds of all calls of the grader together, as :func:`audit_text` takes it.
    """
    subject = subject_of(spec, grader, tasks=episodes, limit=limit or CALLS_SECONDS)
    if subject is None:
        return None
    text = audit_text(subject, seed=seed, limit=limit, unsafe=unsafe, marks=marks or {}, progress=progress)
    draw = blind_answers(spec, seed=seed)
    tasks = check_tasks(spec, draw, seed=seed, elsewhere=elsewhere)
    attacks: Sequence[Attack] = ()
    if text.checks[0].name == GRADING:
        attacks = [skipped_attack(each, "the grader fails on every answer") for each in attackers]
    elif attackers and text.executes and not unsafe:
        why = "the grader executes answers, and an attacker's may do anything; --unsafe rolls them out all the same"
        attacks = [skipped_attack(each, why) for each in attackers]
    elif attackers:
        attacks = attack_answers(attackers, Target(spec=spec, grader=grader, draw=draw, seed=seed), tasks=episodes)
    return AuditResult(
        environment=spec.name,
        grader=grader.name,
        true_reward_name="share of right answers",
        condition=next(iter(spec.conditions)),
        episodes=text.tasks,
        seed=seed,
        checks=[*text.checks, *(attack.check for attack in attacks), tasks],
        points=text.points,
        hack=_dearest([attack.hack for attack in attacks]),
        exploit=text.exploit,
        review=text.review,
    )


def audit_any(
    spec: EnvironmentSpec,
    grader: Grader,
    *,
    episodes: int | None = None,
    budget: int | None = None,
    seed: int,
    signal_policy: Policy | None = None,
    marks: Mapping[str, str] | None = None,
    unsafe: bool = False,
    limit: float | None = None,
    elsewhere: Elsewhere | None = None,
    attackers: Sequence[Attacker] = (),
    progress: Progress | None = None,
) -> AuditResult:
    """The audit that fits: by answers if tasks have one turn and gold answers, by policies and a search of plans elsewhere.

    ``episodes``: None is 48 tasks of one turn, elsewhere 60. ``budget``: of :func:`run_audit`, which one-turn tasks do not need; None is 8,000.
    """
    text = run_text_audit(
        spec,
        grader,
        episodes=TASKS if episodes is None else episodes,
        seed=seed,
        marks=marks,
        unsafe=unsafe,
        limit=limit,
        elsewhere=elsewhere,
        attackers=attackers,
        progress=progress,
    )
    if text is not None:
        return text
    return run_audit(
        spec,
        grader,
        episodes=_EPISODES if episodes is None else episodes,
        budget=_BUDGET if budget is None else budget,
        seed=seed,
        signal_policy=signal_policy,
        elsewhere=elsewhere,
        attackers=attackers,
        progress=progress,
    )


def _dearest(hacks: Sequence[Hack | None]) -> Hack | None:
    """The hack that is shown: the one that gains most reward."""
    return max((each for each in hacks if each), key=lambda each: each.reward.mean or 0.0, default=None)


def _points(panel: PanelEpisodes, plan_search: PlanSearch, attacks: Sequence[Attack]) -> list[Point]:
    """Panel, plans of the search and attempts of attackers, as the figure shows them."""
    named = [(name, panel.role(name), episodes) for name, episodes in panel.episodes.items()]
    plans = zip(plan_search.finalists, plan_search.episodes, strict=True)
    named += [("search: " + plan.describe(), "search", episodes) for plan, episodes in plans]
    named += [("attack: " + each.plan, "search", each.episodes) for attack in attacks for each in attack.attempts]
    return [_point(name, role, episodes) for name, role, episodes in named]


def _point(name: str, role: str, episodes: Sequence[Any]) -> Point:
    return Point(
        policy=name,
        role=role,
        reward=mean_interval([e.reward.value if e.reward else None for e in episodes]),
        true_reward=mean_interval([e.metrics.get("true_reward") for e in episodes]),
    )
