"""The end of a run on a terminal: one table of a figure by policy and condition, and the verdict above it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from gradus.evidence.reports.results import differences, figure, graders_of, headline_condition, measures_of, ranked
from gradus.evidence.reports.score_tables import (
    ScoreTable,
    is_own,
    missing_episodes,
    score_tables,
    seed_tables,
)
from gradus.evidence.reports.verdict import verdict_on
from gradus.stats import format_interval

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_NAME = 14  # a name that is longer is broken before figures stand apart
_MOST_CLAIMS = 12
MOST = 3  # figures of a policy on a terminal; `--verbose` shows all
_MOST_POLICIES, _MOST_CAUTIONS = 7, 2  # the end of a command fits one screen


def condition_table(
    results: Mapping[str, Any], condition: str, grader: str | None = None, *, most: int | None = None
) -> RenderableType:
    """The policies of one condition, best first, with the three figures that matter: in one part of 80 columns.

    ``most``: so many policies, the run's own checkpoints and the highest of the others.
    """
    graders = graders_of(results)
    name = grader or next(iter(graders))
    conditions = graders[name]
    stored = conditions[condition]
    labels: dict[str, str] = {}
    for each in measures_of(conditions):  # the true reward may stand there once more under the environment's own name
        labels.setdefault(_label(results, each), each)
    measures = list(labels.values())[:MOST]
    order = ranked(conditions, condition)[::-1]
    if most is not None:
        others = [policy for policy in order if not is_own(policy)]
        order = [each for each in order if is_own(each) or each in others[: most - len(order) + len(others)]]
    rows: dict[str, list[str]] = {}
    for policy in order:
        figures = [figure((stored["policies"].get(policy) or {}).get(measure)) for measure in measures]
        rows[policy] = [format_interval(each, digits=2) for each in figures]
    return _Figures(
        title=f"{condition}, {stored.get('episodes', '?')} episodes, grader {name}",
        header=["policy", *(_label(results, measure) for measure in measures)],
        rows=rows,
    )


@dataclass(frozen=True)
class _Figures:
    """Figures by policy. What does not fit beside the names stands in parts below each other; a long name is broken, not an interval."""

    title: str
    header: Sequence[str]
    rows: Mapping[str, Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        widths = [
            max(map(len, column))
            for column in zip(self.header, *([name, *cells] for name, cells in self.rows.items()), strict=True)
        ]
        yield Text(self.title, style="italic")
        for part in _fitting([min(widths[0], _NAME), *widths[1:]], options.max_width):
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            table.add_column(self.header[0], overflow="fold")
            for number in part:
                table.add_column(self.header[number], justify="right", no_wrap=True)
            for policy, cells in self.rows.items():
                shown = [Text(cells[number - 1]) for number in part]
                table.add_row(Text(policy), *shown, style="bold" if is_own(policy) else None)
            yield table


def pair_table(results: Mapping[str, Any], condition: str) -> RenderableType | None:
    """The differences that the verdict speaks of, as lines: the student against the others, or each against the next.

    Of many differences, those alone that are told apart.
    """
    from rich.text import Text

    claims = verdict_on(results).claims.get(condition, ())
    lines = [claim.text for claim in claims if len(claims) <= _MOST_CLAIMS or claim.state != "open"]
    if left := len(claims) - len(lines):
        lines.append(f"{left} others are not told apart; the report has each")
    return Text("\n".join(lines)) if lines else None


def _label(results: Mapping[str, Any], measure: str) -> str:
    return str(results.get("true_reward_name") or measure) if measure == "true_reward" else measure.replace("_", " ")


def show_results(results: Mapping[str, Any], *, every: bool = False) -> RenderableType:
    """The verdict in words and one table: what `gradus run`, `gradus eval` and `gradus compare` end with.

    ``every``: each condition and grader too, with what the intervals carry. A quick run says that it is one.
    """
    from rich.console import Group
    from rich.text import Text

    verdict = verdict_on(results, quick=bool(results.get("quick")))
    head: list[RenderableType] = [Text(verdict.headline, style="bold")]
    if not every:
        condition = headline_condition(results)
        shown = [Text(), condition_table(results, condition, most=_MOST_POLICIES)] if condition else []
        missing = _missing(results, condition) if condition else []
        return Group(*head, *shown, *missing, *(Text(each) for each in verdict.cautions[:_MOST_CAUTIONS]))
    parts: list[RenderableType] = [*head, *(Text(each) for each in verdict.cautions)]
    first, *others = graders_of(results)
    for condition in results.get("conditions") or {}:
        parts += [Text(), condition_table(results, condition, first)]
        parts += [condition_table(results, condition, grader) for grader in others]
        parts += _missing(results, condition)
        if condition == headline_condition(results):
            parts += [terminal_table(each) for each in seed_tables(results, condition)]
        if (pairs := pair_table(results, condition)) is not None:
            parts.append(pairs)
    return Group(*parts)


def _missing(results: Mapping[str, Any], condition: str) -> list[RenderableType]:
    from rich.text import Text

    return [Text(each, style="yellow") for each in missing_episodes(results["conditions"][condition])]


def power_lines(results: Mapping[str, Any]) -> list[RenderableType]:
    """Returns when the evaluation stopped, if it looked, and how many episodes show the difference that was asked about, a line for each pair."""
    from rich.text import Text

    power, looks = results.get("power"), results.get("until_decided")
    lines: list[RenderableType] = []
    if looks:
        lines.append(
            Text(f"stopped at look {looks['looks']}, after {looks['tasks']:,} of at most {looks['of']:,} tasks")
        )
    if not power:
        return lines
    for condition in results["conditions"]:
        for pair in differences(results["conditions"], condition):
            needed = (
                "not known from these episodes"
                if pair.episodes_needed is None
                else f"{pair.episodes_needed:,} episodes"
            )
            if pair.clusters_needed is not None:
                needed = (
                    f"{pair.clusters_needed:,} clusters with {needed} (more episodes of the same clusters do not help)"
                )
            lines.append(
                Text(
                    f"{condition}, {pair.first} − {pair.second}: {needed} to show a difference of {power['difference']:g} with {power['power']:.0%} power"
                )
            )
    return [*lines, ""]


def all_tables(results: Mapping[str, Any]) -> list[RenderableType]:
    """The tables of the page for a terminal: every figure, component and pair."""
    return [part for each in score_tables(dict(results)) for part in (terminal_table(each), "")]


def terminal_table(each: ScoreTable) -> RenderableType:
    """A table of the page for a terminal."""
    return _InParts(each)


@dataclass(frozen=True)
class _InParts:
    """A table in as many parts, one under another, as its columns need: in one part of 80 columns no figure could be read."""

    table: ScoreTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        rows = [
            [row.name, *(f"{cell.text} [{cell.note}]" if cell.note else cell.text for cell in row.cells)]
            for row in self.table.rows
        ]
        columns = list(zip_longest(self.table.header, *rows, fillvalue=""))
        widths = [max(map(len, column)) for column in columns]
        yield Text(self.table.title, style="italic")
        for part in _fitting(widths, options.max_width):
            shown = Table(box=None, pad_edge=False)
            shown.add_column(columns[0][0], style="bold")
            for number in part:
                shown.add_column(columns[number][0], justify="right")
            for row in range(1, len(rows) + 1):
                shown.add_row(*(Text(columns[number][row]) for number in (0, *part)))
            yield shown
        yield Text(self.table.caption, style="dim italic")


def _fitting(widths: Sequence[int], most: int) -> list[list[int]]:
    """The numbers of the columns after the first, in parts that stand beside the first within ``most`` characters."""
    parts: list[list[int]] = [[]]
    room = most - widths[0]
    for number, width in enumerate(widths[1:], 1):
        if parts[-1] and width + 2 > room:
            parts.append([])
            room = most - widths[0]
        parts[-1].append(number)
        room -= width + 2
    return parts
