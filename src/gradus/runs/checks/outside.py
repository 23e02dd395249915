"""Checks of what lies outside the process: remote models, a sampling server, trackers, and the run folder."""

from __future__ import annotations

import os
from pathlib import Path

from gradus.runs.checks.findings import Finding, failed, passed, warned
from gradus.runs.checks.subject import Subject
from gradus.training.run.trackers import check_trackers


def remote(subject: Subject) -> list[Finding]:
    """If a remote model teaches, acts or reads, there is a key, or the address of a server that needs none."""
    recipe = subject.recipe
    teacher = (recipe.teach.policy or "") if recipe.teach.enabled else ""
    asked = [name for name in (teacher, *recipe.eval.policies) if name.startswith("remote:")]
    if "remote:" in recipe.environment:
        asked.append(recipe.environment)
    if not asked:
        if subject.grader.remote:
            return [passed(f"the grader {subject.grader.name} asks a server; the check of gold does so with --online")]
        return [passed("no remote model is asked")]
    address = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    if "OPENAI_API_KEY" not in os.environ and "api.openai.com" in address:
        return [
            failed(f"{asked[0]} needs a key for {address}", "set OPENAI_API_KEY, or OPENAI_BASE_URL for another server")
        ]
    if subject.online:
        from gradus.policies.remote.policy import RemotePolicy

        RemotePolicy(asked[0].partition("remote:")[2]).start(()).close()  # raises if it cannot be reached
        return [passed(f"{asked[0]} answers at {address}")]
    return [passed(f"{', '.join(asked)} at {address}: a key is there, the server was not asked (--online does)")]


def sampling_server(subject: Subject) -> list[Finding]:
    """If a server samples for GRPO, it answers."""
    config = subject.recipe.grpo
    if config.sampler == "local" or config.sampler_url is None:
        return [passed("this process samples")]
    if not subject.online:
        return [passed(f"{config.sampler_url} was not asked (--online does)")]
    from gradus.policies.vllm.http_sampler import served_model

    name = served_model(config.sampler_url, api_key=os.environ.get("VLLM_API_KEY"))
    return [passed(f"{config.sampler_url} serves {name}")]


def trackers(subject: Subject) -> list[Finding]:
    """They are known and installed, and Weights & Biases knows who is writing."""
    named = subject.recipe.trackers
    check_trackers(named)
    known = {"WANDB_API_KEY", "WANDB_MODE"} & os.environ.keys() or (Path.home() / ".netrc").is_file()
    if "wandb" in named and not known:
        return [warned("wandb has no key and no mode", "run wandb login, or set WANDB_MODE=offline")]
    return [passed(", ".join(["metrics.jsonl", *named]))]


def run_folder(subject: Subject) -> list[Finding]:
    """There may be a folder, and it is empty, or holds a run with these settings."""
    from gradus.runs.stages.runner import remaining, require_folder

    require_folder(subject.folder, several=subject.given.several)
    if subject.given.several:
        return [passed(f"{subject.folder}: a run of several seeds")]
    left = remaining(subject.recipe, subject.folder)  # raises, naming the setting that differs
    return [passed(f"{subject.folder}: {', '.join(left) or 'nothing'} to do")]
