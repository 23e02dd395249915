"""Explains the words on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
MOST_ACTIONS = 10
TERMS: Mapping[str, str] = {
    "reward": "the number that training maximizes, from the grader",
    "true reward": "what the author of the environment really wants; no grader may lower it",
    "Spread within groups": "standard deviation of the reward among the members of a group; without it nothing is learned",
    "Zero-variance groups": "share of groups whose members all got the same reward; they teach nothing",
    "KL": "how far the policy is from its reference, in nats per token; 0 means unchanged",
    "Entropy": "how undecided the policy is about its next token, in nats; 0 is always the same token",
    "Gradient norm": "length of the gradient before it was clipped; a sudden jump is a bad batch",
    "Log-prob difference": "how much the sampler and the trainer disagree about the same token; it should be near 0",
    "Components of the reward": "the parts that the grader weighs and adds up",
    "p (Holm)": "chance of such a difference if the policies were equal, corrected for looking at several conditions",
    "wins": "pairs of episodes, on the same seed, in which the first policy got the higher reward",
    "random": "a policy that draws its actions at random",
    "heuristic": "a hand-written rule; the bar that a student should pass",
    "bayes": "a policy that knows how the environment works and infers what is hidden by Bayes' rule",
    "profile-blind": "the planner for the average person: it plans well and infers nothing",
    "clairvoyant": "a policy that is told what is hidden: the ceiling",
    "base": "the model before any training",
    "sft": "the student after the warm start on a teacher's episodes, sampled as in training",
    "sft-greedy": "the same student, always taking its likeliest token",
    "distill": "the student after distillation from a teacher, sampled as in training",
    "distill-greedy": "the same student, always taking its likeliest token",
    "grpo": "the student after GRPO, sampled as in training",
    "grpo-greedy": "the student after GRPO, always taking its likeliest token",
}


def explanations(about: Mapping[str, Any]) -> dict[str, str]:
    """The general terms, and the environment's graders and conditions by its own words."""
    graders = {name: str(each.get("summary") or "") for name, each in (about.get("graders") or {}).items()}
    own = {**graders, **{name: str(text or "") for name, text in (about.get("conditions") or {}).items()}}
    return {**TERMS, **{name: text for name, text in own.items() if text}}


def actions_used(results: Json | None, condition: str | None) -> Json | None:
    """Shares of the actions that each policy chose under a condition; None if no policy chose among a few."""
    policies: Json = ((results or {}).get("conditions") or {}).get(condition, {}).get("policies") or {}
    counts = {name: Counter[str](stored["actions"]) for name, stored in policies.items() if stored.get("actions")}
    names = [name for name, _ in sum(counts.values(), Counter[str]()).most_common(MOST_ACTIONS)]
    if not names:
        return None
    rows = [(policy, [count[name] / count.total() for name in names]) for policy, count in counts.items()]
    return {"header": ["policy", *names], "rows": rows}
