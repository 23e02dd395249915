"""The scores of an evaluation as tables and chart data, beside the published figures of an original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gradus.evidence.reports.results import (
    Difference,
    Figure,
    components_of,
    differences,
    figure,
    graders_of,
    measures_of,
    ranked,
    sides_of,
)
from gradus.evidence.reports.verdict import STUDENTS, state_of
from gradus.stats import format_number, format_p, format_signed

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``note`` is small print under the text; ``state`` is shown, refuted or empty."""

    text: str
    note: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """``own`` marks the run's own checkpoints."""

    name: str
    cells: list[Cell]
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """``header`` names the first column too."""

    title: str
    caption: str
    header: list[str]
    rows: list[Row]


def score_charts(results: Json | None) -> Json | None:
    """Per measure and condition the policies with their intervals, best first."""
    if not results or not results.get("conditions"):
        return None
    measures: list[Json] = []
    for grader, conditions in graders_of(results).items():
        names = measures_of(conditions) if not measures else ["reward"]  # another grader changes the reward alone
        for name in names:
            shown = f"reward, {grader}" if name == "reward" else _measure_name(results, name)
            charts = [_score_chart(results, conditions, condition, name) for condition in conditions]
            measures.append({"key": f"{grader}/{name}", "name": shown, "conditions": charts})
    return {"measures": measures}


def _score_chart(results: Json, conditions: Mapping[str, Any], condition: str, measure: str) -> Json:
    stored = conditions[condition]
    rows: list[Json] = []
    for name in reversed(ranked(conditions, condition, measure)):
        value = figure(stored["policies"][name].get(measure))
        bounds = asdict(value) if value else {"mean": None, "low": None, "high": None}
        rows.append({"name": name, **bounds, "strong": is_own(name)})
    return {"name": condition, "note": f"{stored.get('episodes', '?')} episodes", "rows": rows}


def is_own(policy: str) -> bool:
    """Says if a policy is one of the run's own checkpoints (``grpo``, ``sft``, ``grpo-greedy``, ...)."""
    return policy.partition("-")[0] in STUDENTS


def _measure_name(results: Json, measure: str) -> str:
    if measure == "true_reward":
        return str(results.get("true_reward_name") or measure)
    return measure.replace("_", " ")


def score_tables(results: Json | None) -> list[ScoreTable]:
    """The reward by condition under every grader, then all figures and differences of each condition."""
    if not results or not results.get("conditions"):
        return []
    graders = graders_of(results)
    main, conditions = next(iter(graders.items()))
    tables: list[ScoreTable] = [_overview(conditions, grader) for grader, conditions in graders.items()]
    for condition in conditions:
        tables += seed_tables(results, condition)
        tables.append(_policy_table(results, conditions, condition, main))
        for grader, graded in graders.items():
            if (graded.get(condition) or {}).get("pairs"):
                tables.append(_pair_table(results, graded, condition, grader))
    return tables


def _overview(conditions: Mapping[str, Any], grader: str) -> ScoreTable:
    """Policies by conditions: the reward alone."""
    first = next(iter(conditions))
    order = ranked(conditions, first)
    order += [name for stored in conditions.values() for name in stored.get("policies", {}) if name not in order]
    rows: list[Row] = []
    for name in reversed(list(dict.fromkeys(order))):
        cells = [
            figure_cell(figure((conditions[each]["policies"].get(name) or {}).get("reward"))) for each in conditions
        ]
        rows.append(Row(name=name, cells=cells, own=is_own(name)))
    return ScoreTable(
        title=f"Reward by condition, {grader}",
        caption="mean reward; 95 % interval below it",
        header=["policy", *conditions],
        rows=rows,
    )


