"""Checks of the recipe's own settings: names that must be known, and settings that would disappoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradus.core import ConfigError, GradusError
from gradus.core.findings import Finding
from gradus.policies.local.loading import require_bitsandbytes
from gradus.runs.forecast.subject import Subject, failed, passed, warned
from gradus.runs.manifest import CHECKPOINTS
from gradus.runs.policies import require_policy, teacher_name
from gradus.runs.recipe.record import Recipe
from gradus.training.run.trackers import check_trackers

_FEW_MEMBERS, _FEW_EPISODES, _COLD = 4, 30, 0.7
_FULL_RATE, _LORA_RATE, _SFT_RATE = 5e-5, 5e-4, 1e-3  # peak rates above which a trained model is usually spoilt


_COUNTED = ("policies", "policy"), ("conditions", "condition"), ("promises", "promise")


def names(subject: Subject) -> list[Finding]:
    """Every policy, pair, condition and grader that the recipe names is there, and so are the packages of its settings and the components of its schedule."""
    findings: list[Finding] = []
    for call in _named(subject):
        try:
            call()
        except GradusError as error:
            message, _, remedy = str(error).partition("; ")
            findings.append(failed(message, remedy or "correct the name in the recipe"))
    if findings:
        return findings
    section = subject.recipe.eval
    evaluated = subject.job.policies()
    count = len(evaluated), len(section.conditions or subject.spec.conditions), len(subject.recipe.promises)
    return [passed(", ".join(f"{n} {what if n != 1 else one}" for n, (what, one) in zip(count, _COUNTED, strict=True)))]


def _named(subject: Subject) -> Iterator[Callable[[], Any]]:
    """Yields one call for each name; it raises if nothing has that name."""
    recipe, spec = subject.recipe, subject.spec
    section = recipe.eval
    if recipe.teach.enabled:
        yield lambda: _policy(subject, teacher_name(spec, recipe.teach.policy))
    for name in section.policies:
        yield lambda name=name: _policy(subject, name)
    yield lambda: subject.job.pairs()
    for name in (*section.graders, *(promise.grader for promise in recipe.promises if promise.grader)):
        yield lambda name=name: spec.grader(name)
    for name in section.conditions or spec.conditions:
        yield lambda name=name: spec.tasks(name)
    yield lambda: _enough_tasks(subject)
    for config in (recipe.sft, recipe.grpo) if recipe.teach.enabled else (recipe.grpo,):
        if config.quantize:
            yield lambda: require_bitsandbytes("quantize = '4bit'")
        if config.optimizer == "adamw_8bit":
            yield lambda: require_bitsandbytes("optimizer = 'adamw_8bit'")
    yield lambda: check_trackers(recipe.trackers)
    yield lambda: subject.job.schedule()


def _enough_tasks(subject: Subject) -> None:
    """One condition must have as many seeds as are asked for; a smaller one gives all it has."""
    section, spec = subject.recipe.eval, subject.spec
    named = section.conditions or spec.conditions
    sizes = {name: len(spec.conditions[name].seeds) for name in named if name in spec.conditions}
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    if largest is not None and section.episodes is not None and not 1 <= section.episodes <= sizes[largest]:
        raise ConfigError(
            f"eval.episodes = {section.episodes}, and condition {largest!r} has {sizes[largest]} seeds; set eval.episodes to a number "
            f"between 1 and {sizes[largest]}"
        )


def _policy(subject: Subject, name: str) -> None:
    if name not in CHECKPOINTS:
        require_policy(subject.spec, name, also=CHECKPOINTS)


def settings(subject: Subject) -> list[Finding]:
    """Settings that are allowed and usually disappoint, and those of a nano model, which spoil a trained one."""
    recipe, spec = subject.recipe, subject.spec
    grpo, sft, taught = recipe.grpo, recipe.sft, recipe.teach.episodes if recipe.teach.enabled else 0
    trained_on, episodes = round(taught * (1 - sft.validation_share)), recipe.eval.episodes
    most = max(len(condition.seeds) for condition in spec.conditions.values())
    few = episodes is not None and episodes < _FEW_EPISODES and not recipe.quick
    more = f"there are no more than {most} tasks: bring more rows"
    rules = [
        (grpo.group_size < _FEW_MEMBERS, f"groups of {grpo.group_size} give a noisy baseline", "set grpo.group_size to 8"),
        (grpo.groups % grpo.minibatches, f"{grpo.groups} groups do not divide into {grpo.minibatches} equal minibatches",
         "choose grpo.minibatches that divide grpo.groups"),
        (taught and trained_on < sft.batch_size, f"{trained_on} taught episodes are less than one batch of {sft.batch_size}",
         "raise teach.episodes or lower sft.batch_size"),
        (grpo.first_task < taught, f"GRPO begins with task {grpo.first_task}, which SFT has seen", f"set grpo.first_task to {taught} or more"),
        (grpo.sampling.temperature < _COLD, f"at temperature {grpo.sampling.temperature:g} the members of a group resemble each other",
         "sample at temperature 1"),
        (not grpo.validation_every, "nothing is validated, so best is the last model", "set grpo.validation_every"),
        (few, f"{episodes} episodes a condition prove little", more if most <= (episodes or 0) else "set eval.episodes to 100 or more"),
    ]  # fmt: skip
    findings = [
        *(_for_nano(recipe) if subject.trained else ()),
        *(warned(evidence, remedy) for wrong, evidence, remedy in rules if wrong),
    ]
    return findings or [passed(f"{grpo.groups} x {grpo.group_size} episodes a step, {grpo.max_steps} steps")]


def _for_nano(recipe: Recipe) -> list[Finding]:
    grpo, sft, taught = recipe.grpo, recipe.sft, recipe.teach.enabled
    limit, what = (_FULL_RATE, "all weights") if grpo.lora is None else (_LORA_RATE, "adapters")
    rate = max([grpo.lr, *(stage.lr or 0.0 for stage in recipe.stage)])
    rules = [
        (rate > limit, f"a rate of {rate:g} spoils {what} of a trained model", f"stay below {limit:g}"),
        (taught and sft.lr > _SFT_RATE, f"sft.lr {sft.lr:g} spoils a trained model", "set sft.lr to 1e-5, or to 1e-4 with lora"),
        *((stage.optimizer == "muon", f"{name}.optimizer muon is for models that are trained from nothing",
           f"set {name}.optimizer to adamw and {name}.lr to 1e-5") for name, stage in (("sft", sft), ("grpo", grpo)) if taught or stage is grpo),
    ]  # fmt: skip
    return [failed(evidence, remedy) for wrong, evidence, remedy in rules if wrong]
