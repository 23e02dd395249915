"""Checks of the model: its files, template and context, the memory it needs, and what it earns before training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gradus.core import ConfigError, Grader
from gradus.core.findings import Finding
from gradus.rewards.grading import rewards_of
from gradus.runs.forecast.memory import as_set, check_fits, fit_to_memory, memory_forecast
from gradus.runs.forecast.subject import Circumstances, Subject, failed, not_checked, passed, warned
from gradus.runs.job import Job
from gradus.runs.recipe.starter import by_size
from gradus.runs.shapes import GIB, Lengths, card_of, this_machine
from gradus.training.trainer_config import TrainerConfig

_ROUNDING = 1e-9


def model(subject: Subject) -> list[Finding]:
    """Config, tokenizer, chat template and weights are there and belong together."""
    name = subject.model
    if not Path(name).exists() and not subject.online:
        from transformers.utils import hub

        try:
            hub.cached_file(name, "config.json", local_files_only=True)
        except OSError:
            evidence = f"{name} is not a folder and not in the cache of the hub"
            return [not_checked(evidence, "give --online, or a folder")]
    rows = subject.shape.vocabulary
    renderer = subject.renderer  # raises for a template that rewrites what was said
    tokens = len(renderer.tokenizer)
    # A model may have more rows than tokens: many are padded to a multiple.
    if tokens > rows:
        return [failed(f"the tokenizer has {tokens} tokens, the model {rows}", "use the tokenizer of this model")]
    form = "plain labels, no chat template" if renderer.plain else "chat template extends turn by turn"
    findings = [passed(f"{subject.shape.architecture}, {tokens:,} tokens, {form}")]
    if renderer.plain and subject.job.pretrained:
        findings.append(warned("the tokenizer has no chat template", "use the chat model, not the base model"))
    return findings


def too_long(subject: Subject) -> Finding | None:
    """Returns a failure if prompts and answers do not fit into the model's context."""
    held, needed = subject.shape.context, subject.longest.needed
    if held is None or needed <= held:
        return None
    remedy = "lower grpo.sampling.max_new_tokens, shorten the prompts, or use a model with a longer context"
    return failed(f"a sequence needs {needed} tokens, the model's context holds {held}", remedy)


def context(subject: Subject) -> list[Finding]:
    """Prompts and answers fit into the model's context, and the answers into what may be sampled."""
    wrong = too_long(subject)
    if wrong is not None:
        return [wrong]
    longest, allowed = subject.longest, subject.recipe.grpo.sampling.max_new_tokens
    if longest.answer > allowed:
        remedy = f"set grpo.sampling.max_new_tokens to at least {longest.answer}"
        report = failed if subject.job.pretrained else warned
        return [report(f"a right answer has {longest.answer} tokens, {allowed} may be sampled", remedy)]
    room = subject.shape.context or "any number of"
    return [passed(f"the longest sequence needs {longest.needed} of {room} tokens")]


def reference(subject: Subject) -> list[Finding]:
    """The reference answer, written as the reward wants it, earns the most that the reward gives."""
    spec, most = subject.spec, most_of(subject.grader)
    if spec.max_turns > 1 or spec.audit.gold is None or most is None:
        return [passed("no reference answers to try, or no known range of the reward")]
    values = [episode.reward_value for episode in subject.episodes]
    lower = [value for value in values if value is None or value < most - _ROUNDING]
    if not lower:
        return [passed(f"the reference answers earn {most:g}, the most that there is")]
    evidence = f"{len(lower)} of {len(values)} reference answers earn less than {most:g}, the most that there is"
    remedy = "let the reward take the answers as the rows write them; gradus audit shows which it refuses"
    return [failed(evidence, remedy)]


def most_of(grader: Grader) -> float | None:
    """Returns the most that a grader of reward functions gives; None if a function does not say its range."""
    rewards = rewards_of(grader)
    if rewards is None or grader.remote:  # a judge is not asked before the run
        return None
    most = 0.0
    for name, function in rewards.functions.items():
        is_built_in = getattr(function, "__module__", "").startswith("gradus.")
        limits = rewards.ranges.get(name, (0.0, 1.0) if is_built_in else None)
        if limits is None:
            return None
        # With a negative weight the lower limit earns the most.
        most += max(rewards.weights[name] * limit for limit in limits)
    return most


