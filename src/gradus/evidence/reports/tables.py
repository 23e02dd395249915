"""The end of a run on a terminal: one table of a figure by policy and condition, and the verdict above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradus.core.documents import PairedMean, Results
from gradus.core.frozen_record import frozen_record
from gradus.evidence.reports.results import ConditionScores, Figure, headline_condition, main_scores, measures_of
from gradus.evidence.reports.score_tables import (
    Cell,
    ScoreTable,
    is_own,
    measure_name,
    missing_episodes,
    score_tables,
)
from gradus.evidence.reports.verdict import verdict_on
from gradus.stats import format_interval

_NAME = 14  # a name that is longer is broken before figures stand apart
MOST = 3  # figures of a policy on a terminal; `--verbose` shows all
_MOST_POLICIES, _MOST_CAUTIONS = 7, 2  # the end of a command fits one screen


def show_results(results: Results, *, every: bool = False) -> RenderableType:
    """The verdict in words and one table: what `gradus run`, `gradus eval` and `gradus compare` end with.

    ``every``: the tables of the page in place of the one. A quick run says that it is one.
    """
    verdict = verdict_on(results, quick=results.get("quick", False))
    headline = Text(verdict.headline, style="bold")
    cautions = [Text(caution) for caution in verdict.cautions]
    condition = headline_condition(results)
    if condition is None:
        return Group(headline, *cautions)
    if every:
        return Group(headline, *cautions, *map(_terminal_table, score_tables(results)))
    missing = [Text(line, style="yellow") for line in missing_episodes(results["conditions"][condition])]
    return Group(headline, Text(), _condition_table(results, condition), *missing, *cautions[:_MOST_CAUTIONS])


def _condition_table(results: Results, condition: str) -> RenderableType:
    """The run's own checkpoints and the highest other policies of one condition, best first, with the three figures that matter."""
    conditions = main_scores(results)
    scores = conditions[condition]
    # An environment may list its true reward among its metrics too: of one label the first measure counts.
    labels: dict[str, str] = {}
    for measure in measures_of(conditions):
        labels.setdefault(measure_name(results, measure), measure)
    columns = list(labels)[:MOST]
    rows = [["policy", *columns]]
    for policy in _best(scores):
        figures = [scores.policies[policy].get(labels[column]) for column in columns]
        rows.append([policy, *map(_measured, figures)])
    title = f"{condition}, {scores.stored['episodes']} episodes, grader {scores.grader}"
    return _InParts(title=title, rows=rows)


def _measured(figure: Figure | None) -> str:
    """A figure with its interval, and the tasks that it leaves out."""
    text = format_interval(figure, digits=2)
    return f"{text} ({figure.missing} missing)" if figure and figure.missing else text


def _best(scores: ConditionScores) -> list[str]:
    """Policies from highest to lowest: the run's own checkpoints, and as many others as there is room for."""
    order = scores.ranked()[::-1]
    scripted = [policy for policy in order if not is_own(policy)]
    room = max(0, _MOST_POLICIES - len(order) + len(scripted))
    return [policy for policy in order if is_own(policy) or policy in scripted[:room]]


def power_lines(results: Results) -> list[RenderableType]:
    """Returns when the evaluation stopped, if it looked, and how many episodes show the difference that was asked about, a line for each pair."""
    lines: list[str] = []
    if "until_decided" in results:
        looks = results["until_decided"]
        lines.append(f"stopped at look {looks['looks']}, after {looks['tasks']:,} of at most {looks['of']:,} tasks")
    if "power" in results:
        power = results["power"]
        goal = f"to show a difference of {power['difference']:g} with {power['power']:.0%} power"
        for scores in main_scores(results).values():
            for pair in scores.pairs:
                needed = _needed(pair.reward) if pair.reward else ""
                lines.append(f"{scores.condition}, {pair.first} − {pair.second}: {needed} {goal}")
        lines.append("")
    return [Text(line) for line in lines]


def _needed(reward: PairedMean) -> str:
    """How many episodes show a difference, and of how many clusters if only those add power."""
    episodes, clusters = reward.get("episodes_needed"), reward.get("clusters_needed")
    needed = "not known from these episodes" if episodes is None else f"{episodes:,} episodes"
    if clusters is None:
        return needed
    return f"{clusters:,} clusters with {needed} (more episodes of the same clusters do not help)"


def _terminal_table(table: ScoreTable) -> RenderableType:
    """A table of the page for a terminal."""
    rows = [[row.name, *map(_text, row.cells)] for row in table.rows]
    return _InParts(title=f"\n{table.title}", rows=[table.header, *rows], caption=table.caption)


def _text(cell: Cell) -> str:
    return f"{cell.text} [{cell.note}]" if cell.note else cell.text


@frozen_record
class _InParts:
    """A table in as many parts, one under another, as its columns need: in one part of 80 columns no figure could be read.

    The first of ``rows`` is the header. The run's own policies are bold. A long name is broken, a figure never.
    """

    title: str
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:

        columns = zip(*self.rows, strict=True)
        names, *figures = [max(map(len, column)) for column in columns]
        yield Text(self.title, style="italic")
        for columns in _fitting([min(names, _NAME), *figures], options.max_width):
            yield self._part(columns)
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _part(self, columns: Sequence[int]) -> Table:
        """The names beside some of the columns."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        header, *rows = self.rows
        table.add_column(header[0], overflow="fold")
        for column in columns:
            table.add_column(header[column], justify="right", no_wrap=True)
        for row in rows:
            cells = [Text(row[column]) for column in (0, *columns)]
            table.add_row(*cells, style="bold" if is_own(row[0]) else None)
        return table


def _fitting(widths: Sequence[int], most: int) -> list[list[int]]:
    """The numbers of the columns after the first, in parts that stand beside the first within ``most`` characters."""
    parts: list[list[int]] = [[]]
    width = widths[0]
    for column, needed in enumerate(widths[1:], start=1):
        width += needed + 2
        if parts[-1] and width > most:
            parts.append([])
            width = widths[0] + needed + 2
        parts[-1].append(column)
    return parts
