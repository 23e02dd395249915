"""The end of a run on a terminal: one table of a figure by policy and condition, and the verdict above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradus.core import ConfigError
from gradus.reports.results import figure, graders_of, measures_of, ranked
from gradus.reports.score_tables import is_own
from gradus.reports.verdict import verdict_on
from gradus.stats import format_interval

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["show_results", "summary_table"]


def summary_table(results: Mapping[str, Any], *, measure: str = "reward", grader: str | None = None) -> RenderableType:
    """Policies by conditions, best first, ``mean [low, high]`` of one measure under one grader (the main one if None)."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    graders = graders_of(results)
    name = grader or next(iter(graders))
    if name not in graders:
        raise ConfigError(f"the results are not graded by {name!r}; they have {', '.join(graders)}")
    conditions = graders[name]
    known = measures_of(conditions)
    if measure not in known:
        raise ConfigError(f"unknown figure {measure!r}; the results have {', '.join(known) or 'none'}")
    label = str(results.get("true_reward_name") or measure) if measure == "true_reward" else measure.replace("_", " ")
    title = f"{label}, {name}" if measure == "reward" else label
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for condition, stored in conditions.items():
        table.add_column(f"{condition} ({stored.get('episodes', '?')})", justify="right")
    order = dict.fromkeys(name for condition in conditions for name in reversed(ranked(conditions, condition, measure)))
    for policy in order:
        figures = [figure((stored["policies"].get(policy) or {}).get(measure)) for stored in conditions.values()]
        cells = [Text(format_interval(each, digits=2 if measure == "true_reward" else 3)) for each in figures]
        table.add_row(Text(policy), *cells, style="bold" if is_own(policy) else None)
    return table


def show_results(results: Mapping[str, Any], *, quick: bool = False) -> RenderableType:
    """The verdict, the reward under every grader, and the true reward: what `gradus run` ends with."""
    from rich.console import Group
    from rich.text import Text

    verdict = verdict_on(results, quick=quick)
    parts: list[RenderableType] = [Text(verdict.headline, style="bold"), *(Text(each) for each in verdict.cautions)]
    if results.get("conditions"):
        parts += [summary_table(results, grader=grader) for grader in graders_of(results)]
        if "true_reward" in measures_of(results["conditions"]):
            parts.append(summary_table(results, measure="true_reward"))
    return Group(*parts)
