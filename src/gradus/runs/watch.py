"""`gradus watch`: the report of runs that still go on, on a local page that follows them. It reads files and changes none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec, GradusError, Group
from gradus.core.documents import read_document
from gradus.core.servers import LOOPBACK
from gradus.evidence.health import diagnose, report
from gradus.evidence.reports import page_context, render_report, shown_episodes
from gradus.evidence.reports.episode_data import Pieces
from gradus.evidence.reports.run_files import RunRecord, read_lines, read_run, seed_folders, shown_folder
from gradus.rollouts import read_episode, read_episodes
from gradus.runs.stored_episodes import episodes_with, newest_file

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

NEWEST = 8  # episodes of the newest step that the page can open
_NOWHERE = 10**9  # the number of an episode that no file has
SECONDS = 2.0  # between two looks at the files
Stamp = tuple[tuple[str, int, int], ...]


def watch_app(
    runs: Mapping[str, Path], *, hosts: Collection[str] | None = LOOPBACK, seconds: float = SECONDS
) -> Starlette:
    """The page at /, its data at /data, one evaluated episode at /episode?number=0, the numbers of those that hold a text at
    /search?text=WORDS, and /events, which tells when the runs wrote something.

    Requests for other hosts than ``hosts`` are refused; None takes any. Raises ConfigError if a run is a file: nothing would ever come.
    """
    for folder in runs.values():
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; a run is watched by its folder, as in gradus watch {folder.parent}")
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    # Each is made once for what the runs wrote. A page that is open asks for the curves after every step: they need no diagnosis,
    # which takes seconds for a long run.
    @lru_cache(maxsize=1)
    def shown(stamp: Stamp) -> str:
        return render_report(live_record(runs), live=True)

    @lru_cache(maxsize=1)
    def curves(stamp: Stamp) -> Any:
        return page_context(_read(runs))[1]["curves"]

    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(shown(_stamp(runs)))

    def data(request: Request) -> JSONResponse:
        return JSONResponse(curves(_stamp(runs)))

    def episode(request: Request) -> JSONResponse:
        number = request.query_params.get("number", "")
        return _answer(lambda: one_episode(runs, int(number) if number.isdecimal() and len(number) < 10 else _NOWHERE))

    def search(request: Request) -> JSONResponse:
        text = request.query_params.get("text", "")
        return _answer(lambda: {"numbers": episodes_with(_evaluated(runs), text)})

    async def changes(request: Request) -> AsyncIterator[str]:
        seen: object = None
        while not await request.is_disconnected():
            now = _stamp(runs)
            yield f"data: {json.dumps(progress_of(runs))}\n\n" if now != seen else ": nothing new\n\n"
            seen = now
            await asyncio.sleep(seconds)

    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(changes(request), media_type="text/event-stream")

    routes = {"": page, "data": data, "episode": episode, "search": search, "events": events}
    allowed = ["*"] if hosts is None else [*hosts, "[::1]", "testserver"]
    return Starlette(
        routes=[Route(f"/{part}", each) for part, each in routes.items()],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed)],
    )


def _answer(give: Callable[[], Any]) -> JSONResponse:
    from starlette.responses import JSONResponse

    try:
        return JSONResponse(give())
    except GradusError as error:
        return JSONResponse({"error": str(error)}, status_code=404)


def one_episode(runs: Mapping[str, Path], number: int) -> dict[str, Any]:
    """The episode with this number in the evaluation of a run, as its page shows it. Raises GradusError if it is not there."""
    file = _evaluated(runs)
    environment, stored = read_episode(file, number)
    pieces: dict[str, Pieces] = {}
    if (named := file.parents[1] / "grpo" / "best" / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(named))
        pieces[stored.policy] = lambda ids: [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
    return shown_episodes(_specification(environment), [Group(task=stored.task, episodes=(stored,))], pieces=pieces)


def _specification(environment: str) -> EnvironmentSpec | str:
    """An environment, for its view of episodes; its name if it is a file of one's own, whose code a page does not run, or not here."""
    try:
        return environments.load_stored(environment)
    except GradusError:
        return environment