def seed_tables(results: Mapping[str, Any], condition: str) -> list[ScoreTable]:
    """The reward of each training seed, and the difference that each made; nothing if there is one seed."""
    seeds, stored = results.get("seeds") or [], results["conditions"][condition]
    rows: list[Row] = []
    for kind in ("policies", "pairs"):
        for name, figures in (stored.get(kind) or {}).items():
            reward = figures.get("reward") or {}
            each = reward.get("by_seed")
            if each is None or len(each) != len(seeds):
                continue
            sides = sides_of(name, stored["policies"]) if kind == "pairs" else None
            write, signed = (format_signed, True) if kind == "pairs" else (format_number, False)
            cells = [Cell(text=write(value)) for value in each] + [figure_cell(figure(reward), signed=signed)]
            rows.append(Row(name=" − ".join(sides or [name]), cells=cells, own=is_own(name)))
    if not rows:
        return []
    caption = "mean reward of each training seed over the tasks; the interval of all is over seeds and tasks"
    header = ["policy", *(f"seed {seed}" for seed in seeds), "all"]
    return [ScoreTable(title=f"Reward by training seed, {condition}", caption=caption, header=header, rows=rows)]


def _policy_table(results: Json, conditions: Mapping[str, Any], condition: str, grader: str) -> ScoreTable:
    measures, components = measures_of(conditions), components_of(conditions)
    policies = conditions[condition].get("policies") or {}
    rows: list[Row] = []
    for name in reversed(ranked(conditions, condition)):
        stored = policies[name]
        cells = [figure_cell(figure(stored.get(measure))) for measure in measures]
        cells += [figure_cell(figure((stored.get("components") or {}).get(each)), bounds=False) for each in components]
        rows.append(Row(name=name, cells=[*cells, Cell(text=_counted(stored))], own=is_own(name)))
    header = ["policy", *(_measure_name(results, each) for each in measures)]
    header += [each.replace("_", " ") for each in components]
    caption = f"{conditions[condition].get('episodes', '?')} episodes, grader {grader}; the components of the reward unweighted"
    caption += f"; {results['samples']} samples of each task" if results.get("samples", 1) > 1 else ""
    caption += "; clustered on the hidden unit that episodes share" if conditions[condition].get("clustered") else ""
    caption = "; ".join([caption, *missing_episodes(conditions[condition])])
    return ScoreTable(title=f"All figures, {condition}", caption=caption, header=[*header, "episodes"], rows=rows)


def missing_episodes(stored: Mapping[str, Any]) -> list[str]:
    """A line for every policy of a condition that has episodes without a reward, which no figure counts, and what went wrong first."""
    lines: list[str] = []
    for name, figures in (stored.get("policies") or {}).items():
        count, failed, ungraded = (figures.get(each) or 0 for each in ("episodes", "failed", "ungraded"))
        kinds = ", ".join(f"{kind} ({times})" for kind, times in (figures.get("failures") or {}).items())
        told = [f"{failed} of {count} episodes failed{f': {kinds}' if kinds else ''}"] if failed else []
        told += [f"{ungraded} of {count} episodes could not be graded"] if ungraded else []
        told += [f"the first said {first}"] if told and (first := figures.get("first_failure")) else []
        lines += [f"{name}: {'; '.join(told)}"] if told else []
    return lines


def _pair_table(results: Json, conditions: Mapping[str, Any], condition: str, grader: str) -> ScoreTable:
    pairs, power = differences(conditions, condition), results.get("power")
    measures = [name for name in measures_of(conditions) if any(pair.figures.get(name) for pair in pairs)]
    measures = (
        measures if grader == results.get("grader", grader) else ["reward"]
    )  # another grader changes the reward alone
    rows: list[Row] = []
    for pair in pairs:
        cells = [figure_cell(pair.figures.get(name), signed=True) for name in measures]
        cells += [_wins(pair), Cell(text=format_p(pair.p))]
        cells += [Cell(text=str(pair.episodes_needed or "–"))] if power else []
        rows.append(Row(name=f"{pair.first} − {pair.second}", cells=cells, own=is_own(pair.first)))
    header = ["difference", *(_measure_name(results, name) for name in measures), "wins", "p (Holm)"]
    header += [f"episodes for {power['difference']:g}"] if power else []
    main = grader == results.get("grader", grader)
    return ScoreTable(
        title=f"Differences, {condition}" + ("" if main else f", {grader}"),
        caption=f"same seeds, grader {grader}; paired 95 % interval below each",
        header=header,
        rows=rows,
    )


