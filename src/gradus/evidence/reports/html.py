"""One HTML file that holds a whole report: styles, scripts and data inside, nothing loaded from anywhere."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core import StorageError
from gradus.core.files import write_text
from gradus.core.printing import go_around
from gradus.evidence.reports.episode_data import json_values
from gradus.evidence.reports.page_data import STATES, page_context
from gradus.evidence.reports.run_files import NOT_STORED, RunRecord, holds_a_run, read_run, seed_folders
from gradus.evidence.reports.verdict import Claim
from gradus.evidence.stage_files import changed_since
from gradus.stats import format_number
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
    run_folder = Path(run_folder)
    if not run_folder.is_dir():
        raise StorageError(f"{run_folder} is not a folder; a report needs the folder that `gradus run` wrote")
    if not holds_a_run(run_folder):
        raise StorageError(f"{run_folder} holds nothing of a run; a report needs the folder that `gradus run` wrote")
    path = run_folder / "report.html"
    record = read_run(run_folder)
    damage = [each for each in record.missing if not each.endswith(NOT_STORED)]
    for folder in (run_folder, *seed_folders(run_folder).values()):
        damage += changed_since(folder)
    for each in damage:
        go_around(each, "the report says so")
    write_text(path, render_report(replace(record, missing=list(dict.fromkeys([*record.missing, *damage])))))
    return path


def write_eval_report(
    results: Mapping[str, Any],
    episodes: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    path: Path,
    *,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of an evaluation alone: the document of results.json and what ``shown_episodes`` made (or None)."""
    if episodes is not None and not isinstance(episodes, Mapping):
        episodes = {"entries": list(episodes)}
    record = RunRecord(
        name=str(results.get("checkpoint") or "evaluation"),
        results=dict(results),
        about=dict(about) if about else None,
        episodes=dict(episodes) if episodes else None,
    )
    write_text(Path(path), render_report(record))
    return Path(path)


def render_report(record: RunRecord) -> str:
    """Returns the page as text."""
    from markupsafe import Markup

    context, data = page_context(record)
    episodes = {name: data.pop(name) for name in ("episodes", "listed")}
    return render_template(
        "report.html.j2",
        version=__version__,
        scripts=Markup("\n".join(_part(name) for name in SCRIPTS)),
        # The closing tag of the script that holds the data must not occur in it, so no "<" does.
        data=Markup(_json(data).replace("<", "\\u003c")),
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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters.update(num=format_number, words=_words, tally=_tally)
    return pages


@cache
def _part(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _tally(claims: Sequence[Claim]) -> str:
    """``4 above, 3 not told apart``."""
    counts = {name: sum(claim.state == state for claim in claims) for state, name in STATES.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _words(value: Any) -> str:
    """Evidence as a reader wants it, whether it was stored as a sentence, a list or a mapping."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_words(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_words(each) for each in value)
    if value is None:
        return "–"
    return format_number(value) if isinstance(value, float) else str(value)
