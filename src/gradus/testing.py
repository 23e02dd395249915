"""A test of one's own grader: one line in pytest, and the same audit as `gradus audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.commands.audits import audit

if TYPE_CHECKING:
    from gradus.auditing import AuditResult


def assert_sound(
    reward: Any, rows: str | Path | Sequence[Any], *, exact: bool = False, episodes: int | None = None, seed: int = 0
) -> AuditResult:
    """Raise AssertionError if the audit finds that a reward can be exploited; returns what the audit found.

    ``reward``: a function in any signature that ``gradus audit`` takes, or ``file.py:function``. ``rows``: a file or a list of rows. ``exact``: also raise
    for what is lenient or strict. The message has each completion and the line that scores it again.
    """
    result = audit(rows, rewards=[reward], episodes=episodes, seed=seed).result
    notes = [note for note in result.notes if note.kind == "exploit" or (exact and note.kind != "open")]
    if result.verdict == "fail" or (exact and notes):
        failed = [f"{check.subject}: {check.evidence}" for check in result.checks if check.status == "fail"]
        shown = [
            f"{note.kind}, {note.what}: {note.completion[:400]!r} earns {note.reward}, right is {note.gold[:100]!r}"
            + (f"\n  {note.command}" if note.command else "")
            for note in notes[:5]
        ]
        raise AssertionError("\n".join([result.summary, *failed, *shown]))
    return result
