"""From a run's record to what the page shows: tables for the template, data for its charts, and what its words mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gradus.core.documents import Description
from gradus.core.values import JsonDict
from gradus.evidence.reports.curves import audit_points, grpo_curves, outcome_curves, overlaid, sft_curves
from gradus.evidence.reports.results import headline_condition, main_condition, scores_of
from gradus.evidence.reports.run_files import RunRecord
from gradus.evidence.reports.score_tables import score_charts, score_tables
from gradus.evidence.reports.verdict import verdict_on

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


STATES = {"shown": "above", "refuted": "below", "open": "not significant"}


def page_context(record: RunRecord) -> tuple[JsonDict, JsonDict]:
    """(what the template is filled with, what the scripts draw from)."""
    results, about = record.results, record.about
    is_quick = bool(record.settings.get("quick") or (results and results.get("quick")))
    aim = about["true_reward"] if about else "the true reward"
    context: JsonDict = {
        "record": record,
        "verdict": verdict_on(results, quick=is_quick),
        "states": STATES,
        "promises": [] if is_quick else record.promises,  # at toy size all of them are missed
        "alerts": [line for line in record.grpo if line.get("kind") == "alert"],
        "aim": results["true_reward_name"] if results else aim,
        "condition": None,
        "headline": None,
        "policies": {},  # of the main condition
        "scores": [],
        "reference": None,  # the figures of an environment's original
        "here": {},  # the run's scores by condition, under the original's grader
    }
    data: JsonDict = {
        "scores": None,
        "curves": {**training_curves(record, context["aim"]), "outcome": []},
        "audit": audit_points(record.audit) if record.audit else [],
        "episodes": record.episodes["entries"] if record.episodes else [],
        "listed": record.episodes.get("listed", []) if record.episodes else [],
        "terms": explanations(about),
    }
    condition = main_condition(results) if results else None
    if results is None or condition is None:
        return context, data
    graders = scores_of(results)
    context["condition"] = condition
    context["headline"] = graders[results["grader"]][headline_condition(results) or condition]
    context["policies"] = results["conditions"][condition]["policies"]
    context["scores"] = score_tables(results)
    if about and "reference" in about:
        context["reference"] = about["reference"]
        context["here"] = graders.get(about["reference"]["grader"], {})
    data["scores"] = score_charts(results)
    data["curves"]["outcome"] = outcome_curves(results, condition)
    return context, data


def explanations(about: Description | None) -> dict[str, str]:
    """The general terms, and the environment's graders and conditions by its own words."""
    terms = dict(TERMS)
    if about:
        terms |= {name: grader["summary"] for name, grader in about["graders"].items()}
        terms |= about["conditions"]
    return {name: text for name, text in terms.items() if text}


def training_curves(record: RunRecord, aim: str) -> JsonDict:
    """The curves of GRPO and of SFT; over each other if the record holds several training seeds."""
    grpo, sft = grpo_curves(record.grpo, aim), sft_curves(record.sft)
    if record.seeds:
        grpo = overlaid({name: grpo_curves(run.grpo, aim) for name, run in record.seeds.items()})
        sft = overlaid({name: sft_curves(run.sft) for name, run in record.seeds.items()})
    return {"grpo": [asdict(curve) for curve in grpo], "sft": [asdict(curve) for curve in sft]}
