"""An audit with its progress shown, as a stage of a run, written into a folder, and its tasks rolled out in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

from gradus import environments
from gradus.auditing import AuditResult, AuditSettings, audit_any
from gradus.auditing.exports import junit, sarif
from gradus.auditing.plans.hygiene import digests
from gradus.auditing.plans.panel import plan_subject
from gradus.core import EnvironmentFault, EnvironmentSpec, Grader, Task
from gradus.core.files import read_text, write_json, write_text
from gradus.core.values import Json, JsonDict
from gradus.runs.progress import progress_bar
from gradus.sandbox.processes import start_child

_SECONDS = 120.0  # of a process that rolls out again
_HASH_SEEDS = (0, 4711)  # two, as the small sets of one process stand as in another by chance


def audit_with_progress(spec: EnvironmentSpec, grader: Grader, settings: AuditSettings) -> AuditResult:
    """Returns the audit that fits. What the environment prints goes to stderr, so that JSON on stdout stays JSON."""
    unit = "answers" if spec.max_turns == 1 else "episodes"
    with progress_bar(f"audit {grader.name}", 0, unit) as advance, redirect_stdout(sys.stderr):

        def show(part: str, done: float, total: int) -> None:
            """Shows the audit's part and how far it is."""
            advance(done, total, part)

        return audit_any(spec, grader, replace(settings, progress=show))


def store_audit(spec: EnvironmentSpec, result: AuditResult, folder: Path) -> list[Path]:
    """Write audit.json, the figure, the hack as an episode, the page, the card, the badge, and JUnit and SARIF files; returns the paths."""
    from gradus.evidence.reports import audit_badge, audit_card, audit_figure, audit_page
    from gradus.evidence.reports.curves import audit_points
    from gradus.rollouts import write_episodes

    document = result.to_json()
    written = [folder / "audit.json"]
    write_json(written[0], document)
    figure = ""
    if audit_points(document):  # none if no true reward is known, or if answers alone were asked
        written.append(audit_figure(document, folder / "audit.svg", aim=spec.true_reward_name))
        figure = read_text(written[-1])
    turns: list[JsonDict] = []
    if result.hack is not None:
        episode = result.hack.episode
        written.append(folder / "hack.jsonl")
        write_episodes(written[-1], [episode], environment=spec.name, note="found by gradus audit")
        turns += [
            {"shown": turn.observation, "answer": turn.action, "reward": turn.env_reward} for turn in episode.turns
        ]
    texts = {
        "audit.html": audit_page(document, turns=turns, figure=figure),
        "audit-card.md": audit_card(document),
        "audit-badge.svg": audit_badge(document["verdict"]),
        "audit.junit.xml": junit(result),
        "audit.sarif": sarif(result),
    }
    for name, text in texts.items():
        written.append(folder / name)
        write_text(written[-1], text)
    return written


def replay_elsewhere(environment: str, tasks: Sequence[Task], seed: int) -> list[list[list[str]]]:
    """Digests of the observations of every task, as processes with two values of PYTHONHASHSEED see them, which run at the same time.

    Raises EnvironmentFault if one fails.
    """
    with ThreadPoolExecutor() as threads:
        return list(threads.map(partial(_replayed, environment, tasks, seed), _HASH_SEEDS))


def _replayed(environment: str, tasks: Sequence[Task], seed: int, hash_seed: int) -> list[list[str]]:
    """The digests of one process."""
    rows = [{"seed": task.seed, "condition": task.condition, "options": dict(task.options)} for task in tasks]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "observations.json"), Path(folder, "log")
        arguments = {"environment": environment, "tasks": rows, "seed": seed, "out": str(out)}
        # Sets and dicts of texts are walked in another order under another PYTHONHASHSEED.
        process = start_child(f"{__name__}:roll_out_here", arguments, hash_seed=hash_seed, log=log)
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            log.write_text(f"it took more than {_SECONDS:g} s", encoding="utf-8")
        finally:
            process.kill()
            process.communicate()
        if not out.is_file():
            lines = read_text(log).strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise EnvironmentFault(f"{environment} could not be rolled out in another process: {lines[-1][:300]}")
        return json.loads(out.read_text(encoding="utf-8"))


def roll_out_here(arguments: Json) -> None:
    """Rolls out in this process, which :func:`replay_elsewhere` started."""
    spec = environments.load(arguments["environment"])
    tasks = [Task(environment=spec.name, **row) for row in arguments["tasks"]]
    observed = digests(plan_subject(spec, spec.grader(None), seed=arguments["seed"]), tasks)
    Path(arguments["out"]).write_text(json.dumps(observed), encoding="utf-8")
