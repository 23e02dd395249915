"""`gradus audit`, whole: play, judge, show, and write what is worth keeping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from gradus import environments
from gradus.audit import AuditResult, run_audit
from gradus.core import EnvironmentSpec, Grader
from gradus.core.files import write_json
from gradus.pipeline.policies import make_policy
from gradus.pipeline.progress import progress_bar

__all__ = ["audit_command", "audit_stage"]


def audit_command(
    environment: str,
    *,
    grader: str | None,
    episodes: int,
    budget: int,
    policy: str | None = None,
    seed: int = 0,
    as_json: bool = False,
    out: Path | None = None,
) -> bool:
    """Audit and show; true if the grader passed."""
    spec = environments.load(environment)
    signal = make_policy(spec, policy) if policy else None
    found = _audited(spec, spec.grader(grader), episodes=episodes, budget=budget, seed=seed, signal_policy=signal)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        _show(found, Console())
    if out is not None:
        for path in store_audit(spec, found, out):
            typer.echo(f"written: {path}", err=True)
    return found.verdict == "pass"


def audit_stage(
    spec: EnvironmentSpec, grader: Grader, folder: Path, *, episodes: int, budget: int, seed: int, console: Console
) -> None:
    """The audit as a stage of a run: a sentence on screen, the rest in the folder."""
    found = _audited(spec, grader, episodes=episodes, budget=budget, seed=seed)
    store_audit(spec, found, folder)
    for check in found.checks:
        mark = {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: "–"}[check.passed]
        console.print(f"  {check.name:<12} {mark}")
    console.print(found.summary)


def _audited(spec: EnvironmentSpec, grader: Grader, **options: Any) -> AuditResult:
    with progress_bar(f"audit {grader.name}", 0, "episodes") as advance:

        def tell(label: str, done: int, total: int) -> None:
            advance(done, total, label)

        return run_audit(spec, grader, progress=tell, **options)


def _show(found: AuditResult, console: Console) -> None:
    for table in found.tables():
        console.print(table)
        console.print()
    if found.hack is not None:
        from gradus.reports import show_episode

        console.rule("the hack that was found")
        console.print(f"plan: {found.hack.plan}", highlight=False, markup=False)
        console.print(show_episode(found.hack.episode))
    style = "green" if found.verdict == "pass" else "red"
    console.print(f"[bold {style}]{found.verdict}[/]  {found.summary}", highlight=False)


def store_audit(spec: EnvironmentSpec, found: AuditResult, folder: Path) -> list[Path]:
    """Write audit.json, the figure of reward against true reward, and the hack as an episode; returns the paths."""
    from gradus.reports import audit_figure
    from gradus.rollouts import write_episodes

    document = found.to_json()
    written = [folder / "audit.json"]
    write_json(written[0], document)
    written.append(audit_figure(document, folder / "audit.svg", aim=spec.true_reward_name))
    if found.hack is not None:
        written.append(folder / "hack.jsonl")
        write_episodes(written[-1], [found.hack.episode], environment=spec.name, note="found by gradus audit")
    return written