def _wins(pair: Difference) -> Cell:
    if pair.wins is None:
        return Cell(text="–")
    rate = pair.win_rate
    return Cell(text=f"{pair.wins} of {pair.episodes}", note="" if rate is None else f"{rate[0]:.0%} to {rate[1]:.0%}")


def figure_cell(value: Figure | None, *, signed: bool = False, bounds: bool = True) -> Cell:
    """A figure with its interval under it; a difference is marked if its interval leaves out 0."""
    if value is None:
        return Cell(text="–")
    known = [each for each in (value.mean, value.low, value.high) if bounds and each is not None]
    write = partial(format_signed if signed else format_number, beside=max(map(abs, known), default=0.0))
    note = ""
    if bounds and value.low is not None and value.high is not None:
        note = f"{write(value.low)} to {write(value.high)}"
    state = state_of(value) if signed else ""
    return Cell(text=write(value.mean), note=note, state="" if state == "open" else state)


def _counted(stored: Mapping[str, Any]) -> str:
    missing = [f"{stored[kind]} {kind}" for kind in ("failed", "ungraded", "truncated") if stored.get(kind)]
    count = stored.get("episodes")
    return ", ".join([str(count) if count is not None else "–", *missing])


_SPELLED = {"sft": "SFT", "grpo": "GRPO", "llm": "LLM", "3b": "3B", "mae": "error"}  # in headings


def reference_table(reference: Mapping[str, Any] | None, results: Mapping[str, Any] | None) -> Json | None:
    """Two rows a condition, the original's and ours under the same grader; columns are the original's policies. None if we have no such figure.

    ``reference`` holds ``conditions`` (condition -> policy -> figures), and may hold ``source``, ``grader``, ``note`` (why it is
    not the same environment) and ``ours``: the original's column -> the run's ``policy`` or ``policy/figure``.
    """
    conditions = (reference or {}).get("conditions") or {}
    if reference is None or not conditions:
        return None
    graded = graders_of(results) if results else {}
    grader = reference.get("grader")
    mine = graded.get(str(grader)) if grader else next(iter(graded.values()), None)
    header = list(dict.fromkeys(policy for policies in conditions.values() for policy in policies))
    rows: list[Row] = []
    for condition, policies in conditions.items():
        published = [_published(policies.get(name)) for name in header]
        rows.append(Row(name=f"{condition}, original", cells=published))
        policies = ((mine or {}).get(condition) or {}).get("policies") or {}
        if policies:
            names = reference.get("ours") or {}
            cells = [_ours(policies, names.get(name, name)) for name in header]
            rows.append(Row(name=f"{condition}, here", cells=cells, own=True))
    if not any(row.own for row in rows):
        return None
    under = f"grader {grader}; " if grader else ""
    source = f" Original: {reference['source']}" if reference.get("source") else ""
    return {
        "header": [" ".join(_SPELLED.get(word) or word for word in name.split("_")) for name in header],
        "rows": rows,
        "note": reference.get("note")
        or "The original is another environment: compare the order of policies, not the numbers.",
        "caption": f"{under}mean reward, further figures below it.{source}",
    }


def _published(stored: Any) -> Cell:
    if isinstance(stored, Mapping):
        reward = figure(stored.get("reward"))
        return Cell(text=format_number(reward.mean if reward else None), note=_notes(stored))
    value = figure(stored)
    return Cell(text=format_number(value.mean if value else None))


def _ours(policies: Mapping[str, Any], column: str) -> Cell:
    policy, _, measure = column.partition("/")
    stored = policies.get(policy)
    return figure_cell(figure(stored.get(measure or "reward")) if isinstance(stored, Mapping) else None)


def _notes(stored: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in stored.items():
        if name == "reward" or value is None:
            continue
        known = figure(value)
        shown = str(value) if known is None else (f"{value}" if isinstance(value, int) else format_number(known.mean))
        parts.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(parts)
