"""An audit with its progress shown, as a stage of a run, and written into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from gradus.audit import AuditResult, run_audit
from gradus.core import EnvironmentSpec, Grader
from gradus.core.files import write_json
from gradus.pipeline.progress import progress_bar

__all__ = ["audit_renderables", "audit_stage", "audit_with_progress", "store_audit"]


def audit_stage(
    spec: EnvironmentSpec, grader: Grader, folder: Path, *, episodes: int, budget: int, seed: int, console: Console
) -> None:
    """The audit as a stage of a run: a sentence on screen, the rest in the folder."""
    found = audit_with_progress(spec, grader, episodes=episodes, budget=budget, seed=seed)
    store_audit(spec, found, folder)
    for check in found.checks:
        mark = {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: "–"}[check.passed]
        console.print(f"  {check.name:<12} {mark}")
    console.print(found.summary)


def audit_with_progress(spec: EnvironmentSpec, grader: Grader, **options: Any) -> AuditResult:
    with progress_bar(f"audit {grader.name}", 0, "episodes") as advance:

        def tell(label: str, done: int, total: int) -> None:
            advance(done, total, label)

        return run_audit(spec, grader, progress=tell, **options)


def audit_renderables(result: AuditResult) -> list[Any]:
    """The checks and the panel, the hack if the search brought one, and the verdict."""
    from rich.rule import Rule
    from rich.text import Text

    parts: list[Any] = [part for table in result.tables() for part in (table, "")]
    if result.hack is not None:
        from gradus.reports import show_episode

        parts += [Rule("the hack"), Text(f"plan: {result.hack.plan}"), show_episode(result.hack.episode)]
    style = {"pass": "green", "fail": "red"}.get(result.verdict, "yellow")
    return [*parts, Text.assemble((result.verdict, f"bold {style}"), f"  {result.summary}")]


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
