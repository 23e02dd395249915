"""From a run's record to what the page shows: tables for the template, data for its charts, and what its words mean."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gradus.evidence.reports.curves import Curve, audit_points, grpo_curves, outcome_curves, overlaid, sft_curves
from gradus.evidence.reports.results import figure, main_condition
from gradus.evidence.reports.run_files import RunRecord
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
from gradus.stats import format_interval, format_money

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


Json = dict[str, Any]
ALERT = ("rule", "name", "severity", "evidence", "remedy", "step", "action")
STATES = {"shown": "above", "refuted": "below", "open": "not told apart"}


def page_context(record: RunRecord) -> tuple[Json, Json]:
    """(what the template is filled with, what the scripts draw from)."""
    results, about = record.results, record.about or {}
    recipe = _recipe(record.recipe)
    quick = bool(recipe.get("quick") or (results or {}).get("quick"))
    grpo, sft = training_curves(record)
    tables, condition = score_tables(results), main_condition(results) if results else None
    data = {
        "scores": score_charts(results),
        "curves": {
            "grpo": [asdict(curve) for curve in grpo],
            "sft": [asdict(curve) for curve in sft],
            "outcome": outcome_curves(results),
        },
        "audit": audit_points(record.audit),
        "episodes": (record.episodes or {}).get("entries") or [],
        "listed": (record.episodes or {}).get("listed") or [],
        "terms": explanations(about),
    }
    context: Json = {
        "title": _title(record),
        "run": record.path,
        "facts": _facts(record),
        "verdict": verdict_on(results, quick=quick),
        "tiles": tiles(record, recipe),
        "states": STATES,
        "promises": [] if quick else _promises(record),  # at toy size all of them are missed
        "kept": _kept(record.promises),
        "actions": actions_used(results, condition),
        "scores": tables,
        "main_condition": condition,
        "reference": reference_table(about.get("reference"), results),
        "grader": (results or {}).get("grader") or "the grader",
        "aim": _aim(record),
        "doctor": _doctor(record.doctor),
        "alerts": [_with(line, *ALERT) for line in record.grpo if line.get("kind") == "alert"],
        "audit": _audit(record.audit, results),
        "costs": _costs(record.costs),
        "graders": about.get("graders"),
        "conditions": about.get("conditions"),
        "recipe": record.recipe,
        "seeds": record.seeds,
        "missing": record.missing,
        "has_made": any(
            (
                about.get("graders"),
                about.get("conditions"),
                record.seeds,
                record.recipe,
                record.missing,
            )
        ),
        "has_own": any(is_own(row.name) for table in tables[:1] for row in table.rows),
        "has_grpo": bool(data["curves"]["grpo"]),
        "has_sft": bool(data["curves"]["sft"]),
        "has_training": bool(data["curves"]["grpo"] or data["curves"]["sft"]),
        "has_outcome_curves": bool(data["curves"]["outcome"]),
        "has_audit_chart": bool(data["audit"]),
        "has_episodes": bool(data["episodes"]),
        "episodes_have": _contents(data["episodes"]),
    }
    return {**context, "sections": _sections(context)}, data


def training_curves(record: RunRecord) -> tuple[list[Curve], list[Curve]]:
    """The curves of GRPO and of SFT; over each other if the record holds several training seeds."""
    grpo, sft = grpo_curves(record.grpo, _aim(record)), sft_curves(record.sft)
    if record.overlaid:
        grpo = overlaid({name: grpo_curves(lines, _aim(record)) for name, lines in record.overlaid.items()})
    if record.overlaid_sft:
        sft = overlaid({name: sft_curves(lines) for name, lines in record.overlaid_sft.items()})
    return grpo, sft


def _sections(context: Json) -> list[Json]:
    candidates = (
        ("proven", "Proven", context["verdict"].claims or context["promises"]),
        ("episodes", "Episodes", context["has_episodes"]),
        ("scores", "Scores", context["scores"]),
        ("training", "Training", context["has_training"]),
        ("health", "Health", context["doctor"] or context["alerts"]),
        ("audit", "Audit", context["audit"]),
        ("original", "Beside the original", context["reference"]),
        ("costs", "Costs", context["costs"]),
        ("made", "How it was made", context["has_made"]),
    )
    return [{"id": key, "name": name} for key, name, there in candidates if there]


def _title(record: RunRecord) -> str:
    environment = (record.results or record.about or {}).get("environment")
    return f"{environment}: {record.name} · Gradus" if environment else f"{record.name} · Gradus"


def _facts(record: RunRecord) -> list[str]:
    source = record.results or record.about or {}
    facts = [f"environment {source['environment']}"] if source.get("environment") else []
    if source.get("grader"):
        facts.append(f"grader {source['grader']}")
    run = dict((record.about or {}).get("run") or {})
    seeds = source.get("seeds") or []
    if len(seeds) > 1:
        run = {("seeds" if key == "seed" else key): value for key, value in run.items()}
        run["seeds"] = ", ".join(str(seed) for seed in seeds)
    return [*facts, f"run {record.name}", *(f"{name} {value}" for name, value in run.items())]


def _aim(record: RunRecord) -> str:
    return str(
        (record.results or {}).get("true_reward_name") or (record.about or {}).get("true_reward") or "the true reward"
    )


def _recipe(text: str | None) -> Json:
    try:
        return tomllib.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}


def _promises(record: RunRecord) -> list[Json]:
    """Rows of the recipe's promises, as the run judged them."""
    rows: list[Json] = []
    for promise in record.promises:
        met, threshold = promise.get("met"), promise.get("threshold")
        required = "–" if threshold is None else f"{threshold:g}"  # as on the terminal: 0.0004 is not 0.000
        rows.append(
            {
                **promise,
                "text": ("aim: " if promise.get("aim") else "") + promise["text"],
                "kept": "not measured" if met is None else ("yes" if met else "no"),
                "state": "" if met is None else ("shown" if met else "refuted"),
                "wanted": f"{promise.get('direction', '')} {required}",
            }
        )
    return rows


