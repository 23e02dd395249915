"""The scores of an evaluation as tables and chart data, beside the published figures of an original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradus.core.documents import (
    ConditionResults,
    Mean,
    PairedMean,
    PolicyFigures,
    Results,
    differences_of,
    means_of,
)
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.evidence.reports.results import (
    ConditionScores,
    Figure,
    components_of,
    figure,
    main_scores,
    measures_of,
    scores_of,
    sides_of,
)
from gradus.evidence.reports.verdict import STUDENTS, state_of
from gradus.stats import format_number, format_p, format_signed

_NONE = "–"


@frozen_record
class Cell:
    """One figure of a table, as text."""

    text: str
    note: str = ""  # small print under the text
    state: str = ""  # shown, refuted or empty


@frozen_record
class Row:
    """A policy or a difference with its figures."""

    name: str
    cells: Sequence[Cell]
    own: bool = False  # of the run's own checkpoints


@frozen_record
class ScoreTable:
    """A table of the page."""

    title: str
    caption: str
    header: Sequence[str]  # the first column's name too
    rows: Sequence[Row]


def score_charts(results: Results) -> JsonDict:
    """Per measure and condition the policies with their intervals, best first."""
    charts: list[JsonDict] = []
    for grader, conditions in scores_of(results).items():
        # Another grader changes the reward alone.
        measures = measures_of(conditions) if grader == results["grader"] else ["reward"]
        for measure in measures:
            name = f"reward, {grader}" if measure == "reward" else measure_name(results, measure)
            by_condition = [_score_chart(scores, measure) for scores in conditions.values()]
            charts.append({"key": f"{grader}/{measure}", "name": name, "conditions": by_condition})
    return {"measures": charts}


def _score_chart(scores: ConditionScores, measure: str) -> JsonDict:
    rows: list[JsonDict] = []
    for name in reversed(scores.ranked(measure)):
        value = scores.policies[name].get(measure)
        bounds: JsonDict = vars(value) if value else dict.fromkeys(("mean", "low", "high"))
        rows.append({"name": name, **bounds, "strong": is_own(name)})
    return {"name": scores.condition, "note": f"{scores.stored['episodes']} episodes", "rows": rows}


def is_own(policy: str) -> bool:
    """Says if a policy is one of the run's own checkpoints (``grpo``, ``sft``, ``grpo-greedy``, ...)."""
    return policy.partition("-")[0] in STUDENTS


def measure_name(results: Results, measure: str) -> str:
    """A measure in words; the true reward by the name that its environment gives it."""
    return results["true_reward_name"] if measure == "true_reward" else measure.replace("_", " ")


def score_tables(results: Results) -> list[ScoreTable]:
    """The reward by condition under every grader, then all figures and differences of each condition."""
    graders = scores_of(results)
    tables = [_overview(grader, conditions) for grader, conditions in graders.items()]
    for condition in results["conditions"]:
        tables += seed_tables(results, condition)
        tables.append(_policy_table(results, condition))
        for conditions in graders.values():
            if conditions[condition].pairs:
                tables.append(_pair_table(results, condition, conditions))
    return tables


def _overview(grader: str, conditions: Mapping[str, ConditionScores]) -> ScoreTable:
    """Policies by conditions: the reward alone."""
    # A policy may be missing in some conditions: those of the first come first.
    first = next(iter(conditions.values()))
    names = dict.fromkeys(first.ranked())
    for scores in conditions.values():
        names.update(dict.fromkeys(scores.policies))
    rows: list[Row] = []
    for name in reversed(names):
        figures = [scores.policies.get(name, {}) for scores in conditions.values()]
        rows.append(_row(name, [figure_cell(measures.get("reward")) for measures in figures]))
    return ScoreTable(
        title=f"Reward by condition, {grader}",
        caption="mean reward; 95 % interval below it",
        header=["policy", *conditions],
        rows=rows,
    )


def _row(name: str, cells: Sequence[Cell]) -> Row:
    return Row(name=name, cells=cells, own=is_own(name))


def seed_tables(results: Results, condition: str) -> list[ScoreTable]:
    """The reward of each training seed, and the difference that each made; nothing if there is one seed."""
    stored, seeds = results["conditions"][condition], results["seeds"]
    rows: list[Row] = []
    for name, policy in stored["policies"].items():
        rows += _seed_rows(name, means_of(policy).get("reward"), len(seeds))
    for name, pair in stored["pairs"].items():
        sides = " − ".join(sides_of(name, stored["policies"]))
        reward = differences_of(pair).get("reward")
        rows += _seed_rows(sides, reward, len(seeds), signed=True)
    if not rows:
        return []
    return [
        ScoreTable(
            title=f"Reward by training seed, {condition}",
            caption="mean reward of each training seed over the tasks; the interval of all is over seeds and tasks",
            header=["policy", *(f"seed {seed}" for seed in seeds), "all"],
            rows=rows,
        )
    ]


def _seed_rows(name: str, reward: Mean | None, seeds: int, *, signed: bool = False) -> list[Row]:
    """One row, or none for a policy that was not trained from all seeds."""
    by_seed = reward.get("by_seed", []) if reward else []
    if len(by_seed) != seeds:
        return []
    write = format_signed if signed else format_number
    cells = [Cell(text=write(value)) for value in by_seed]
    cells.append(figure_cell(figure(reward), signed=signed))
    return [_row(name, cells)]


