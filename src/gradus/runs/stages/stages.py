"""The stages of `gradus run`: model, audit, teacher, SFT, GRPO, evaluation, doctor. Each leaves files in the run's folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradus.auditing import AuditSettings
from gradus.auditing.result import screen
from gradus.core import AuditFailed, Grader, GradusError, Group, Policy, Renderer
from gradus.core.printing import verbose
from gradus.core.values import JsonDict
from gradus.evidence.evaluation import Evaluation
from gradus.evidence.reports import prepare_report, shown_episodes
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import load_model
from gradus.policies.local.shelf import ShelvedPolicy
from gradus.policies.nano.model import make_nano
from gradus.policies.tinker.policy import TinkerPolicy
from gradus.rollouts import roll_out, write_episodes
from gradus.runs.forecast.model_probe import check_model
from gradus.runs.job import vocabulary_of
from gradus.runs.manifest import stage_names
from gradus.runs.policies import make_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.audits import audit_with_progress, store_audit
from gradus.runs.stages.context import GRADED, TRAINED, RunContext, run_policies
from gradus.runs.stages.doctor import do_doctor
from gradus.runs.stages.evaluation import (
    best_is_the_start,
    evaluate_in_run,
    graders_of,
    read_rollouts,
    shown_groups,
    write_results,
)
from gradus.runs.stages.teaching import teach
from gradus.runs.stages.training_stages import do_distill, do_grpo, do_sft
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.data.tasks import reserved_ids
from gradus.training.distributed.processes import barrier, world
from gradus.training.tinker.weights import ServedTraining, measure_server

_GROUPS = 2  # groups of the trained policy whose members the report shows side by side

# What it does, filling in its cost; the sections of the recipe that it depends on.
Stage = tuple[Callable[[RunContext, JsonDict], None], Sequence[str]]


def _do_model(run: RunContext, cost: JsonDict) -> None:
    """Make the nano model, unless a model was given."""
    address = run.job.address()
    if address is not None:
        name = address.base()  # first: a name that the server does not have is not asked of the Hub
        source = ServedTraining(model=address, words=run.job.words(address), counts=run.counts)
        reduction = measure_server(source, run.recipe.grpo)
        run.console.print(f"{address.url} trains {name}; losses are a {reduction.name}", highlight=False)
        return
    if run.recipe.model.path is not None:
        # Fail now rather than after the teacher has worked.
        loaded = load_model(run.base, **run.job.loading())
        run.console.print(check_model(loaded).sentence, highlight=False)
        return
    if find_model(run.base) is not None:  # after a kill it may be complete, and not yet written down
        return
    if world().main:  # one process makes it for all
        make_nano(run.folder / "model", vocabulary_of(run.spec), run.recipe.model.nano, seed=run.recipe.seed)
    barrier()


def _do_audit(run: RunContext, cost: JsonDict) -> None:
    """Audit the grader that training will use."""
    if not run.recipe.audit.enabled:
        run.console.print(
            "switched off (audit.enabled = false, in most --quick runs too); gradus audit asks the grader"
        )
        return
    section = run.recipe.audit
    settings = AuditSettings(episodes=section.episodes, budget=section.budget, seed=run.recipe.seed)
    result = audit_with_progress(run.spec, run.grader, settings)
    store_audit(run.spec, result, run.folder)
    for part in screen(result, whole=verbose()):
        run.console.print(part, highlight=False)
    if result.verdict == "fail" and not run.anyway:
        evidence = {check.subject: check.evidence for check in result.checks if check.status == "fail"}
        name, reason = next(iter(evidence.items()))
        page = str(run.folder / "audit.html")
        fault = f"{run.grader.name}, which fails ({name}: {reason}; see {page})"
        remedy = "fix it, or run with --anyway (in Python anyway=True)"
        message = f"expected a grader that passes its audit, got {fault}; {remedy}"
        raise AuditFailed(message, evidence=evidence, page=page)


def _do_teach(run: RunContext, cost: JsonDict) -> None:
    """Store the teacher's episodes of the training tasks."""
    section = run.recipe.teach
    name = teacher_name(run.spec, section.policy)
    path = run.folder / "teach" / "episodes.jsonl.gz"
    policy = make_policy(run.spec, name, remote=section.remote.model_dump())
    run.ledger.charge(policy, run.recipe.prices.teacher)
    summary = teach(
        run.spec,
        policy,
        episodes=section.episodes,
        path=path,
        grader=run.grader,
        seed=run.recipe.seed,
        reserved=reserved_ids(run.spec, run.recipe.grpo),
    )
    run.console.print(summary.sentence(path), highlight=False)
    # A reward that fails on every answer would fail on all of GRPO's too, hours later.
    if summary.reward_mean is None and summary.reason is not None:
        raise GradusError(f"none of the {summary.episodes} episodes of {name} could be graded: {summary.reason}")
    cost.update(summary.as_costs())


