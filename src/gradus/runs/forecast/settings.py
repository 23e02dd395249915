"""Checks of the recipe's own settings: names that must be known, and settings that would disappoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gradus.core import GradusError
from gradus.core.findings import Finding
from gradus.evidence.evaluation import condition_tasks
from gradus.policies.local.loading import require_bitsandbytes
from gradus.runs.forecast.subject import Subject, failed, from_error, passed, warned
from gradus.runs.manifest import CHECKPOINTS
from gradus.runs.policies import require_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.stats import LEAST_UNITS
from gradus.training.run.trackers import check_trackers

_FEW_MEMBERS, _COLD = 4, 0.7
_FULL_RATE, _LORA_RATE, _SFT_RATE = 5e-5, 5e-4, 1e-3  # peak rates above which a trained model is usually spoilt


def names(subject: Subject) -> list[Finding]:
    """Every policy, pair, condition and grader that the recipe names is there, and so are the packages of its settings and the components of its schedule."""
    findings: list[Finding] = []
    for call in _named(subject):
        try:
            call()
        except GradusError as error:
            findings.append(from_error(error, remedy="correct the name in the recipe"))
    if findings:
        return findings
    conditions = subject.recipe.eval.conditions or subject.spec.conditions
    counts = f"policies: {len(subject.job.policies())}, conditions: {len(conditions)}"
    return [passed(f"{counts}, promises: {len(subject.recipe.promises)}")]


def _named(subject: Subject) -> Iterator[Callable[[], Any]]:
    """Yields one call for each name; it raises if nothing has that name."""
    recipe, spec = subject.recipe, subject.spec
    section = recipe.eval
    if recipe.teach.enabled:
        yield lambda: _policy(subject, teacher_name(spec, recipe.teach.policy))
    for name in section.policies:
        yield partial(_policy, subject, name)
    yield subject.job.pairs
    for grader in (*section.graders, *(promise.grader for promise in recipe.promises)):
        yield partial(spec.grader, grader)
    yield partial(condition_tasks, spec, section.conditions or list(spec.conditions), section.episodes)
    for config in (recipe.sft, recipe.grpo) if recipe.teach.enabled else (recipe.grpo,):
        if config.quantize:
            yield partial(require_bitsandbytes, "quantize = '4bit'")
        if config.optimizer == "adamw_8bit":
            yield partial(require_bitsandbytes, "optimizer = 'adamw_8bit'")
    yield partial(check_trackers, recipe.trackers)
    yield subject.job.schedule


def _policy(subject: Subject, name: str) -> None:
    """Raises ConfigError for a policy that is neither a checkpoint of a run nor known."""
    if name not in CHECKPOINTS:
        require_policy(subject.spec, name, also=CHECKPOINTS)


def settings(subject: Subject) -> list[Finding]:
    """Settings that are allowed and usually disappoint, and those of a nano model, which spoil a trained one."""
    findings = list(_disappointing(subject))
    if subject.job.pretrained:
        findings = [*_for_nano(subject.recipe), *findings]
    grpo = subject.recipe.grpo
    return findings or [passed(f"{grpo.groups} x {grpo.group_size} episodes a step, {grpo.max_steps} steps")]


def _disappointing(subject: Subject) -> Iterator[Finding]:
    """A warning for each setting that usually disappoints."""
    recipe, grpo, sft = subject.recipe, subject.recipe.grpo, subject.recipe.sft
    if grpo.group_size < _FEW_MEMBERS:
        yield warned(f"groups of {grpo.group_size} give a noisy baseline", "set grpo.group_size to 8")
    if grpo.groups % grpo.minibatches:
        uneven = f"{grpo.groups} groups do not divide into {grpo.minibatches} equal minibatches"
        yield warned(uneven, "choose grpo.minibatches that divide grpo.groups")
    taught = recipe.teach.episodes if recipe.teach.enabled else 0
    trained_on = round(taught * (1 - sft.validation_share))
    if taught and trained_on < sft.batch_size:
        less = f"{trained_on} taught episodes are less than one batch of {sft.batch_size}"
        yield warned(less, "raise teach.episodes or lower sft.batch_size")
    rows = subject.spec.data_set
    # If SFT is taught all rows there are no others to begin with.
    has_others = rows is None or taught < rows.size("train")
    if grpo.first_task < taught and has_others:
        seen = f"GRPO begins with task {grpo.first_task}, which SFT has seen"
        yield warned(seen, f"set grpo.first_task to {taught} or more")
    if grpo.sampling.temperature < _COLD:
        alike = f"at temperature {grpo.sampling.temperature:g} the members of a group resemble each other"
        yield warned(alike, "sample at temperature 1")
    if not grpo.validation_every:
        yield warned("nothing is validated, so best is the last model", "set grpo.validation_every")
    most = max(len(condition.seeds) for condition in subject.spec.conditions.values())
    judging = min(recipe.eval.episodes or most, most)
    if judging < LEAST_UNITS and not recipe.quick:
        remedy = "set eval.episodes to 100 or more"
        if most <= judging:
            remedy = "there are no more: bring more rows, each with a question of its own"
        yield warned(f"{judging} held-out tasks are too few to prove a gain, {LEAST_UNITS} are needed", remedy)


def _for_nano(recipe: Recipe) -> Iterator[Finding]:
    """A failure for each setting of a nano model, in a recipe for a trained one."""
    grpo, sft = recipe.grpo, recipe.sft
    limit, what = (_FULL_RATE, "all weights") if grpo.lora is None else (_LORA_RATE, "adapters")
    # A stage of the schedule may set a rate of its own.
    rate = max([grpo.lr, *(stage.lr or 0.0 for stage in recipe.stage)])
    if rate > limit:
        yield failed(f"a rate of {rate:g} spoils {what} of a trained model", f"stay below {limit:g}")
    stages = {"sft": sft, "grpo": grpo} if recipe.teach.enabled else {"grpo": grpo}
    if "sft" in stages and sft.lr > _SFT_RATE:
        yield failed(f"sft.lr {sft.lr:g} spoils a trained model", "set sft.lr to 1e-5, or to 1e-4 with lora")
    for name, stage in stages.items():
        if stage.optimizer == "muon":
            evidence = f"{name}.optimizer muon is for models that are trained from nothing"
            yield failed(evidence, f"set {name}.optimizer to adamw and {name}.lr to 1e-5")
