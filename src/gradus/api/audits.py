"""What is done with audits besides making one: compare two, and validate an OpenEnv package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.api.checking import Audit
from gradus.api.shown import Shown
from gradus.core import ConfigError
from gradus.core.documents import SCHEMA

if TYPE_CHECKING:
    from openenv.validation.report import ValidationReportV2  # pyright: ignore[reportMissingImports] - an extra


@dataclass(frozen=True, repr=False)
class AuditComparison(Shown):
    """Two audits of a grader, or of two graders of one environment, as documents."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]

    def tables(self) -> Sequence[Any]:
        """The checks beside each other, what changed first."""
        from gradus.runs.audit import comparison_table

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

    >>> from gradus import api
    >>> first = api.audit("arithmetic", "format-only", episodes=20, budget=1200)
    >>> second = api.audit("arithmetic", "correctness", episodes=20, budget=1200)
    >>> comparison = api.compare_audits(first, second).to_json()
    >>> comparison["before"], comparison["now"]
    ('fail', 'pass')
    """
    from gradus.runs.audit import read_audit

    documents = [each.to_json() if isinstance(each, Audit) else read_audit(Path(each)) for each in (old, new)]
    return AuditComparison(documents[0], documents[1])


@dataclass(frozen=True, repr=False)
class Validation(Shown):
    """OpenEnv's report on a package. ``verdict`` is ``pass``, ``warn`` or ``fail``."""

    report: ValidationReportV2

    @property
    def verdict(self) -> str:
        """By OpenEnv's own severity policy."""
        return str(self.report.verdict.value)

    def to_json(self) -> dict[str, Any]:
        """The report in OpenEnv's schema, version 2."""
        return dict(self.report.model_dump(mode="json"))

    def tables(self) -> Sequence[Any]:
        """One row a check, and the verdict."""
        from rich.table import Table
        from rich.text import Text

        table = Table("check", "status", "evidence", box=None, title_justify="left", padding=(0, 2, 0, 0))
        for each in self.report.results:
            table.add_row(each.check_id, each.status.value, Text("; ".join(each.evidence)[:400]))
        return [table, Text(f"{self.verdict} (policy {self.report.policy_version}, lane {self.report.lane.value})")]


def validate_openenv(
    package: str | Path, *, budget: int = 8000, policy: str | None = None, seed: int = 0
) -> Validation:
    """Run an OpenEnv package's server and measure the semantic and statistical checks of RFC 008.

    ``budget``: episodes that the search for a hack may play. ``policy``: whose reach and headroom are measured. Needs
    ``pip install 'gradus-rl[openenv]'``. The server runs without a container: give only packages that you would run.

    >>> from gradus import api
    >>> api.validate_openenv("my_env").verdict        # doctest: +SKIP
    'pass'
    """
    from gradus.interop.openenv.validation.report import is_package, validate_package
    from gradus.runs.policies import make_policy

    if not is_package(package):
        raise ConfigError(f"expected the folder of an OpenEnv package, with an openenv.yaml, got {package}")
    chosen = (lambda spec: make_policy(spec, policy)) if policy else None
    return Validation(validate_package(package, seed=seed, budget=budget, policy=chosen))