def _evaluated(runs: Mapping[str, Path]) -> Path:
    """The file of the episodes that the page lists."""
    if len(runs) != 1:
        raise ConfigError("episodes are shown of one run; several are watched here")
    return shown_folder(next(iter(runs.values()))) / "eval" / "episodes.jsonl.gz"


def live_record(runs: Mapping[str, Path]) -> RunRecord:
    """One run as its report would show it, with diagnoses and episodes of now; several runs with their curves over each other."""
    record = _read(runs)
    if len(runs) > 1:
        return record
    (folder,) = runs.values()
    if record.doctor is None and (record.sft or record.grpo):
        records = [*record.sft, *record.grpo]
        record = replace(record, doctor=dict(report(diagnose(records), records)))
    if record.episodes is None:
        record = replace(record, episodes=_newest_episodes(folder))
    return record


def _read(runs: Mapping[str, Path]) -> RunRecord:
    """Reads one run; of several what their page compares."""
    records = {name: read_run(folder) for name, folder in runs.items()}
    if len(records) == 1:
        return next(iter(records.values()))
    return RunRecord(
        name=", ".join(runs),
        overlaid={line: each for name, run in records.items() for line, each in run.grpo_lines(name).items()},
        watched={name: run.results for name, run in records.items()},
    )


def progress_of(runs: Mapping[str, Path]) -> dict[str, Any]:
    """``said``: where each run is and how long it will still take; ``done``: how many have their results."""
    said: list[str] = []
    for name, folder in runs.items():
        seeds = {} if (folder / "results.json").is_file() else seed_folders(folder)
        for seed, each in (seeds or {"": folder}).items():
            said.append(": ".join(filter(None, (name if len(runs) > 1 else "", seed, _place(each)))))
    parts = ("sft", "distill", "grpo", "results.json")
    return {"said": "; ".join(said), "stages": sum((each / part).exists() for each in _folders(runs) for part in parts)}


def _folders(runs: Mapping[str, Path]) -> list[Path]:
    """The runs' folders, and those of their training seeds."""
    return [each for folder in runs.values() for each in (folder, *seed_folders(folder).values())]


def _place(folder: Path) -> str:
    if (folder / "results.json").is_file():
        return "the run has ended"
    sft, distill, grpo = (
        read_lines(folder / stage / "metrics.jsonl", stage, []) for stage in ("sft", "distill", "grpo")
    )
    steps = [line for line in grpo if line.get("kind") == "step"]
    if not steps:
        name, taught = ("distillation", distill) if distill else ("SFT", sft)
        return f"{name}, step {taught[-1].get('step')}" if taught else "nothing was trained yet; the page waits for it"
    last = steps[-1].get("step") or 0
    try:
        total = int(read_document(folder / "grpo" / "config.json", dict[str, Any])["max_steps"])
    except (
        GradusError,
        OSError,
        KeyError,
        TypeError,
        ValueError,
    ):  # the file is not there, or damaged: the page goes on
        return f"GRPO, step {last}"
    if last >= total:  # an evaluation may follow, and nobody knows how long it takes
        return f"GRPO, all {total} steps are done"
    times = [float((line.get("seconds") or {}).get("total") or 0) for line in steps[-10:]]
    minutes = (total - last) * sum(times) / len(times) / 60
    left = f"about {minutes:.0f} min" if minutes >= 1 else "less than a minute"
    return f"GRPO, step {last} of {total}, {left} left"


def _newest_episodes(folder: Path) -> dict[str, Any] | None:
    """Reads episodes of the newest stored step; None without any."""
    try:
        stored = read_episodes(newest_file(folder))
        spec = _specification(stored.environment)
        return shown_episodes(spec, [Group(task=each.task, episodes=(each,)) for each in stored.episodes[-NEWEST:]])
    except (GradusError, OSError):
        return None


def _stamp(runs: Mapping[str, Path]) -> Stamp:
    """Returns names, times and sizes of the files that the page shows."""
    patterns = ("*.json", "recipe.toml", "*/metrics.jsonl", "grpo/episodes/*", "report/*.json*")
    files = [file for folder in _folders(runs) for pattern in patterns for file in folder.glob(pattern)]
    stats = [(file, file.stat()) for file in sorted(files) if file.exists()]
    return tuple((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in stats)
