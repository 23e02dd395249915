"""Checks of the recipe's own settings: names that must be known, schedules, sizes, and knobs that would disappoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradus.core import ConfigError, GradusError
from gradus.core.documents import AuditRecord, read_document
from gradus.core.naming import did_you_mean
from gradus.environments.verifiable.from_files import takes_test
from gradus.evidence.evaluation.evaluate import chosen_pairs
from gradus.policies.local.folders import find_model
from gradus.policies.local.loading import check_quantize
from gradus.runs.checks.findings import Finding, failed, passed, warned
from gradus.runs.checks.subject import Subject
from gradus.runs.policies import installed_policies, teacher_name
from gradus.runs.recipe.promises import Promise
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.evaluation import parse_pair
from gradus.runs.stages.state import CHECKPOINTS
from gradus.training.engine.optimizers import check_optimizer

_FEW_MEMBERS, _FEW_EPISODES = 4, 30
_FULL_RATE, _LORA_RATE, _SFT_RATE = 5e-5, 5e-4, 1e-3  # peak rates above which a trained model is usually spoilt


_COUNTED = ("policies", "policy"), ("conditions", "condition"), ("promises", "promise")


def names(subject: Subject) -> list[Finding]:
    """Every policy, pair, condition and grader that the recipe names is there, and so are the packages of its settings."""
    findings: list[Finding] = []
    for call in _named(subject):
        try:
            call()
        except GradusError as error:
            message, _, way = str(error).partition("; ")
            findings.append(failed(message, way or "correct the name in the recipe"))
    if findings:
        return findings
    section = subject.recipe.eval
    evaluated = subject.recipe.evaluated(subject.spec)
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
    for text in section.pairs:
        yield lambda text=text: parse_pair(text, recipe.evaluated(spec))
    for name in (*section.graders, *(promise.grader for promise in recipe.promises if promise.grader)):
        yield lambda name=name: spec.grader(name)
    for name in section.conditions or spec.conditions:
        yield lambda name=name: spec.tasks(name)
    yield lambda: _enough_tasks(subject)
    if recipe.grpo.validation_condition is not None:
        yield lambda: spec.tasks(recipe.grpo.validation_condition or "", 1)
    for config in (recipe.sft, recipe.grpo) if recipe.teach.enabled else (recipe.grpo,):
        yield lambda config=config: check_optimizer(config.optimizer)
        yield lambda config=config: check_quantize(config.quantize)
    yield lambda: _grammar(subject)
    for promise in recipe.promises:
        yield lambda promise=promise: _promise(subject, promise)


def _grammar(subject: Subject) -> None:
    if subject.recipe.grpo.sampling.grammar and subject.spec.language.grammar is None:
        raise ConfigError(
            f"grpo.sampling.grammar is set, and {subject.spec.name} declares no grammar; unset it, or declare one (language=Language(grammar=...))"
        )


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
    head = name.partition(":")[0]
    if name in CHECKPOINTS and CHECKPOINTS[name][0] == "sft" and not subject.recipe.teach.enabled:
        raise ConfigError(
            f"policy {name!r} is SFT's student, and teach.enabled = false leaves SFT out; name base instead"
        )
    if name in CHECKPOINTS and CHECKPOINTS[name][0] == "distill" and subject.recipe.distill is None:
        raise ConfigError(
            f"policy {name!r} is the distilled student, and the recipe has no table [distill]; add one, or leave it out"
        )
    if name in CHECKPOINTS or head == "remote" or head in installed_policies():
        return
    if head in subject.spec.policies:
        subject.spec.policy(name)
    elif find_model(name) is None:
        hint = did_you_mean(head, (*CHECKPOINTS, *subject.spec.policies))
        raise ConfigError(f"policy {name!r} is no policy of {subject.spec.name} and no folder with a model{hint}")


def _promise(subject: Subject, promise: Promise) -> None:
    """A promise about what is not measured could never be met. At toy size, where less is compared, only its names must be right."""
    from gradus.evidence.reports.results import sides_of

    section, compared = subject.recipe.eval, subject.recipe.evaluated(subject.spec)
    for name in (promise.policy, *(sides_of(promise.pair or "", compared) or (promise.pair,))):
        if name and name not in CHECKPOINTS:
            _policy(subject, name)
    conditions = section.conditions or subject.spec.conditions
    pairs = chosen_pairs(compared, [parse_pair(text, compared) for text in section.pairs] or None)
    measured = {
        "condition": (promise.condition, subject.spec.conditions if subject.recipe.quick else conditions),
        "policy": (promise.policy, compared),
        "pair": (promise.pair, [f"{a} - {b}" for a, b in pairs]),
    }
    for kind, (name, known) in measured.items():
        if name is not None and name not in known and (kind == "condition" or not subject.recipe.quick):
            raise ConfigError(
                f"the promise {promise.text!r} is about the {kind} {name!r}, which is not measured{did_you_mean(name, known)}; "
                f"it is one of {', '.join(known)}"
            )


def schedule(subject: Subject) -> list[Finding]:
    """Stages and adaptive weights name components that the grader has."""
    recipe = subject.recipe
    recipe.schedule(subject.grader)  # raises for a name that the grader does not know
    if not recipe.stage:
        return [passed("the grader's weights stay as they are" if recipe.adaptive is None else "weights adapt")]
    begun = sum(stage.steps or 0 for stage in recipe.stage[:-1])
    said = [f"{stage.name} {stage.steps or recipe.grpo.max_steps - begun}" for stage in recipe.stage]
    return [passed(f"stages: {', '.join(said)} steps")]


def batches(subject: Subject) -> list[Finding]:
    """Groups, minibatches and the teacher's episodes go into each other, and nothing is trained on twice by mistake."""
    recipe = subject.recipe
    grpo, taught = recipe.grpo, recipe.teach.episodes
    findings: list[Finding] = []
    if grpo.group_size < _FEW_MEMBERS:
        findings.append(warned(f"groups of {grpo.group_size} give a noisy baseline", "set grpo.group_size to 8"))
    if grpo.groups % grpo.minibatches:
        way = "choose grpo.minibatches that divide grpo.groups"
        findings.append(warned(f"{grpo.groups} groups do not divide into {grpo.minibatches} equal minibatches", way))
    kept = round(taught * (1 - recipe.sft.validation_share))
    if recipe.teach.enabled and kept < recipe.sft.batch_size:
        way = "raise teach.episodes or lower sft.batch_size"
        findings.append(warned(f"{kept} taught episodes are less than one batch of {recipe.sft.batch_size}", way))
    if recipe.teach.enabled and grpo.first_task < taught:
        way = f"set grpo.first_task to {taught} or more"
        findings.append(warned(f"GRPO begins with task {grpo.first_task}, which SFT has seen", way))
    return findings or [passed(f"{grpo.groups} x {grpo.group_size} episodes a step, {grpo.max_steps} steps")]


