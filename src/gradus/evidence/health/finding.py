"""What a rule says when it fires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SEVERITIES = ("info", "warn", "stop")  # from harmless to worst


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``adjust`` and ``remedy`` replace the rule's own if this finding asks for something else."""

    severity: str
    evidence: str
    adjust: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
