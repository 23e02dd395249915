"""From a run's record to what the page shows: tables for the template, data for its charts, and what its words mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gradus.core.documents import AuditPoint, Description, Results, ShownGroup
from gradus.evidence.reports.curves import Curve, audit_points, grpo_curves, outcome_curves, overlaid, sft_curves
from gradus.evidence.reports.results import figure, main_condition
from gradus.evidence.reports.run_files import Json, RunRecord
from gradus.evidence.reports.score_tables import (
    Cell,
    Row,
    figure_cell,
    is_own,
    reference_table,
    score_charts,
    score_tables,
)
from gradus.evidence.reports.tiles import tiles
from gradus.evidence.reports.verdict import verdict_on

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


STATES = {"shown": "above", "refuted": "below", "open": "not told apart"}


def page_context(record: RunRecord) -> tuple[Json, Json]:
    """(what the template is filled with, what the scripts draw from)."""
    results = record.results
    condition = main_condition(results) if results else None
    is_quick = bool(record.settings.get("quick") or (results and results.get("quick")))
    context: Json = {
        "record": record,
        "title": _title(record),
        "facts": _facts(record),
        "verdict": verdict_on(results, quick=is_quick),
        "tiles": tiles(record),
        "states": STATES,
        "promises": [] if is_quick else record.promises,  # at toy size all of them are missed
        "main_condition": condition,
        "grader": results["grader"] if results else "the grader",
        "aim": _aim(record),
        "points": _points(record.audit["points"]) if record.audit else [],
        "alerts": [line for line in record.grpo if line.get("kind") == "alert"],
        "actions": None,
        "scores": [],
        "reference": None,
    }
    if results is not None and condition is not None:
        context["actions"] = actions_used(results, condition)
        context["scores"] = score_tables(results)
        if record.about and "reference" in record.about:
            context["reference"] = reference_table(record.about["reference"], results)
    grpo, sft = training_curves(record)
    entries = record.episodes["entries"] if record.episodes else []
    data: Json = {
        "scores": score_charts(results) if results and condition else None,
        "curves": {
            "grpo": [asdict(curve) for curve in grpo],
            "sft": [asdict(curve) for curve in sft],
            "outcome": outcome_curves(results, condition) if results and condition else [],
        },
        "audit": audit_points(record.audit) if record.audit else [],
        "episodes": entries,
        "listed": record.episodes.get("listed", []) if record.episodes else [],
        "terms": explanations(record.about),
    }
    context["has_own"] = any(is_own(row.name) for table in context["scores"][:1] for row in table.rows)
    context["episodes_have"] = _contents(entries)
    return context, data


def explanations(about: Description | None) -> dict[str, str]:
    """The general terms, and the environment's graders and conditions by its own words."""
    if about is None:
        return {**TERMS}
    graders = {name: grader["summary"] for name, grader in about["graders"].items()}
    words = {**graders, **about["conditions"]}
    return {**TERMS, **{name: text for name, text in words.items() if text}}


def actions_used(results: Results, condition: str) -> Json | None:
    """Shares of the actions that each policy chose under a condition; None if no policy chose among a few."""
    policies = results["conditions"][condition]["policies"]
    counts = {name: Counter(policy["actions"]) for name, policy in policies.items() if "actions" in policy}
    total = sum(counts.values(), Counter[str]())
    actions = [action for action, _ in total.most_common(MOST_ACTIONS)]
    if not actions:
        return None
    rows = [(name, [count[action] / count.total() for action in actions]) for name, count in counts.items()]
    return {"header": ["policy", *actions], "rows": rows}


def training_curves(record: RunRecord) -> tuple[list[Curve], list[Curve]]:
    """The curves of GRPO and of SFT; over each other if the record holds several training seeds."""
    if record.seeds is None:
        return grpo_curves(record.grpo, _aim(record)), sft_curves(record.sft)
    grpo = {name: grpo_curves(lines, _aim(record)) for name, lines in record.overlaid.items()}
    sft = {name: sft_curves(lines) for name, lines in record.overlaid_sft.items()}
    return overlaid(grpo), overlaid(sft)


def _title(record: RunRecord) -> str:
    source = record.results or record.about
    return f"{source['environment']}: {record.name} · Gradus" if source else f"{record.name} · Gradus"


def _facts(record: RunRecord) -> list[str]:
    """What the page says of the run under its headline."""
    facts: list[str] = []
    source = record.results or record.about
    if source:
        facts.append(f"environment {source['environment']}")
    run: Json = dict(record.about.get("run", {})) if record.about else {}
    if record.results:
        facts.append(f"grader {record.results['grader']}")
        seeds = record.results["seeds"]
        if len(seeds) > 1:
            run = {("seeds" if name == "seed" else name): value for name, value in run.items()}
            run["seeds"] = ", ".join(map(str, seeds))
    return [*facts, f"run {record.name}", *(f"{name} {value}" for name, value in run.items())]


def _aim(record: RunRecord) -> str:
    if record.results:
        return record.results["true_reward_name"]
    return record.about["true_reward"] if record.about else "the true reward"


def _contents(entries: Sequence[ShownGroup]) -> dict[str, bool]:
    """Says which explanations the episodes need."""
    members = [member for entry in entries for member in entry["members"]]
    turns = [turn for member in members for turn in member["turns"]]
    panels = [panel for member in members if member["view"] for panel in member["view"]["panels"]]
    return {
        "turns": any(len(member["turns"]) > 1 for member in members),
        "truth": any("truth" in panel for panel in panels),
        "tokens": any("tokens" in turn for turn in turns),
    }


def _points(points: Sequence[AuditPoint]) -> list[Row]:
    """Every policy of the audit with its part in it, by reward."""

    def depth(point: AuditPoint) -> float:
        mean = point["reward"]["mean"]
        return float("inf") if mean is None else -mean

    rows: list[Row] = []
    for point in sorted(points, key=depth):
        figures = [figure_cell(figure(point["reward"])), figure_cell(figure(point["true_reward"]))]
        rows.append(Row(name=point["policy"], cells=[Cell(text=point["role"]), *figures]))
    return rows
