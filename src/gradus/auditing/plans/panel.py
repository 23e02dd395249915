"""The panel: which policies an audit rolls out, and rolling them out once so that any number of graders can be judged by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from gradus.auditing.plans.offered import offered_answers
from gradus.auditing.plans.plan import (
    Draw,
    PlanSubject,
    RandomAnswers,
    TurnPolicy,
    answer_space,
)
from gradus.auditing.records import PanelEpisodes
from gradus.core import (
    EnvironmentSpec,
    Episode,
    Grader,
    Panel,
    Policy,
    Task,
    child_seed,
)
from gradus.rollouts import grade_episodes, roll_out
from gradus.stats import mean_interval

Progress = Callable[[str, float, int], None]  # is given what is done, how much of it, and of how much


def silent(part: str, done: float, total: int) -> None:
    """Progress that nobody hears of."""


def plan_subject(spec: EnvironmentSpec, grader: Grader, *, seed: int) -> PlanSubject:
    """The subject with the answers that its texts offer."""
    offered = offered_answers(spec, seed=seed)
    return PlanSubject(spec=spec, grader=grader, seed=seed, draw=_blind_answers(spec, offered, seed), offered=offered)


def _blind_answers(spec: EnvironmentSpec, offered: Sequence[str], seed: int) -> Draw:
    """Seed -> an answer drawn without looking: the environment's own draw, one of those that its texts offer, or one from the answer space."""
    if spec.audit.random_answers is not None:
        return spec.audit.random_answers
    if offered:
        return lambda drawn: offered[drawn // 7 % 9973 % len(offered)]
    space = answer_space(spec, (), seed=seed)
    return lambda drawn: space.text([drawn // (7 * place + 1) % 9973 % size for place, size in enumerate(space.sizes)])


def main_tasks(spec: EnvironmentSpec, episodes: int | None = None) -> list[Task]:
    """The first ``episodes`` tasks of the main condition, or all of them if it has fewer. If rows are few, those of the others follow."""
    main, *further = spec.conditions
    tasks = spec.tasks(main)[:episodes]
    if spec.data_set is None or len(tasks) == episodes:
        return tasks
    # Conditions may share rows, and a row twice is one task for an interval over tasks.
    ids = {spec.identify(task).id for task in tasks}
    for name in further:
        for task in spec.tasks(name):
            identity = spec.identify(task).id
            if identity not in ids:
                ids.add(identity)
                tasks.append(task)
    return tasks[:episodes]


def roll_out_panel(subject: PlanSubject, *, episodes: int, progress: Progress = silent) -> PanelEpisodes:
    """Roll out the declared panel, or what can be had for nothing, on the same tasks, and grade it.

    Without a panel: random answers, every policy that the environment names as its teacher, a constant answer and a cycle.
    """
    spec = subject.spec
    tasks = main_tasks(spec, episodes)
    roles = spec.audit.panel
    if roles is None:
        roles = Panel(ladder=("random", spec.teacher) if spec.teacher else ("random",))
        cast = _cast_for_nothing(subject)
    else:
        cast = {name: spec.policy(name) for name in (*roles.ladder, *roles.reflexes, *roles.exploits)}
    rolled_out: dict[str, Sequence[Episode]] = {}
    for name, policy in cast.items():
        tell = partial(progress, name)
        ungraded = roll_out(spec, policy, tasks, seed=subject.seed, key=("audit", "panel"), progress=tell).episodes
        # A policy may call itself otherwise than the panel does.
        episodes_of_policy = [replace(episode, policy=name) for episode in ungraded]
        rolled_out[name] = grade_episodes(spec, episodes_of_policy, subject.grader)
    return PanelEpisodes(condition=tasks[0].condition, episodes=rolled_out, **vars(roles))


def best_reflex(panel: PanelEpisodes) -> str:
    """The honest policy without inference that the grader likes best."""

    def liking(name: str) -> float:
        mean = mean_interval(panel.rewards(name)).mean
        return -inf if mean is None else mean

    return max(panel.reflexes, key=liking)


def policy_of(subject: PlanSubject, name: str) -> Policy:
    """A policy of the environment; random answers need not be declared."""
    if name == "random" and name not in subject.spec.policies:
        return RandomAnswers(subject.draw)
    return subject.spec.policy(name)


def _cast_for_nothing(subject: PlanSubject) -> Mapping[str, Policy]:
    """Policies for an environment that declares no panel; the constant and the cycle are drawn blindly."""
    first, second = (subject.draw(child_seed(subject.seed, "audit", "cycle", i) % 2**31) for i in range(2))
    cast = {"random": policy_of(subject, "random")}
    teacher = subject.spec.teacher
    if teacher is not None:
        cast[teacher] = subject.spec.policy(teacher)
    cast["constant"] = TurnPolicy(lambda start, turn, observation, text: first, name="constant")
    cast["cycle"] = TurnPolicy(lambda start, turn, observation, text: second if turn % 2 else first, name="cycle")
    return cast