def _policy_table(results: Results, condition: str) -> ScoreTable:
    """All figures of the policies under one condition, by the main grader."""
    conditions = main_scores(results)
    scores = conditions[condition]
    measures, components = measures_of(conditions), components_of(results["conditions"])
    rows: list[Row] = []
    for name in reversed(scores.ranked()):
        policy = scores.stored["policies"][name]
        cells = [figure_cell(scores.policies[name].get(measure)) for measure in measures]
        means = [figure(policy["components"].get(component)) for component in components]
        cells += [figure_cell(value, bounds=False) for value in means]
        rows.append(_row(name, [*cells, Cell(text=_counted(policy))]))
    columns = [measure_name(results, measure) for measure in measures]
    columns += [component.replace("_", " ") for component in components]
    caption = [f"{scores.stored['episodes']} episodes, grader {scores.grader}; the components of the reward unweighted"]
    if "samples" in results:
        caption.append(f"{results['samples']} samples of each task")
    if scores.stored["clustered"]:
        caption.append("clustered on the hidden unit that episodes share")
    return ScoreTable(
        title=f"All figures, {condition}",
        caption="; ".join([*caption, *missing_episodes(scores.stored)]),
        header=["policy", *columns, "episodes"],
        rows=rows,
    )


def missing_episodes(stored: ConditionResults) -> list[str]:
    """A line for every policy of a condition with episodes that ended in an error or have no reward, and what went wrong first."""
    lines: list[str] = []
    for name, policy in stored["policies"].items():
        missing: list[str] = []
        if policy["failed"]:
            kinds = [f"{kind} ({count})" for kind, count in policy["failures"].items()]
            failures = f": {', '.join(kinds)}" if kinds else ""
            missing.append(f"{policy['failed']} of {policy['episodes']} episodes failed{failures}")
        broken = policy.get("broken")
        if broken:
            missing.append(f"the model broke {broken} of {policy['episodes']} episodes, which count with failed_reward")
        if policy["ungraded"]:
            missing.append(f"{policy['ungraded']} of {policy['episodes']} episodes could not be graded")
        if missing and "first_failure" in policy:
            missing.append(f"the first said {policy['first_failure']}")
        if missing:
            lines.append(f"{name}: {'; '.join(missing)}")
    return lines


def _pair_table(results: Results, condition: str, conditions: Mapping[str, ConditionScores]) -> ScoreTable:
    """The differences of all measures under the main grader; another grader changes the reward alone."""
    scores, power = conditions[condition], results.get("power")
    title, measures = f"Differences, {condition}, {scores.grader}", ["reward"]
    if scores.grader == results["grader"]:
        title = f"Differences, {condition}"
        compared = {measure for pair in scores.pairs for measure in pair.figures}
        measures = [measure for measure in measures_of(conditions) if measure in compared]
    rows: list[Row] = []
    for pair in scores.pairs:
        cells = [figure_cell(pair.figures.get(measure), signed=True) for measure in measures]
        cells += _test_cells(pair.reward, with_power=power is not None)
        name = f"{pair.first} − {pair.second}"
        rows.append(Row(name=name, cells=cells, own=is_own(pair.first)))
    header = ["difference", *(measure_name(results, measure) for measure in measures), "wins", "p"]
    if power is not None:
        header.append(f"episodes for {power['difference']:g}")
    return ScoreTable(
        title=title,
        caption=f"same seeds, grader {scores.grader}; paired 95 % interval below each; all pairs, under all conditions, are corrected together",
        header=header,
        rows=rows,
    )


def _test_cells(reward: PairedMean | None, *, with_power: bool) -> list[Cell]:
    """The wins, p and, if it was asked for, how many episodes show the difference."""
    if reward is None:
        return [Cell(text=_NONE)] * (3 if with_power else 2)
    cells = [
        Cell(text=f"{reward['wins']} of {reward['episodes']}"),
        Cell(text=format_p(reward["p"])),
    ]
    if with_power:
        cells.append(Cell(text=str(reward.get("episodes_needed") or _NONE)))
    return cells


def figure_cell(value: Figure | None, *, signed: bool = False, bounds: bool = True) -> Cell:
    """A figure with its interval under it; a difference is marked if its interval leaves out 0."""
    if value is None:
        return Cell(text=_NONE)
    write = format_signed if signed else format_number
    state = ""
    if signed and state_of(value) != "open":
        state = state_of(value)
    missing = f", {value.missing} missing" if value.missing else ""
    if not bounds or value.low is None or value.high is None:
        few = "too few" if value.decision == "too few" else ""
        return Cell(text=write(value.mean, beside=abs(value.mean)) + missing, note=few, state=state)
    # Numbers that are read together are written alike.
    largest = max(abs(value.mean), abs(value.low), abs(value.high))
    low, high = write(value.low, beside=largest), write(value.high, beside=largest)
    return Cell(text=write(value.mean, beside=largest), note=f"{low} to {high}{missing}", state=state)


def _counted(policy: PolicyFigures) -> str:
    """``100, 5 failed``: the episodes of a policy, and what is missing of them."""
    counts: JsonDict = dict(policy)  # results of before have no broken episodes
    missing = [f"{counts[kind]} {kind}" for kind in ("failed", "broken", "ungraded", "truncated") if counts.get(kind)]
    return ", ".join([str(policy["episodes"]), *missing])