def knobs(subject: Subject) -> list[Finding]:
    """Settings that are allowed and usually disappoint."""
    recipe = subject.recipe
    grpo, episodes = recipe.grpo, recipe.eval.episodes
    limit = _FULL_RATE if grpo.lora is None else _LORA_RATE
    rates = [grpo.lr, *(stage.lr or 0.0 for stage in recipe.stage)]
    findings: list[Finding] = []
    if subject.trained:
        findings += _for_nano(recipe, max(rates), limit)
    if grpo.sampling.temperature < 0.7:
        way = "sample at temperature 1"
        findings.append(
            warned(f"at temperature {grpo.sampling.temperature:g} the members of a group resemble each other", way)
        )
    if not grpo.validation_every:
        findings.append(warned("nothing is validated, so best is the last model", "set grpo.validation_every"))
    if episodes is not None and episodes < _FEW_EPISODES and not recipe.quick:
        most = max(len(condition.seeds) for condition in subject.spec.conditions.values())
        way = "set eval.episodes to 100 or more"
        if most <= episodes:
            file = ", or hold out a file (PATH?test=FILE)" if takes_test(recipe.environment) else ""
            way = f"there are no more than {most} tasks: bring more rows{file}"
        findings.append(warned(f"{episodes} episodes a condition prove little", way))
    return findings or [passed("nothing unusual")]


def _for_nano(recipe: Recipe, rate: float, limit: float) -> list[Finding]:
    """Settings for models that are trained from nothing, which would spoil a trained one."""
    findings: list[Finding] = []
    if rate > limit:
        what = "all weights" if recipe.grpo.lora is None else "adapters"
        findings.append(failed(f"a rate of {rate:g} spoils {what} of a trained model", f"stay below {limit:g}"))
    if recipe.teach.enabled and recipe.sft.lr > _SFT_RATE:
        way = "set sft.lr to 1e-5, or to 1e-4 with lora"
        findings.append(failed(f"sft.lr {recipe.sft.lr:g} spoils a trained model", way))
    for stage in ("sft", "grpo") if recipe.teach.enabled else ("grpo",):
        if getattr(recipe, stage).optimizer == "muon":
            way = f"set {stage}.optimizer to adamw and {stage}.lr to 1e-5"
            findings.append(failed(f"{stage}.optimizer muon is for models that are trained from nothing", way))
    return findings


def audited(subject: Subject) -> list[Finding]:
    """The grader has passed its audit, or the run begins with one."""
    path, grader = subject.folder / "audit.json", subject.grader.name
    document = read_document(path, AuditRecord) if path.is_file() else None
    rewards = "".join(f" --reward {each.function}={each.weight:g}" for each in subject.recipe.rewards)
    way = f"gradus audit {subject.recipe.environment}{rewards or f' --grader {grader}'} says what is wrong"
    if document is not None and document["grader"] == grader:
        if document["verdict"] == "pass":
            return [passed(f"{grader} passed its audit")]
        if document["verdict"] == "unresolved":
            return [warned(f"the audit of {grader} is not settled", way)]
        return [failed(f"{grader} failed its audit: its reward can be had without the skill", way)]
    if subject.recipe.audit.enabled:
        return [passed("the run begins with an audit of the grader")]
    return [
        warned(
            f"{grader} was not audited, and the run does not do it", way.replace("says what is wrong", "takes seconds")
        )
    ]
