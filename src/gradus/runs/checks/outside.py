"""Checks of what lies outside the process: servers that are asked, and the run folder."""

from __future__ import annotations

import os

from gradus.runs.checks.findings import Finding, failed, passed
from gradus.runs.checks.subject import Subject


def servers(subject: Subject) -> list[Finding]:
    """Remote models have a key, or the address of a server that needs none; with --online each server is asked."""
    recipe, online = subject.recipe, subject.online
    teacher = (recipe.teach.policy or "") if recipe.teach.enabled else ""
    asked = [name for name in (teacher, *recipe.eval.policies, recipe.environment) if "remote:" in name]
    address = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    if asked and "OPENAI_API_KEY" not in os.environ and "api.openai.com" in address:
        way = "set OPENAI_API_KEY, or OPENAI_BASE_URL for another server"
        return [failed(f"{asked[0]} needs a key for {address}", way)]
    named = [f"{name} at {address}" for name in asked]
    if asked and online:
        from gradus.policies.remote.policy import RemotePolicy

        RemotePolicy(asked[0].partition("remote:")[2]).start(()).close()  # raises if it cannot be reached
    if recipe.grpo.sampler != "local" and recipe.grpo.sampler_url is not None:
        named.append(f"the sampler at {recipe.grpo.sampler_url}")
        if online:
            from gradus.policies.vllm.http_sampler import served_model

            served_model(recipe.grpo.sampler_url, api_key=os.environ.get("VLLM_API_KEY"))
    named += [f"the grader {subject.grader.name}"] if subject.grader.remote else []
    told = "answers" if online else "not asked (--online does)"
    return [passed(f"{', '.join(named)}: {told}" if named else "no server is asked")]


def run_folder(subject: Subject) -> list[Finding]:
    """There may be a folder, and it is empty, or holds a run with these settings."""
    from gradus.runs.stages.runner import remaining, require_folder

    require_folder(subject.folder, several=subject.given.several)
    if subject.given.several:
        return [passed(f"{subject.folder}: a run of several seeds")]
    left = remaining(subject.recipe, subject.folder)  # raises, naming the setting that differs
    return [passed(f"{subject.folder}: {', '.join(left) or 'nothing'} to do")]