def _kept(promises: Sequence[Json]) -> str:
    """``9 of 12 kept``; aims are not counted."""
    firm = [each for each in promises if not each.get("aim")]
    return f"{sum(each.get('met') is True for each in firm)} of {len(firm)} kept"


def _contents(entries: Sequence[Json]) -> dict[str, bool]:
    """Says which explanations the episodes need."""
    members = [member for entry in entries for member in entry.get("members") or ()]
    panels = [panel for member in members for panel in (member.get("view") or {}).get("panels") or ()]
    return {
        "turns": any(len(member["turns"]) > 1 for member in members),
        "truth": any(panel.get("truth") for panel in panels),
        "tokens": any(turn.get("tokens") for member in members for turn in member["turns"]),
    }


def _doctor(doctor: Json | None) -> Json | None:
    if doctor is None:
        return None
    diagnoses = [_with(each, *ALERT) for each in doctor.get("diagnoses") or []]
    summary = (doctor.get("summary") or "No rule fired.").removeprefix("Healthy: ")  # the status says so already
    told = "" if diagnoses else summary[:1].upper() + summary[1:]
    return {"status": doctor.get("status", "unknown"), "summary": told, "diagnoses": diagnoses}


def _audit(audit: Json | None, results: Json | None) -> Json | None:
    if audit is None:
        return None
    checks = [_with(each, "name", "status", "evidence") for each in audit.get("checks") or []]
    grader = audit.get("grader") or (results or {}).get("grader") or "the grader"
    summary = audit.get("summary") or f"The audit's verdict: {audit.get('verdict', 'unknown')}."
    return {
        "grader": grader,
        "summary": summary,
        "checks": checks,
        "hack": _hack(audit.get("hack")),
        "points": _points(audit),
    }


def _points(audit: Json) -> list[Row]:
    """Every policy of the audit with its part in it, by reward."""
    rows: list[tuple[float, Row]] = []
    for stored in audit.get("points") or ():
        reward = figure(stored.get("reward"))
        cells = [
            Cell(text=str(stored.get("role") or "–")),
            figure_cell(reward),
            figure_cell(figure(stored.get("true_reward"))),
        ]
        rows.append((reward.mean if reward else float("-inf"), Row(name=str(stored.get("policy")), cells=cells)))
    return [row for _, row in sorted(rows, key=lambda each: -each[0])]


def _hack(hack: Json | None) -> str | None:
    """Tells the hack of the audit's search in a sentence."""
    if not hack:
        return None
    reward, true_reward = (format_interval(figure(hack.get(name)), signed=True) for name in ("reward", "true_reward"))
    return (
        f"The search found a hack: {hack.get('plan')}. Against {hack.get('reflex')} its reward changes by {reward}, "
        f"the true aim by {true_reward}."
    )


def _with(stored: Json, *keys: str) -> Json:
    """Just these keys, None if one is missing: stored files may know more or less than this version."""
    return {key: stored.get(key) for key in keys}


def _costs(costs: Json | None) -> list[Json]:
    stored = (costs or {}).get("stages") or {}
    listed = stored if isinstance(stored, list) else [{"stage": name, **each} for name, each in stored.items()]
    whole = sum(each.get("seconds") or 0.0 for each in listed)
    rows = [
        {
            "stage": each.get("stage", "–"),
            "work": ", ".join(f"{each[kind]:,} {kind}" for kind in ("episodes", "steps") if each.get(kind)),
            "time": format_seconds(each.get("seconds")),
            "share": (each.get("seconds") or 0.0) / whole if whole else None,
            "tokens": _tokens(each),
            "money": "–" if each.get("cost") is None else format_money(each["cost"]),
        }
        for each in listed
    ]
    if len(rows) > 1:
        total = {"stage": "all", "work": "", "time": format_seconds(whole), "share": None, "tokens": ""}
        rows.append({**total, "money": _money(listed)})
    return rows


def _tokens(stage: Json) -> str:
    parts = [stage[kind] for kind in ("tokens", "prompt_tokens", "completion_tokens") if stage.get(kind)]
    return f"{sum(parts):,}" if parts else "–"


def _money(stages: Sequence[Json]) -> str:
    spent = [each["cost"] for each in stages if each.get("cost") is not None]
    return format_money(sum(spent)) if spent else "–"


def format_seconds(value: float | None) -> str:
    """``8.2 s``, ``3 min 20 s``, ``1 h 05 min``."""
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
