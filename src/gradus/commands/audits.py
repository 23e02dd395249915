"""Compares two stored audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradus.commands.checking import Audit
from gradus.commands.shown import Shown
from gradus.core.documents import SCHEMA


@dataclass(frozen=True, repr=False)
class AuditComparison(Shown):
    """Two audits of a grader, or of two graders of one environment, as documents."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]

    def tables(self) -> Sequence[Any]:
        """The checks beside each other, what changed first."""
        from gradus.runs.stages.audits import comparison_table

        return [comparison_table(self.old, self.new)]

    def to_json(self) -> dict[str, Any]:
        """Both verdicts and both statuses of every check."""
        from gradus.evidence.reports import compare_audits as changes

        rows = [asdict(each) for each in changes(self.old, self.new)]
        return {"schema": SCHEMA, "before": self.old["verdict"], "now": self.new["verdict"], "checks": rows}


def is_stored_audit(path: str | Path) -> bool:
    """Whether ``path`` is an audit.json, or a folder that holds one."""
    return Path(path).suffix == ".json" or Path(path, "audit.json").is_file()


def compare_audits(old: str | Path | Audit, new: str | Path | Audit) -> AuditComparison:
    """What changed from one audit to another. Each is an audit, an audit.json, or the folder of ``save``.

    >>> from gradus import commands
    >>> first = commands.audit("arithmetic", "format-only", episodes=20, budget=1200)
    >>> second = commands.audit("arithmetic", "correctness", episodes=20, budget=1200)
    >>> comparison = commands.compare_audits(first, second).to_json()
    >>> comparison["before"], comparison["now"]
    ('fail', 'pass')
    """
    from gradus.runs.stages.audits import read_audit

    documents = [each.to_json() if isinstance(each, Audit) else read_audit(Path(each)) for each in (old, new)]
    return AuditComparison(documents[0], documents[1])
