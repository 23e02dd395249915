"""An audit for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from gradus.auditing.records import Check, Note
from gradus.auditing.result import AuditResult
from gradus.auditing.text.rates import quoted
from gradus.core.printing import beginning
from gradus.stats import format_interval

MARKS = {"pass": "pass", "fail": "FAIL", "unresolved": "?", "skip": "-"}
STYLES = {"pass": "green", "fail": "bold red", "unresolved": "yellow", "skip": "dim"}


def screen(result: AuditResult) -> list[Any]:
    """The verdict, what pays, the checks that did not pass, and what is lenient or strict: one screen.

    Brackets in names, answers and intervals are not read as markup.
    """
    parts: list[Any] = [Text.assemble((result.verdict, STYLES[result.verdict]), f"  {result.summary}"), ""]
    if result.points:
        parts += [_policies(result, most=_POLICIES), ""]
    else:
        parts.append(Text(_subject(result), style="dim"))
    if result.exploit is not None:
        completion = quoted(result.exploit.completion, _QUOTED)
        parts.append(Text(f"this completion alone earns {result.exploit.reward:.3g}: {completion}"))
    if result.hack is not None:
        parts.append(Text(f"the hack that was found: {beginning(result.hack.plan, _EVIDENCE)}"))
    parts += [_finding(check) for check in result.checks if check.status in ("fail", "unresolved")]
    for status, word in (("pass", "passed"), ("skip", "left out")):
        if names := [check.name for check in result.checks if check.status == status]:
            parts.append(Text(f"{word}: {', '.join(names)}", style="dim"))
    for kind, told in _KINDS.items():
        notes = [note for note in result.notes if note.kind == kind]
        if notes:
            parts.append(Text(f"{kind}: {told}"))
            parts += [_noted(note) for note in notes[:_NOTES]]
            if len(notes) > _NOTES:
                parts.append(Text(f"  and {len(notes) - _NOTES} more (--verbose)", style="dim"))
    return parts


_POLICIES, _NOTES, _QUOTED, _EVIDENCE = 6, 2, 60, 230
_KINDS = {
    "lenient": "it pays for words around a right answer that one must know already, or in part for the form",
    "strict": "it refuses forms of the right answer",
}


def _finding(check: Check) -> Text:
    return Text.assemble(
        (MARKS[check.status], STYLES[check.status]), f" {check.name}: {beginning(check.evidence, _EVIDENCE)}"
    )


def _noted(note: Note) -> Text:
    return Text(
        f"  {note.what} ({note.share}): {quoted(note.completion, _QUOTED)} for {quoted(note.gold, 20)}; {note.change}"
    )


def _subject(result: AuditResult) -> str:
    return f"{result.environment} · {result.condition} · grader {result.grader} · {result.episodes} episodes"


def _policies(result: AuditResult, *, most: int | None = None) -> Table:
    title = Text(_subject(result))
    table = Table("policy", "role", "reward", result.true_reward_name, title=title, box=None, title_justify="left")
    ranked = sorted(result.points, key=lambda point: -(point.reward.mean if point.reward.mean is not None else -1e9))
    for each in ranked[:most]:
        shown = (each.policy, each.role, format_interval(each.reward), format_interval(each.true_reward))
        table.add_row(*map(Text, shown))
    return table


def tables(result: AuditResult) -> list[Any]:
    """All policies, if any were rolled out, all checks with their evidence, and all notes, as rich renderables."""
    checks = Table(title="checks", box=None, title_justify="left", padding=(0, 2, 1, 0))
    checks.add_column("check", no_wrap=True)
    checks.add_column("", no_wrap=True)
    checks.add_column("evidence", overflow="fold")
    for check in result.checks:
        checks.add_row(check.name, Text(MARKS[check.status], style=STYLES[check.status]), Text(check.evidence))
    return [*([_policies(result)] if result.points else []), checks, *(_noted(note) for note in result.notes)]
