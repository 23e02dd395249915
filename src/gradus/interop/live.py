"""`gradus report RUN --live`: the report of a run that goes on, served on this machine, with how far it is and its last answers."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gradus.core import Episode, GradusError
from gradus.core.documents import MANIFEST, ManifestDocument, read_document
from gradus.core.files import read_json
from gradus.core.values import JsonDict
from gradus.evidence.health import diagnose, report
from gradus.evidence.reports.html import render_report
from gradus.evidence.reports.run_files import read_run
from gradus.interop.servers import Guard
from gradus.rollouts import read_episodes
from gradus.stats import format_number
from gradus.training.run.live_screen import clock_text

_SECONDS = 5  # between two looks of the page
_ANSWERS = 6
_LETTERS = 400
_LATEST = 10  # steps whose mean time says how long the rest takes
_STYLE = "max-width:70rem;margin:1rem auto;padding:0 1rem"


def live_app(folder: Path) -> Starlette:
    """An application with one page, which is made anew from the run's files at each look."""

    async def page(_: Request) -> Response:
        try:
            return HTMLResponse(await run_in_threadpool(live_page, folder))
        except GradusError as error:  # a line may be half written
            text = f"<meta http-equiv=refresh content={_SECONDS}><p>{html.escape(str(error))}</p>"
            return HTMLResponse(text, status_code=503)

    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(Guard)  # pyright: ignore[reportArgumentType]
    return app


def live_page(folder: Path) -> str:
    """Returns the run's report as it stands, renewed by the browser, with progress and last answers in front."""
    record = read_run(folder)
    if record.grpo and record.doctor is None:
        record = replace(record, doctor=report(diagnose(record.grpo), record.grpo))
    page = render_report(replace(record, missing=[]))
    page = page.replace("<head>", f'<head><meta http-equiv="refresh" content="{_SECONDS}">', 1)
    pace = html.escape(progress(folder, record.grpo))
    front = f'<section id="live" style="{_STYLE}"><p><b>{pace}</b></p>{answers(folder)}</section>'
    return re.sub("<body[^>]*>", lambda tag: tag[0] + front, page, count=1)


def progress(folder: Path, records: Sequence[Any]) -> str:
    """Says how far GRPO is and how long the rest takes, at the pace of the last steps."""
    steps = [record for record in records if record.get("kind") == "step"]
    if not steps:
        return "GRPO has not taken a step yet."
    done = steps[-1]["step"]
    most = read_json(folder / "grpo" / "config.json")["max_steps"]
    if (folder / "results.json").is_file():
        return f"Done: {done} steps."
    took = [step["seconds"]["total"] for step in steps]
    latest = took[-_LATEST:]
    left = (most - done) * sum(latest) / len(latest)
    planned = _planned_seconds(folder)
    if planned is not None:
        left = min(left, max(0.0, planned - sum(took)))
    reward = format_number(steps[-1]["reward_mean"])
    return f"Step {done}, at most {most}; reward {reward}; {clock_text(left)} of GRPO left at this pace."


def _planned_seconds(folder: Path) -> float | None:
    """The seconds that a plan of time has for GRPO; None without a time."""
    if not (folder / MANIFEST).is_file():
        return None
    stages = read_document(folder / MANIFEST, ManifestDocument)["stages"]
    cost = stages["plan"]["cost"] if "plan" in stages else {}
    plan: JsonDict = cost.get("plan", {})
    return plan["seconds"].get("grpo") if plan.get("limit") else None


def answers(folder: Path) -> str:
    """Returns a table of the answers of the newest stored step, with their rewards."""
    files = sorted((folder / "grpo" / "episodes").glob("step-*.jsonl.gz"))
    if not files:
        return "<p>No answers are stored yet.</p>"
    newest = files[-1]
    rows = [_row(episode) for episode in read_episodes(newest).episodes if episode.turns]
    # A group answers one question, often alike.
    different = list(dict.fromkeys(rows))
    table = "".join(["<tr><th>asked</th><th>answered</th><th>reward</th></tr>", *different[:_ANSWERS]])
    return f"<h2>Last answers ({newest.name.partition('.')[0]})</h2><table>{table}</table>"


def _row(episode: Episode) -> str:
    turn = episode.turns[-1]
    # What is asked stands at the end of a prompt.
    question = html.escape(turn.observation[-_LETTERS:])
    answer = html.escape(turn.action[:_LETTERS])
    return f"<tr><td>{question}</td><td>{answer}</td><td>{format_number(episode.reward_value)}</td></tr>"