def server(subject: Subject) -> list[Finding]:
    """The server has the model and trains it: what it divides losses by is measured, and log-probs of prompts are asked for if KL needs them."""
    from gradus.policies.tinker.policy import TokenCounts
    from gradus.training.tinker.weights import ServedTraining, measure_server

    address = subject.job.address()
    assert address is not None  # CHECKS asks it with a server alone
    _ = address.service().sdk  # without its package nothing can be asked; it raises
    if not subject.online:
        return [not_checked(f"the server {address.url} was not asked", "give --online")]
    name = address.base()
    source = ServedTraining(model=address, words=subject.job.words(address), counts=TokenCounts())
    reduction = measure_server(source, subject.recipe.grpo)
    findings = [passed(f"{name} on {address.url}: losses are a {reduction.name}")]
    if subject.recipe.grpo.grad_clip and not reduction.clips:
        findings.append(warned("the server does not clip the gradient", "set grpo.grad_clip = 0, or lower grpo.lr"))
    return findings


def probe(subject: Subject) -> list[Finding]:
    """Sampler, trainer and plain forward give the model's own tokens the same log-probs."""
    from gradus.policies.local.loading import load_model
    from gradus.runs.forecast.model_probe import check_model

    loaded = load_model(subject.model, **subject.job.loading())
    return [passed(check_model(loaded).sentence)]


def base(subject: Subject) -> list[Finding]:
    """Tells what the base earns on questions of the run before training, and how long the run will take."""
    from gradus.runs.forecast.look import is_probed, look_at_base

    if not is_probed(subject.job):
        return [passed("a nano model, or a run at toy size: it is not asked before")]
    if subject.grader.remote and not subject.online:
        return [not_checked(f"the grader {subject.grader.name} asks a server and was not asked", "give --online")]
    look = look_at_base(subject.job, time=subject.circumstances.time, fixed=subject.circumstances.fixed)
    return [failed(*look.problem)] if look.problem else [passed(line) for line in look.lines()]


_TIGHT = 0.8  # of the memory: a forecast is within a quarter


def changes_for_card(job: Job, memory: str, *, online: bool) -> list[str]:
    """Returns the changes that fit a recipe to a card of this size, as ``--set`` takes them. Raises ConfigError if nothing fits.

    ``online``: the hub may be asked for the config and tokenizer of a model that is named.
    """
    card = card_of(memory)
    circumstances = Circumstances(online=online and job.recipe.model.path is not None)
    with TemporaryDirectory(prefix="gradus-plan-") as scratch:
        subject = Subject(job, Path(scratch), circumstances)
        wrong = too_long(subject)
        if wrong is not None:  # no smaller batch shortens a sequence
            raise ConfigError(f"{wrong.evidence}; {wrong.remedy}")
        plan, changes = fit_to_memory(subject.shape, job.recipe.grpo, lengths_of(subject), card)
    check_fits(plan, job.recipe.grpo)
    # SFT holds the same model in the same memory, and trains the same adapters, at the rate of adapters.
    shared = {key: value for key, value in changes.items() if key in TrainerConfig.model_fields and key != "lr"}
    if "lora" in shared:
        shared["lr"] = by_size(None)["sft"]["lr"]
    return [*as_set("grpo", changes), *as_set("sft", shared)]


def memory(subject: Subject) -> list[Finding]:
    """The forecast of GRPO's memory, against what this machine or the card that was named has."""
    config, card = subject.recipe.grpo, subject.circumstances.memory
    hardware = this_machine() if card is None else card_of(card)
    plan = memory_forecast(subject.shape, config, lengths_of(subject), hardware)
    check_fits(plan, config)  # raises, naming the setting to change
    largest = max(plan.memory, key=lambda name: plan.memory[name])
    room = f"{hardware.memory / GIB:.1f} GiB of {hardware.name}"
    line = f"{plan.peak / GIB:.2f} of {room}, most of it {largest}"
    if plan.peak > _TIGHT * hardware.memory:
        return [warned(line, "lower grpo.token_budget or grpo.groups; the forecast is within a quarter")]
    return [passed(line)]


def lengths_of(subject: Subject) -> Lengths:
    """Lengths in the model's tokens. A forecast multiplies them by the turns; here they are shares of a real sequence, so that both agree."""
    longest, context = subject.longest, subject.shape.context
    prompt = math.ceil(longest.prompts / longest.turns)
    # In one turn each answer may be as long as the limit; over many turns not all of them are.
    answer = math.ceil(longest.answers / longest.turns)
    if longest.turns == 1:
        answer = subject.recipe.grpo.sampling.max_new_tokens
    lengths = Lengths(prompt=prompt, answer=answer, turns=longest.turns, first=longest.first)
    if context is not None and lengths.whole > context:
        return replace(lengths, answer=max(1, context // longest.turns - prompt))
    return lengths
