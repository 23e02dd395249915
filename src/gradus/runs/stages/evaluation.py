"""Evaluates policies with progress shown, as a stage of a run or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import EnvironmentSpec, Episode, Group, Policy
from gradus.core.files import write_json
from gradus.core.metrics import read_metrics
from gradus.core.values import Json
from gradus.evidence.evaluation import Evaluation, evaluate
from gradus.rewards import tell_steps_taken
from gradus.rollouts import read_episodes
from gradus.runs.progress import progress_bar
from gradus.runs.recipe.promises import check_promises

if TYPE_CHECKING:
    from gradus.core.documents import Results
    from gradus.runs.stages.context import RunContext


def evaluate_policies(spec: EnvironmentSpec, policies: Mapping[str, Policy | None], **options: Any) -> Evaluation:
    """:func:`gradus.evidence.evaluation.evaluate` with a progress bar."""
    with progress_bar("evaluate", 0, "episodes") as advance:
        return evaluate(spec, policies, progress=lambda name, done, total: advance(done, total, name), **options)


def evaluate_in_run(run: RunContext, policies: Mapping[str, Policy | None], **options: Any) -> Evaluation:
    """:func:`evaluate_policies` by the settings of a run. ``options`` come on top."""
    section = run.recipe.eval
    # Rewards that look at the step are those of the last one, in any process, before or after a kill.
    tell_steps_taken(run.grader, run.recipe.grpo.max_steps)
    return evaluate_policies(
        run.spec,
        policies,
        conditions=list(section.conditions) or None,
        episodes=section.episodes,
        samples=section.samples,
        seed=run.recipe.seed if section.seed is None else section.seed,
        **options,
    )


def graders_of(run: RunContext) -> list[str]:
    """The graders of a run's evaluation, its own first."""
    return list(dict.fromkeys([run.grader.name, *run.recipe.eval.graders]))


def write_results(run: RunContext, document: Results, starts: bool | list[int]) -> None:
    """Write results.json, with the promises of the recipe that were kept. ``starts``: see :func:`best_is_the_start`; seeds if there are several."""
    by_grader: Json = {run.grader.name: document, **document.get("graders", {})}
    document["promises"] = check_promises(run.job.promises(), by_grader, run.grader.name)
    document["quick"] = run.recipe.quick
    if starts:
        document["best_is_the_start"] = starts
    write_json(run.folder / "results.json", document)


def best_is_the_start(grpo: Path) -> bool:
    """True if no step of GRPO was better in validation than the model that it began with. False without GRPO."""
    if not (grpo / "metrics.jsonl").is_file():
        return False
    validations = [record for record in read_metrics(grpo / "metrics.jsonl") if record.get("kind") == "validation"]
    best = {record.get("step") for record in validations if record.get("best")}
    # A run that ended before its second validation compared nothing.
    return best == {0} and any(record.get("step") for record in validations)


def read_rollouts(path: Path) -> dict[str, dict[str, list[Episode]]]:
    """Stored episodes by condition and policy."""
    rollouts: dict[str, dict[str, list[Episode]]] = {}
    for episode in read_episodes(path).episodes:
        rollouts.setdefault(episode.task.condition or "", {}).setdefault(episode.policy, []).append(episode)
    return rollouts


def shown_groups(conditions: Mapping[str, Mapping[str, Sequence[Episode]]], count: int) -> list[Group]:
    """The first ``count`` episodes of every policy and condition, as groups of one."""
    groups: list[Group] = []
    for policies in conditions.values():
        for episodes in policies.values():
            groups += [Group(task=episode.task, episodes=(episode,)) for episode in episodes[:count]]
    return groups


def write_evaluation_report(spec: EnvironmentSpec, evaluation: Evaluation, path: Path) -> Path:
    """The HTML report of an evaluation that belongs to no run."""
    from gradus.evidence.reports import environment_words, shown_episodes, write_eval_report

    shown = shown_episodes(spec, shown_groups(evaluation.episodes, 3), evaluated=evaluation.flat)
    return write_eval_report(evaluation.to_json(), shown, path, about=environment_words(spec))
