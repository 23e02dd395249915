"""The semantic checks as graders of OpenEnv's registry (entry points ``openenv.validation.graders``). Needs openenv 0.10."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from openenv.validation.report import CheckResult
from openenv.validation.types import CheckStatus, Level, ProviderCapability

from gradus.core import GradusError
from gradus.interop.openenv.validation.semantic import SEMANTIC, Finding, Package


class _Semantic:
    """One check. It knows no severity: that is the policy's."""

    check_id = ""
    level = Level.SEMANTIC
    requires_capabilities: frozenset[str] = frozenset()
    requires_provider: frozenset[ProviderCapability] = frozenset()
    depends_on: tuple[str, ...] = ("runtime.startup",)

    def applies_to(self, manifest: Any) -> bool:
        """Where a server gives the reward; a verifier script has no server to ask."""
        return str(manifest.capabilities.verifier.kind) == "reward_channel"

    def run(self, subject: Any) -> CheckResult:
        """Measure on the running subject. Without one there is nothing to measure."""
        if subject.running is None:
            return as_result(self.check_id, Finding(status="skip", evidence=["the package's server does not run"]), 0.0)
        return run_check(self.check_id, _package(subject))


class OracleMax(_Semantic):
    """``semantic.oracle_max``."""

    check_id = "semantic.oracle_max"


class FloorGap(_Semantic):
    """``semantic.floor_gap``."""

    check_id = "semantic.floor_gap"


class CanaryFloor(_Semantic):
    """``semantic.canary_floor``."""

    check_id = "semantic.canary_floor"
    requires_capabilities = frozenset({"canaries"})


class NoSolutionLeakage(_Semantic):
    """``semantic.no_solution_leakage``."""

    check_id = "semantic.no_solution_leakage"


class VerifierDeterminism(_Semantic):
    """``semantic.verifier_determinism``."""

    check_id = "semantic.verifier_determinism"


class Replayability(_Semantic):
    """``semantic.replayability``."""

    check_id = "semantic.replayability"


def run_check(check_id: str, package: Package) -> CheckResult:
    """One semantic check as OpenEnv's record; a server that fails is a failed check, said in words."""
    started = time.monotonic()
    try:
        finding = SEMANTIC[check_id](package)
    except GradusError as error:
        remedy = "the server must answer its own oracle and canaries"
        finding = Finding(status="fail", evidence=[str(error)[:400]], remediation=remedy)
    return as_result(check_id, finding, time.monotonic() - started)


def as_result(check_id: str, finding: Finding, seconds: float) -> CheckResult:
    """A finding as OpenEnv's record."""
    return CheckResult(
        check_id=check_id,
        status=CheckStatus(finding.status),
        measured=dict(finding.measured),
        evidence=list(finding.evidence),
        remediation=finding.remediation,
        duration_s=seconds,
    )


def _package(subject: Any) -> Package:
    def execute(command: Sequence[str]) -> str:
        return str(subject.running.exec(list(command), timeout_s=60.0).stdout)

    return Package(
        root=subject.root,
        manifest=subject.manifest.model_dump(mode="json"),
        url=subject.running.base_url,
        execute=execute,
    )