def _do_eval(run: RunContext, cost: JsonDict) -> None:
    """Evaluate the run's policies, and store figures, episodes and what the report shows."""
    names = run.job.policies()
    # Of several seeds, policies that no seed changes were rolled out once before.
    stored = read_rollouts(run.rolled_out) if run.rolled_out else {}
    stored_names = set[str]().union(*stored.values())
    policies = run_policies(run, [name for name in names if name not in stored_names])
    evaluation = evaluate_in_run(
        run,
        {name: policies.get(name) for name in names},
        stored=stored,
        graders=graders_of(run),
        pairs=run.job.pairs(),
        checkpoint="grpo/best",
    )
    write_results(run, evaluation.to_json(), best_is_the_start(run.folder / "grpo"))
    flat = evaluation.flat
    write_episodes(run.folder / "eval" / "episodes.jsonl.gz", flat, environment=run.spec.name, note="gradus run")
    _write_report_episodes(run, evaluation, policies)
    cost.update(episodes=len(flat))


def _write_report_episodes(run: RunContext, evaluation: Evaluation, policies: Mapping[str, Policy]) -> None:
    """Write what the report browses. The shown advantages follow the credit of the recipe's GRPO."""
    config, spec = run.recipe.grpo, run.spec
    facts, advantages = _facts(run), None
    groups = shown_groups(evaluation.episodes, run.recipe.eval.shown)
    models = {name: policy for name, policy in policies.items() if isinstance(policy, ShelvedPolicy | TinkerPolicy)}
    trained = models.get("grpo")
    if trained is not None:
        if isinstance(trained, ShelvedPolicy):
            parameters = sum(parameter.numel() for parameter in trained.loaded.model.parameters())
            facts["parameters"] = f"{parameters:,}"
        words = trained.words if isinstance(trained, TinkerPolicy) else trained.loaded
        advantages = partial(_advantages, config.resolved(run.grader), run.grader, words.renderer)
        # Groups of training tasks: the evaluation has one episode of a task, which has no advantage.
        rolled_out = roll_out(
            spec,
            trained,
            [spec.train_task(config.first_task + index) for index in range(_GROUPS)],
            group_size=config.group_size,
            seed=run.recipe.seed,
            key=("report",),
            grader=run.grader,
        )
        groups = [*rolled_out.groups, *groups]
    episodes = shown_episodes(
        spec,
        groups,
        advantages=advantages,
        pieces={name: partial(_pieces, policy.tokenizer) for name, policy in models.items()},
        evaluated=evaluation.flat,
    )
    prepare_report(run.folder, spec, episodes, facts=facts)


def _facts(run: RunContext) -> JsonDict:
    """What the page says of the run under its headline."""
    cpu = f"{platform.machine()}, {os.cpu_count()} cores"
    # A report is sent on: it names the model, not the folders of this machine.
    model = Path(run.recipe.model.path or "nano")
    return {
        "model": model.name if model.is_absolute() else str(model),
        "seed": run.recipe.seed,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else cpu,
    }


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [tokenizer.decode([token]) for token in ids]


def _advantages(config: GrpoConfig, grader: Grader, renderer: Renderer, group: Group) -> list[list[float]]:
    """One advantage per turn of each member: the mean over the turn's tokens, by the run's own credit; 0 for a turn without any."""
    sums = [np.zeros(len(episode.turns)) for episode in group.episodes]
    tokens = [np.zeros(len(episode.turns)) for episode in group.episodes]
    # Credit leaves out episodes without a turn or a reward, and counts the others.
    graded = [i for i, episode in enumerate(group.episodes) if episode.turns and episode.reward_value is not None]
    for credited in credit_groups([group], config, renderer, weights=grader.weights):
        assert credited.advantages is not None
        member, turns = graded[credited.episode], credited.turns.numpy()
        count = len(group.episodes[member].turns)
        sums[member] += np.bincount(turns, credited.advantages.numpy(), count)
        tokens[member] += np.bincount(turns, None, count)
    return [(total / np.maximum(count, 1)).tolist() for total, count in zip(sums, tokens, strict=True)]


STAGES: Mapping[str, Stage] = {
    "model": (_do_model, ("model",)),
    "audit": (_do_audit, ("audit", *GRADED)),
    "teach": (_do_teach, ("teach",)),
    "sft": (do_sft, ("model", "teach", "sft")),
    "distill": (do_distill, ("model", "teach", "sft", "distill")),
    "grpo": (do_grpo, TRAINED),
    "eval": (_do_eval, (*TRAINED, "eval", "promises")),
    "doctor": (do_doctor, (*TRAINED, "eval")),
}


def stages_of(recipe: Recipe, only: Collection[str] | None = None) -> dict[str, Stage]:
    """Returns the stages that a recipe has, in order; with ``only`` these, and the model that they begin with."""
    if only is not None:
        return {name: stage for name, stage in STAGES.items() if name == "model" or name in only}
    return {name: STAGES[name] for name in stage_names(recipe)}
