"""Is the run healthy? Named diagnoses with their evidence and a remedy, over a stored run or while it runs."""

from gradus.evidence.health.diagnose import (
    Diagnosis,
    Monitor,
    advice,
    diagnose,
    report,
    status,
    status_words,
    worst_first,
)
from gradus.evidence.health.rules import RULES, Rule

__all__ = [
    "RULES",
    "Diagnosis",
    "Monitor",
    "Rule",
    "advice",
    "diagnose",
    "report",
    "status",
    "status_words",
    "worst_first",
]
