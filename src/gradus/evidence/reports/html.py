"""One HTML file that holds a whole report: styles, scripts and data inside, nothing loaded from anywhere."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import StorageError
from gradus.core.documents import Description, Results, ShownEpisodes
from gradus.core.files import write_text
from gradus.core.printing import beginning, go_around
from gradus.core.values import JsonDict
from gradus.evidence.reports.episode_data import json_values
from gradus.evidence.reports.page_data import page_context
from gradus.evidence.reports.results import figure
from gradus.evidence.reports.run_files import NOT_STORED, RunRecord, holds_a_run, read_run, seed_folders
from gradus.evidence.reports.score_tables import figure_cell
from gradus.evidence.reports.verdict import state_of
from gradus.evidence.stage_files import changed_since
from gradus.stats import format_interval, format_money, format_number, format_seconds, format_signed
from gradus.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("charts.js", "search.js", "episodes.js", "extras.js", "main.js")


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run folder from what the run stored there. Returns its path.

    What is missing is named in the report, what is damaged also on standard error. Raises ``StorageError`` if there is no such folder, or
    if it cannot be written to.
    """
    if not run_folder.is_dir():
        raise StorageError(f"{run_folder} is not a folder; a report needs the folder that `gradus run` wrote")
    if not holds_a_run(run_folder):
        raise StorageError(f"{run_folder} holds nothing of a run; a report needs the folder that `gradus run` wrote")
    record = read_run(run_folder)
    damage = [problem for problem in record.missing if not problem.endswith(NOT_STORED)]
    for folder in (run_folder, *seed_folders(run_folder).values()):
        damage += changed_since(folder)
    for problem in damage:
        go_around(problem, "the report says so")
    record = replace(record, missing=list(dict.fromkeys([*record.missing, *damage])))
    return _write_page(record, run_folder / "report.html")


def write_eval_report(
    results: Results,
    episodes: ShownEpisodes | None,
    path: Path,
    *,
    about: Description | None = None,
) -> Path:
    """Write the report of an evaluation alone: the document of results.json and what ``shown_episodes`` made (or None)."""
    name = results["checkpoint"] or "evaluation"
    return _write_page(RunRecord(name=name, results=results, about=about, episodes=episodes), path)


def _write_page(record: RunRecord, path: Path) -> Path:
    write_text(path, render_report(record))
    return path


def render_report(record: RunRecord) -> str:
    """Returns the page as text."""
    from markupsafe import Markup

    context, charts = page_context(record)
    episodes = {name: charts[name] for name in ("episodes", "listed")}
    drawn = {name: value for name, value in charts.items() if name not in episodes}
    return render_template(
        "report.html.j2",
        version=__version__,
        charts=charts,
        scripts=Markup("\n".join(_part(name) for name in SCRIPTS)),
        # The closing tag of the script that holds the data must not occur in it, so no "<" does.
        data=Markup(_json(drawn).replace("<", "\\u003c")),
        # Episodes are most of the page; the browser unpacks them.
        packed=Markup(b64encode(gzip.compress(_json(episodes).encode(), mtime=0)).decode()),
        **context,
    )


def _json(value: Any) -> str:
    return json.dumps(json_values(value), ensure_ascii=False, separators=(",", ":"))


def render_template(name: str, **context: Any) -> str:
    """A page of this folder, with the styles that all pages share."""
    from markupsafe import Markup

    return _pages().get_template(name).render(css=Markup(_part("report.css")), **context)


@cache
def _pages() -> Environment:
    """The templates, which are compiled once: a server would leave compiled ones behind with each page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    pages = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=select_autoescape(("html.j2", "svg.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: JsonDict = pages.filters
    filters.update(
        beginning=beginning,
        num=format_number,
        interval=format_interval,
        money=_money,
        seconds=format_seconds,
        figure=figure,
        cell=figure_cell,
        signed=format_signed,
        state=state_of,
    )
    return pages


@cache
def _part(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _money(value: float | None = None) -> str:
    return "–" if value is None else format_money(value)
