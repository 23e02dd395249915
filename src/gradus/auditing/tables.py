"""An audit for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from gradus.auditing.result import AuditResult
from gradus.stats import format_interval

MARKS = {"pass": "pass", "fail": "FAIL", "unresolved": "?", "skip": "-"}
STYLES = {"pass": "green", "fail": "bold red", "unresolved": "yellow", "skip": "dim"}


def check_rows(result: AuditResult) -> list[tuple[str, str, str]]:
    """Name, mark and evidence of every check."""
    return [(check.name, MARKS[check.status], check.evidence) for check in result.checks]


def point_rows(result: AuditResult) -> list[tuple[str, str, str, str]]:
    """Policy, role, reward and true reward, best reward first."""
    ordered = sorted(result.points, key=lambda point: -(point.reward.mean if point.reward.mean is not None else -1e9))
    return [
        (point.policy, point.role, format_interval(point.reward), format_interval(point.true_reward))
        for point in ordered
    ]


def tables(result: AuditResult) -> list[Any]:
    """The policies, then the checks, as rich renderables. Brackets in names, answers and intervals are not read as markup."""
    title = Text(f"{result.environment} · {result.condition} · grader {result.grader} · {result.episodes} episodes")
    policies = Table("policy", "role", "reward", result.true_reward_name, title=title, box=None, title_justify="left")
    for row in point_rows(result):
        policies.add_row(*map(Text, row))
    checks = Table(title="checks", box=None, title_justify="left", padding=(0, 2, 1, 0))
    checks.add_column("check", no_wrap=True)
    checks.add_column("", no_wrap=True)
    checks.add_column("evidence", overflow="fold")
    for check, row in zip(result.checks, check_rows(result), strict=True):
        checks.add_row(row[0], Text(row[1], style=STYLES[check.status]), Text(row[2]))
    return [policies, checks]
